"""The page of limits, and the limits on the page of a job."""

from __future__ import annotations

from tests.limited import CUSTOMER, crowd, define
from tests.pages.browser import browser_of
from tests.pages.sample import Sample


def test_an_exception_is_set_shown_and_cleared(sample: Sample) -> None:
    """The form sets an exception, the page shows it, and its button clears it; readers have no form."""
    define(sample.ledger)
    browser = browser_of(sample, "operate")
    fields = {"limit_key": CUSTOMER, "value": "5", "until": "2h"}
    assert browser.submit(browser.page("/limits"), "/limits", **fields).status_code == 303
    page = browser.page("/limits")
    assert f"Set: {CUSTOMER} has 5 at once, an exception until" in page.text
    (shown,) = [each for each in browser.json("/limits")["limits"] if each["is_exception"]]
    assert (shown["key"], shown["value"], shown["default"]) == (CUSTOMER, "5", "2")
    reader = browser_of(sample, "read").page("/limits")
    assert CUSTOMER in reader.text
    assert "New exception" not in reader.text
    assert browser.submit(page, "/limits/clear").status_code == 303
    assert not any(each["is_exception"] for each in browser.json("/limits")["limits"])
    actions = [(each.action, each.detail) for each in reversed(sample.ledger.audit(limit=2))]
    assert actions == [
        ("set_limit", f"POST limit_key={CUSTOMER} value=5 until=2h"), ("clear_limit", f"POST limit_key={CUSTOMER}")
    ]  # fmt: skip


def test_a_waiting_job_links_to_those_that_have_the_slots(sample: Sample) -> None:
    """The page of a job says what it waits for, and links to the jobs with the slots; the list links to those."""
    first, second, third = crowd(sample.ledger)
    page = browser_of(sample).page(f"/jobs/{third}")
    assert f"It waits for {CUSTOMER}: 2 of 2 run" in page.text
    assert {f"/ops/jobs/{first}", f"/ops/jobs/{second}"} <= {*page.links}
    limits = browser_of(sample).page("/limits")
    assert "/ops/jobs?room=customer%3D42" in limits.links
    assert f"/ops/jobs/{first}" in limits.links
    (waiting,) = browser_of(sample).json("/jobs", room=CUSTOMER)["jobs"]
    assert waiting["id"] == third
    sample.ledger.cancel(third)
    assert browser_of(sample).json(f"/jobs/{third}")["limits"] == []


def test_what_cannot_be_is_told(sample: Sample) -> None:
    """A form with an unknown limit, a wrong value or a wrong time says why, and nothing is written."""
    define(sample.ledger)
    browser = browser_of(sample, "operate")
    for fields, why in (
        ({"limit_key": "other", "value": "5"}, "no task defines a limit"),
        ({"limit_key": "customer", "value": "many"}, "is no limit"),
        ({"limit_key": "customer", "value": "5", "until": "soon"}, "nor a duration"),
    ):
        assert why in browser.posted("/limits", status=422, **fields).text
    assert "no task defines a limit" in browser.posted("/limits/clear", status=422, limit_key="other").text
    assert all(each.is_default for each in sample.ledger.store.limit_values())


def test_values_of_keys_are_redacted(sample: Sample) -> None:
    """Where the values of jobs are redacted, no page has the value of a key, and nobody searches for it."""
    *_, third = crowd(sample.ledger, "customer=secret")
    browser = browser_of(sample, "operate", redact=lambda *_: "…")
    assert "customer=…" in browser.page("/limits").text
    for path in ("/limits", f"/jobs/{third}", "/limits?format=json"):
        assert "customer=secret" not in browser.get(path).text
    assert browser.get("/jobs", room="customer=secret").status_code == 403
