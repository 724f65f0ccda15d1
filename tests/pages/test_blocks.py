"""The page of pauses and strikes."""

from __future__ import annotations

from tests.pages.browser import Browser, browser_of
from tests.pages.sample import Sample


def test_a_pause_is_made_shown_and_ended(sample: Sample) -> None:
    """The form makes a block, the page lists it with a link to its jobs, and its button ends it; readers see none."""
    browser = browser_of(sample, "operate")
    fields = {"kind": "pause", "task": "shop.study_plan", "where": "project=7", "until": "2h", "note": "x"}
    sent = browser.submit(browser.page("/blocks"), "/blocks", **fields)
    assert sent.status_code == 303
    (pause,) = browser.json("/blocks")["blocks"]
    page = browser.page("/blocks")
    assert "Paused: task shop.study_plan, where project=7." in page.text
    assert f"/ops/jobs?pause={pause['id']}" in page.links
    assert pause["where"] == ["project=7"]
    reader = browser_of(sample, "read").page("/blocks")
    assert "shop.study_plan" in reader.text
    assert "New pause or strike" not in reader.text
    assert browser.submit(page, f"/blocks/{pause['id']}", kind="pause").status_code == 303
    assert browser.json("/blocks")["blocks"] == []


def test_a_wrong_selection_is_told(sample: Sample) -> None:
    """A form that selects nothing, and one with an unknown kind, says why, and nothing is written."""
    browser = browser_of(sample, "operate")
    assert "selects every job" in browser.posted("/blocks", status=422, kind="pause").text
    assert browser.post("/blocks", kind="other", queue="slow").status_code == 422
    assert sample.ledger.store.blocks() == []


def test_values_of_arguments_are_redacted(sample: Sample) -> None:
    """Where the values of jobs are redacted, the page has the names of the arguments alone."""
    browser: Browser = browser_of(sample, "operate", redact=lambda *_: "…")
    browser.submit(browser.page("/blocks"), "/blocks", kind="strike", task="shop.study_plan", where="project=secret")
    assert browser.json("/blocks")["blocks"][0]["where"] == ["project"]
    assert "secret" not in browser.page("/blocks").text
