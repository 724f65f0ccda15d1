"""The costs of jobs on the dashboard."""

from __future__ import annotations

from decimal import Decimal

from tests.pages.browser import Browser
from tests.pages.sample import Sample


def test_costs_are_shown(browser: Browser, sample: Sample) -> None:
    """The page of a job has its costs by attempt, and the page of duplicates what was spent and saved."""
    assert 'id="costs"' not in browser.page("/duplicates").text
    job = sample.start(sample.submit("shop.study_plan", "anna", project="costly").job)
    sample.submit("shop.study_plan", "anna", project="costly")
    sample.ledger.add_cost(job, {"usd": Decimal("0.031"), "tokens": Decimal(812)})
    page = browser.page(f"/jobs/{job.id}")
    assert [text in page.text for text in ("Costs", "0.031", "812", "in total")] == [True] * 4
    assert browser.json(f"/jobs/{job.id}")["job"]["costs"]["total"] == {"tokens": "812", "usd": "0.031"}
    shown = browser.json("/duplicates", by="task")
    (task,) = (each for each in shown["groups"] if each["name"] == "shop.study_plan")
    assert task["cost_saved"] == "812 tokens, 0.031 usd"
    assert [(each["unit"], each["spent"], each["saved"]) for each in shown["costs"]] == [
        ("tokens", "812", "812"), ("usd", "0.031", "0.031")
    ]  # fmt: skip
    assert "0.031 usd" in browser.page("/duplicates").text
    assert any(row["cost_saved"] == "812 tokens, 0.031 usd" for row in browser.csv("/duplicates"))
