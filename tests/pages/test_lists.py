"""The list of jobs: its filters, its pages, and a search that takes more than one request."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from onejob.celery.message import decode
from onejob.jobs.records import Query
from onejob.jobs.timestamps import format_timestamp
from onejob.ledger import search
from onejob.pages.views import jobs as jobs_view
from tests.cases import for_each
from tests.pages.browser import Browser, mounted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onejob.jobs.model import Job
    from tests.pages.sample import Sample


@pytest.fixture
def pages(any_sample: Sample) -> Browser:
    """Return a browser of the sample on a store of each kind."""
    return Browser(mounted(any_sample.app, authorize=lambda _request: ("ann", "edit")))


def cases(sample: Sample, jobs: list[Job]) -> dict[str, tuple[Any, Callable[[Job], bool]]]:
    """Return each filter: the value of its parameter, and which jobs it selects."""
    identity = sample.ledger.get(sample.named["double"]).identity
    at = jobs[len(jobs) // 2].created_at
    return {
        "state": (["failed", "completed"], lambda job: job.state in {"failed", "completed"}),
        "task": ("shop.send_invoice", lambda job: job.task == "shop.send_invoice"),
        "queue": ("default", lambda job: job.queue == "default"),
        "worker": ("south@web-2", lambda job: job.node == "south@web-2"),
        "submitter": ("web:checkout", lambda job: job.submitter == "web:checkout"),
        "identity": (identity, lambda job: job.identity == identity),
        "argument": ("order_id=4711", lambda job: decode(job.payload).kwargs.get("order_id") == 4711),
        "reason": ("BILLING", lambda job: "billing" in job.reason.lower()),
        "since": (format_timestamp(at), lambda job: job.created_at >= at),
        "until": (format_timestamp(at), lambda job: job.created_at < at),
    }


def everything(sample: Sample) -> list[Job]:
    """Return all jobs, newest first."""
    return list(sample.ledger.find(Query(limit=10_000)))


def test_filters_select_what_they_say(pages: Browser, any_sample: Sample) -> None:
    """Each filter, alone and with each other one, lists and counts exactly the jobs that have these values."""
    jobs = everything(any_sample)
    filters = cases(any_sample, jobs)
    alone = [(name,) for name in filters]
    for names in [*alone, *itertools.combinations(filters, 2), tuple(filters)]:
        expected = [job.id for job in jobs if all(filters[name][1](job) for name in names)]
        shown = pages.json("/jobs", limit="200", **{name: filters[name][0] for name in names})
        assert [job["id"] for job in shown["jobs"]] == expected, names
        assert shown["matching"] == {"count": len(expected), "is_complete": True}, names
    for name in alone:
        assert any(filters[name[0]][1](job) for job in jobs), name


def test_pages_have_each_job_once_while_others_are_submitted(pages: Browser, any_sample: Sample) -> None:
    """Page after page shows each job exactly once, newest first, while jobs are submitted."""
    before = [job.id for job in everything(any_sample)]
    shown, cursor, number = [], None, itertools.count()
    while True:
        page = pages.json("/jobs", limit="20", **({} if cursor is None else {"cursor": cursor}))
        shown += [job["id"] for job in page["jobs"]]
        any_sample.submit("shop.study_plan", project=f"meanwhile {next(number)}")
        if (cursor := page["next"]) is None:
            break
    assert shown == before
    assert next(number) >= 3


def test_jobs_of_one_moment_are_on_one_page_each(pages: Browser, any_sample: Sample) -> None:
    """Jobs that were submitted at the same time are listed once each, whatever page they fall on."""
    any_sample.clock.at = 1_900_000_000.0
    same = {any_sample.submit("shop.send_invoice", order_id=number).job.id for number in range(45)}
    first = pages.json("/jobs", limit="20")
    second = pages.json("/jobs", limit="20", cursor=first["next"])
    third = pages.json("/jobs", limit="20", cursor=second["next"])
    ids = [job["id"] for page in (first, second, third) for job in page["jobs"]]
    assert len(ids) == len(set(ids)) == 60
    assert set(ids[:45]) == same


def test_a_search_that_stops_early_goes_on_with_the_rest(
    pages: Browser, any_sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search whose time is over at once says how far it came, and its next pages are exactly the rest."""
    monkeypatch.setattr(jobs_view, "deadline", lambda: lambda: True)
    monkeypatch.setattr(search, "WINDOW", 7)
    jobs = everything(any_sample)
    filters = cases(any_sample, jobs)
    for names in (
        ("reason",),
        ("argument",),
        ("worker",),
        ("task", "submitter", "reason"),
        ("reason", "since", "until"),
    ):
        parameters = {name: filters[name][0] for name in names}
        found = list(walk(pages, parameters))
        assert found == [job.id for job in jobs if all(filters[name][1](job) for name in names)], names


def walk(pages: Browser, parameters: dict[str, Any]) -> Iterator[str]:
    """Yield the ids of all pages of a search."""
    cursor: str | None = None
    for _ in range(200):
        page = pages.json("/jobs", limit="20", **parameters, **({} if cursor is None else {"cursor": cursor}))
        yield from (job["id"] for job in page["jobs"])
        cursor = page["next"]
        if cursor is None:
            assert page["searched_to"] is None
            return
    pytest.fail("the search does not end")


def test_a_search_that_stopped_links_the_rest(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of a search that stopped early says so, and its link goes on with the same filter."""
    monkeypatch.setattr(jobs_view, "deadline", lambda: lambda: True)
    monkeypatch.setattr(search, "WINDOW", 5)
    page = browser.page("/jobs", reason="no such reason", limit="20")
    assert "Searched back to" in page.text
    link = next(link for link in page.links if "cursor=" in link)
    assert link.startswith("/ops/jobs?reason=no+such+reason&limit=20&cursor=")


INVALID = {
    "state": "lost", "limit": "51", "since": "yesterday", "until": "1 h", "cursor": "x", "task": "x" * 501,
    "argument": "a\x00b", "reason": "\x00", "queue": "q" * 501, "worker": "\x00", "submitter": "s" * 501,
    "identity": "\x00",
}  # fmt: skip


@for_each("name", INVALID)
def test_an_invalid_parameter_is_named(browser: Browser, name: str) -> None:
    """A parameter with an invalid value is a 422 page that names it."""
    response = browser.get("/jobs", **{name: INVALID[name]})
    assert response.status_code == 422
    assert name in response.text


@for_each("path, name, value", [
    ("/audit", "before", "x"), ("/audit", "before", "-1"), ("/audit", "before", "9" * 20), ("/dead", "since", "soon"),
    ("/tasks", "window", "year"), ("/", "window", "year"), ("/duplicates", "by", "host"), ("/find", "q", "x" * 501),
])  # fmt: skip
def test_an_invalid_parameter_of_another_page_is_named(browser: Browser, path: str, name: str, value: str) -> None:
    """On every page a parameter with an invalid value is a 422 page that names it."""
    response = browser.get(path, **{name: value})
    assert response.status_code == 422
    assert f"the parameter {name}" in response.text


@for_each("parameters", [
    {"since": "999999w"}, {"until": "999999w"}, {"since": "9999-12-31T23:59:59Z"}, {"until": "0001-01-01T00:00:00Z"},
    {"argument": "%_\\'\""}, {"argument": "order_id=[" + "[" * 400}, {"reason": "%"}, {"identity": "' or 1=1"},
    {"task": "\N{SNOWMAN}"}, {"argument": "a=1e999"}, {"state": ["failed"] * 200},
])  # fmt: skip
def test_odd_values_select_nothing_else(pages: Browser, parameters: dict[str, Any]) -> None:
    """Values at the limits, and characters that mean something to a database, are data on every store."""
    shown = pages.json("/jobs", **parameters)
    assert bool(shown["jobs"]) is (parameters == {"since": "999999w"} or "state" in parameters)


def test_links_keep_the_filter(browser: Browser) -> None:
    """Links to the states and pages of a list keep its other parameters, and drop the position."""
    page = browser.page("/jobs", task="shop.send_invoice", limit="20", submitter="cron & co")
    link = next(link for link in page.links if "state=failed" in link)
    assert link == "/ops/jobs?task=shop.send_invoice&limit=20&submitter=cron+%26+co&state=failed"


def test_finding_leads_to_a_job_or_to_a_search(browser: Browser, sample: Sample) -> None:
    """The search field leads to the job with this id, or else to the jobs with the text among their arguments."""
    job_id = sample.named["double"]
    assert browser.get("/find", q=job_id).headers["location"] == f"/ops/jobs/{job_id}"
    assert browser.get("/find", q="course 7&").headers["location"] == "/ops/jobs?argument=course+7%26"
    assert browser.get("/find").headers["location"] == "/ops/jobs"
    assert browser.get("/find", q="//evil.example").headers["location"].startswith("/ops/jobs?")


def test_the_audit_log_has_pages(browser: Browser, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit log is read page by page, newest first, each entry once."""
    from onejob.pages.views import audit

    monkeypatch.setattr(audit, "PAGE_SIZE", 3)
    for _ in range(7):
        browser.post(f"/operate/{sample.named['failed']}", operation="cancel")
    ids, before = [], None
    while True:
        page = browser.json("/audit", **({} if before is None else {"before": before}))
        ids += [entry["id"] for entry in page["entries"]]
        if (before := page["next"]) is None:
            break
    assert ids == sorted(ids, reverse=True)
    assert len(ids) == len(set(ids)) == 7
