"""Operations on many jobs: a preview, a confirmation, and portions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from onejob.errors import StoreUnavailableError
from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query
from onejob.ledger import search
from onejob.pages import bulk
from tests.cases import for_each
from tests.pages.browser import Browser, mounted
from tests.pages.html_page import HtmlPage

if TYPE_CHECKING:
    from httpx2 import Response

    from onejob.jobs.model import Job
    from tests.pages.sample import Sample

STATES: dict[str, set[State]] = {
    "cancel": {State.QUEUED, State.RUNNING, State.RETRYING},
    "force_cancel": {State.QUEUED, State.RUNNING, State.RETRYING},
    "run_now": {State.QUEUED, State.RETRYING},
    "redrive": {State.FAILED},
    "delete": {State.COMPLETED, State.FAILED, State.CANCELED},
}
"""The states of the jobs that an operation applies to."""


@pytest.fixture
def pages(any_sample: Sample) -> Browser:
    """Return a browser of the sample on a store of each kind."""
    return Browser(mounted(any_sample.app, authorize=lambda _request: ("ann", "operate")))


def jobs_of(sample: Sample) -> dict[str, Job]:
    """Return all jobs."""
    return {job.id: job for job in sample.ledger.find(Query(limit=10_000))}


def events_of(sample: Sample, job_id: str) -> list[str]:
    """Return what has happened to a job on the dashboard."""
    return [each.event for each in sample.ledger.history(job_id) if "on the dashboard by ann" in each.detail]


def preview(browser: Browser, operation: str, *more: tuple[str, str], **fields: str) -> Response:
    """Send the form of a list."""
    response = browser.post("/bulk/preview", *more, operation=operation, **fields)
    assert response.status_code == 200, response.text
    return response


def previewed(response: Response) -> int:
    """Return how many jobs a preview counts."""
    found = re.search(r"([\d,]+)\+? jobs? will be", HtmlPage(response.text).text)
    return int(found[1].replace(",", "")) if found else 0


def confirm(browser: Browser, response: Response) -> list[tuple[int, int]]:
    """Send the form of a preview and of each page that follows; return how many were done and refused after each."""
    counts: list[tuple[int, int]] = []
    while forms := [form for form in HtmlPage(response.text).forms if form.action == "/ops/bulk/run"]:
        assert len(counts) < 100
        response = browser.post_pairs("/bulk/run", forms[0].fields)
        assert response.status_code == 200, response.text
        found = re.search(r"([\d,]+) (?:[a-z ]+?)(?:, ([\d,]+) refused)?(?:\.| so far)", HtmlPage(response.text).text)
        assert found is not None
        counts.append((int(found[1]), int(found[2] or 0)))
    return counts


def test_a_preview_counts_what_is_done(pages: Browser, any_sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that match are done in portions, each job once: as many as the preview says, and none that came after it."""
    monkeypatch.setattr(bulk, "PORTION", 3)
    before = jobs_of(any_sample)
    matching = {job.id for job in before.values() if job.state is State.COMPLETED and job.submitter == "cron"}
    assert len(matching) > 6
    response = preview(pages, "delete", scope="matching", filter="submitter=cron&state=completed")
    late = any_sample.submit("shop.study_plan", "cron", project="after the preview").job
    any_sample.ledger.complete(any_sample.start(late), "null")
    counts = confirm(pages, response)
    assert previewed(response) == len(matching)
    assert counts == [(min(3 * portion, len(matching)), 0) for portion in range(1, len(counts) + 1)]
    assert counts[-1] == (len(matching), 0)
    assert before.keys() - jobs_of(any_sample).keys() == matching
    assert late.id in jobs_of(any_sample)
    entries = [each for each in any_sample.ledger.audit(limit=50) if each.action == "bulk"]
    assert [(each.actor, each.source, each.outcome) for each in entries] == [("ann", "dashboard", "done")] * len(counts)
    assert all("filter=submitter=cron" in each.detail and "csrf_token" not in each.detail for each in entries)


def test_portions_end_in_time(pages: Browser, any_sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """A portion whose time is over has done one job at least, and the next one goes on behind it."""
    monkeypatch.setattr(bulk, "deadline", lambda _seconds=0.0: lambda: True)
    response = preview(pages, "redrive", scope="matching", filter="state=failed&task=shop.send_invoice")
    failed = {job.id for job in jobs_of(any_sample).values() if job.state is State.FAILED}
    counts = confirm(pages, response)
    assert [done + refused for done, refused in counts] == list(range(1, len(failed) + 1))
    assert {job_id: events_of(any_sample, job_id) for job_id in failed} == {job_id: ["redrive"] for job_id in failed}


@pytest.mark.parametrize("operation", STATES)
def test_an_operation_touches_only_states_that_it_applies_to(browser: Browser, sample: Sample, operation: str) -> None:
    """An operation on all jobs, and one on all ids, is done to those in its states, and leaves all others unchanged."""
    before = jobs_of(sample)
    meant = {job.id for job in before.values() if job.state in STATES[operation]}
    response = preview(browser, operation, scope="matching", filter="")
    assert previewed(response) == len(meant)
    by_id = preview(browser, operation, *(("id", job_id) for job_id in before))
    assert previewed(by_id) == len(meant)
    [(done, refused)] = confirm(browser, response)
    assert done + refused == len(meant)
    after = jobs_of(sample)
    assert {job_id for job_id, job in before.items() if after.get(job_id) != job} <= meant
    assert {each: after[each] for each in before.keys() - meant} == {
        each: before[each] for each in before.keys() - meant
    }


def test_selected_jobs_are_done_and_refused_ones_are_listed(pages: Browser, any_sample: Sample) -> None:
    """Of the selected rows those that the operation applies to are done; each other one is listed with its reason."""
    named = any_sample.named
    ids = [named["failed"], named["running"], "no-such-job", named["failed"]]
    response = preview(pages, "delete", *(("id", each) for each in ids), back="/jobs?state=failed")
    assert previewed(response) == 1
    pages_before = jobs_of(any_sample)
    result = HtmlPage(pages.post_pairs("/bulk/run", HtmlPage(response.text).form("/ops/bulk/run").fields).text)
    assert "1 deleted, 2 refused." in result.text
    assert f"job {named['running']} is running" in result.text
    assert "no-such-job" in result.text
    assert "/ops/jobs?state=failed" in result.links
    assert pages_before.keys() - jobs_of(any_sample).keys() == {named["failed"]}


def test_a_group_of_dead_letters_is_redriven(
    pages: Browser, any_sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buttons of a group redrive or drop exactly the dead letters of this group, in portions."""
    monkeypatch.setattr(bulk, "PORTION", 2)
    groups = pages.json("/dead")["groups"]
    assert len(groups) == 2
    form = next(form for form in pages.page("/dead").forms if form.action == "/ops/bulk/preview")
    fields = dict(form.fields)
    group = next(each for each in groups if each["pattern"] == fields["pattern"])
    response = pages.post_pairs("/bulk/preview", [*form.fields, ("operation", "redrive")])
    assert previewed(response) == group["count"]
    before = jobs_of(any_sample)
    counts = confirm(pages, response)
    assert counts[-1] == (group["count"], 0)
    changed = {job_id for job_id, job in jobs_of(any_sample).items() if job != before[job_id]}
    assert changed == set(group["job_ids"])
    assert pages.json("/dead")["groups"] == [each for each in groups if each["pattern"] != fields["pattern"]]


def test_a_preview_fixes_relative_times(browser: Browser, sample: Sample) -> None:
    """A filter such as `until=1h` is that of the preview, however long the confirmation takes."""
    sample.clock.at = now = sample.ledger.read_clock()
    response = preview(browser, "delete", scope="matching", filter="until=12h&state=completed")
    meant = {
        job.id for job in jobs_of(sample).values() if job.created_at < now - 12 * 3600 and job.state == "completed"
    }
    assert previewed(response) == len(meant)
    before = jobs_of(sample)
    sample.clock.at = now + 6 * 3600
    assert confirm(browser, response)[-1] == (len(meant), 0)
    assert before.keys() - jobs_of(sample).keys() == meant


def test_a_preview_that_stops_early_says_so(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """A preview whose time is over says that there may be more, and the operation does all of them."""
    monkeypatch.setattr(bulk, "deadline", lambda _seconds=0.0: lambda: True)
    monkeypatch.setattr(search, "WINDOW", 5)
    response = preview(browser, "delete", scope="matching", filter="reason=billing")
    assert re.search(r"\d+\+ jobs will be deleted|No job that matches", HtmlPage(response.text).text)


@for_each("fields, named", [
    ({"operation": "explode"}, "operation"), ({"operation": ""}, "operation"), ({}, "operation"),
    ({"operation": "delete"}, "select 1 to 1000 jobs"),
    ({"operation": "delete", "scope": "ids", "id": "\u2028"}, "select 1 to 1000 jobs"),
    ({"operation": "delete", "scope": "matching", "filter": "state=lost"}, "state"),
    ({"operation": "delete", "scope": "matching", "filter": "since=soon"}, "since"),
    ({"operation": "delete", "scope": "matching", "until": "nan"}, "until"),
    ({"operation": "delete", "scope": "matching", "until": "inf"}, "until"),
    ({"operation": "delete", "scope": "matching", "until": "soon"}, "until"),
    ({"operation": "delete", "scope": "matching", "cursor": "x"}, "cursor"),
    ({"operation": "delete", "scope": "matching", "done": "-1"}, "done"),
    ({"operation": "redrive", "scope": "matching", "filter": "state=completed"}, "no job that matches"),
])  # fmt: skip
def test_an_invalid_form_changes_nothing(browser: Browser, sample: Sample, fields: dict[str, str], named: str) -> None:
    """A form without a selection, or with an invalid field, is a 422 page that says what is wrong, and does nothing."""
    before = jobs_of(sample)
    response = browser.post("/bulk/run", **fields)
    assert response.status_code == 422, response.text
    assert named in HtmlPage(response.text).text
    assert jobs_of(sample) == before


def test_too_many_ids_are_refused(browser: Browser, sample: Sample) -> None:
    """More ids than a portion has are refused as a whole, and not cut."""
    before = jobs_of(sample)
    response = browser.post("/bulk/run", *(("id", f"job-{number}") for number in range(1001)), operation="delete")
    assert response.status_code == 422
    assert jobs_of(sample) == before


def test_an_operation_in_the_future_is_none(browser: Browser, sample: Sample) -> None:
    """A form whose time lies in the future selects jobs up to now, as its preview did."""
    response = browser.post("/bulk/run", operation="run_now", scope="matching", until="9e12")
    assert response.status_code == 200
    assert len(events_of(sample, sample.named["retrying"])) == 1


def test_a_store_that_is_away_ends_the_portion(
    browser: Browser, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the store does not respond during a portion, the page is a 503, and the audit log has this outcome."""

    def fail(*_args: Any, **_options: Any) -> None:
        raise StoreUnavailableError("it is away")

    response = preview(browser, "delete", ("id", sample.named["failed"]))
    monkeypatch.setattr(sample.ledger, "delete", fail)
    assert browser.post_pairs("/bulk/run", HtmlPage(response.text).form("/ops/bulk/run").fields).status_code == 503
    assert [(each.action, each.outcome) for each in sample.ledger.audit(limit=1)] == [("bulk", "store-unavailable")]
