"""The lists of jobs and of duplicates: filters, searches, pages, and the check of a call."""

from __future__ import annotations

import itertools
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from onejob.api.job_reads import READ_AT_ONCE
from onejob.celery.submission.options import tasks_of
from onejob.concurrency.batching import KeyedCache
from onejob.jobs.query import Query
from onejob.jobs.schedule_state import ScheduleState
from onejob.jobs.workers import WorkerInfo
from onejob.ledger import search
from onejob.observability.metrics import WEBHOOK_TASK, total_name
from onejob.pages import attention, job_list, job_rows, lists
from onejob.pages.context import Context
from tests.cases import for_each
from tests.pages.sample import GONE, NODES
from tests.stores.support import submission
from tests.submissions import submission_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onejob.jobs.model import JobRow
    from tests.pages.browser import Browser
    from tests.pages.sample import Sample

    Filters = dict[str, tuple[Any, Callable[[JobRow], bool]]]


def walk(browser: Browser, path: str, rows: str, position: str, **parameters: Any) -> Iterator[list[str]]:
    at: Any = None
    for _ in range(200):
        page = browser.json(path, **parameters, **({} if at is None else {position: at}))
        yield [row["id"] for row in page[rows]]
        if (at := page["next"]) is None:
            assert page.get("searched_to") is None
            return
    pytest.fail("the list does not end")


def test_pages_have_each_job_once_while_others_are_submitted(
    browser: Browser, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Page after page has each job once while jobs are submitted; a search that stops early goes on behind."""
    before, shown = [*sample.jobs()], []
    for number, ids in enumerate(walk(browser, "/jobs", "jobs", "cursor", limit="20")):
        shown.append(ids)
        sample.submit("shop.study_plan", project=f"meanwhile {number}")
    assert [*itertools.chain(*shown)] == before
    assert len(shown) >= 3
    page = browser.page("/jobs", task="shop.send_invoice", limit="20", submitter="cron & co")
    link = next(link for link in page.links if "state=failed" in link)
    assert link == "/ops/jobs?task=shop.send_invoice&limit=20&submitter=cron+%26+co&state=failed"
    monkeypatch.setattr(job_list, "deadline", lambda _: lambda: True)
    monkeypatch.setattr(search, "WINDOW", 5)
    page = browser.page("/jobs", error="no such reason", limit="20")
    assert "Searched back to" in page.text
    link = next(link for link in page.links if "cursor=" in link)
    assert link.startswith("/ops/jobs?error=no+such+reason&limit=20&cursor=")
    expected = [job.id for job in sample.jobs().values() if "billing" in job.reason]
    assert [*itertools.chain(*walk(browser, "/jobs", "jobs", "cursor", limit="20", error="BILLING"))] == expected != []


def test_a_full_page_may_be_the_last(browser: Browser, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list leads from a full page to another one if that has rows, and only then, also behind the longest ids."""
    monkeypatch.setattr(lists, "PAGE_SIZE", 2)
    for number in range(21):
        assert browser.json("/jobs", submitter="batch", limit="20")["next"] is None
        sample.submit("shop.study_plan", "batch", project=f"{number}")
    assert [len(ids) for ids in walk(browser, "/jobs", "jobs", "cursor", submitter="batch", limit="20")] == [20, 1]
    for pages in ([0], [1], [2], [2, 1]):
        assert [len(ids) for ids in walk(browser, "/audit", "entries", "before")] == pages
        browser.post("/bulk/run", scope="matching", operation="run_now", filter="")
    task = sample.app.tasks["shop.study_plan"]
    ids = [task.apply_async((f"{n}",), task_id=f"{n:02}".ljust(255, "漢")).id for n in range(21)]
    before = [*sample.jobs()]
    assert before[:21] == ids[::-1]
    assert [*itertools.chain(*walk(browser, "/jobs", "jobs", "cursor", limit="20"))] == before


INVALID = {
    "state": "lost", "limit": "51", "since": "yesterday", "until": "1 h", "cursor": "x", "task": "x" * 501,
    "argument": "a\x00b", "error": "\x00", "queue": "q" * 501, "worker": "\x00", "submitter": "s" * 501,
    "identity": "\x00",
}  # fmt: skip


@for_each("path, name, value", [
    *(("/jobs", name, value) for name, value in INVALID.items()),
    ("/audit", "before", "x"), ("/audit", "before", "-1"), ("/audit", "before", "9" * 20), ("/dead", "since", "soon"),
    ("/tasks", "window", "year"), ("/", "window", "year"), ("/duplicates", "by", "host"), ("/find", "q", "x" * 501),
])  # fmt: skip
def test_an_invalid_parameter_is_named(browser: Browser, path: str, name: str, value: str) -> None:
    """On every page a parameter with an invalid value is a 422 page that names it."""
    response = browser.get(path, **{name: value})
    assert response.status_code == 422
    assert name in response.text.partition("<main")[2]


def test_previews_of_large_arguments_are_bounded(
    browser: Browser, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list reads the arguments of its first rows only, if they are large; the other rows say that there are some."""
    monkeypatch.setattr(job_rows, "PREVIEW_BYTES", 5000)
    for number in range(2 * READ_AT_ONCE):
        sample.submit("shop.study_plan", project=f"{number} " + "x" * 1000)
    rows = browser.json("/jobs", limit="20")["jobs"][: 2 * READ_AT_ONCE]
    assert [row["arguments"] == "…" for row in rows] == [False] * READ_AT_ONCE + [True] * READ_AT_ONCE


def test_finding_leads_to_a_job_or_to_a_search(browser: Browser, sample: Sample) -> None:
    """The search field leads to the job of this id, a purged one, too, or else to jobs with the text in an argument."""
    job_id = sample.named["canceled"]
    for _ in range(2):
        assert browser.get("/find", q=job_id).headers["location"] == f"/ops/jobs/{job_id}"
        sample.ledger.purge([job_id])
    assert browser.get("/find", q="course 7&").headers["location"] == "/ops/jobs?argument=course+7%26"
    assert browser.get("/find").headers["location"] == "/ops/jobs"
    assert browser.get("/find", q="//evil.example").headers["location"].startswith("/ops/jobs?")
    assert browser.get("/jobs/").headers["location"] == "/ops/jobs"


def test_dead_letters_since_a_time(browser: Browser, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """The groups with a failure since a time say whether older dead letters were left out; their list is since then."""
    monkeypatch.setattr(lists, "GROUPED_LIMIT", 3)
    sample.dead_letter(project="now")
    page = browser.page("/dead", since="1m")
    assert "Last failure since" in page.text
    assert "1+ dead letters in 1 groups" in page.text
    assert "/ops/jobs?state=failed&since=1m" in page.links


def test_workers_have_their_runs(browser: Browser, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker has its runs, or is idle if that is known; lost ones are apart; late is one after 2/3 of a lease."""
    gone = sample.start(sample.submit("shop.study_plan", project="of nobody").job, GONE)
    shown = browser.json("/workers")
    assert {each["name"]: [run["id"] for run in each["runs"]] for each in shown["workers"]} == {
        NODES[0]: [sample.named["running"]], NODES[1]: []
    }  # fmt: skip
    assert [(each["name"], [run["id"] for run in each["runs"]]) for each in shown["lost"]] == [(GONE, [gone.id])]
    app = Celery("shop", set_as_current=False)
    app.conf.update(onejob_store="sqlite:///:unused:", onejob_lease=300.0)
    worker = WorkerInfo("celery@one", 1000.0)
    assert [Context(app).is_late(worker, 1000.0 + age) for age in (101.0, 199.0, 201.0)] == [False, False, True]
    assert "idle" in browser.page("/workers").text
    sample.start(sample.submit("shop.study_plan", project="newer").job, NODES[1])
    monkeypatch.setattr(lists, "RUNS_LIMIT", 1)
    assert [len(each["runs"]) for each in browser.json("/workers")["workers"]] == [0, 1]
    assert "idle" not in browser.page("/workers").text


def test_waiting_jobs_of_other_apps_show(browser: Browser, sample: Sample) -> None:
    """A job waits also on the pages of an app that lacks its task, when no worker is left that has it."""
    waiting = sample.ledger.submit(submission("elsewhere", task="other.task", route="other")).job
    sample.ledger.store.increment({total_name(("submissions_total", "other.task", "admitted")): 1.0})
    assert [each["waiting"] for each in browser.json("/tasks")["tasks"] if each["task"] == waiting.task] == [1]
    assert "other" in {each["queue"] for each in browser.json("/workers")["queues"]}


def test_the_oldest_waiting_job_is_due(browser: Browser, sample: Sample) -> None:
    """The overview has the due job that has waited longest, and, over bars, numbers with every digit."""
    assert browser.json("/")["oldest"]["task"] == "shop.index_document"
    sample.ledger.cancel(sample.named["queued"])
    assert sample.ledger.get(sample.named["retrying"]).state == "retrying"
    assert browser.json("/")["oldest"] is None
    name = total_name(("submissions_total", "shop.study_plan", "rejected"))
    sample.ledger.store.increment({name: 1.0}, recent={name: 1_234_567.0})
    source = browser.page("/").source
    assert "1,234,567 rejected</title>" in source
    assert re.search(r'class="top-value" aria-hidden="true">1,234,\d{3}</span>', source)


def in_queue_of_nobody(sample: Sample, number: int, **options: Any) -> str:
    """Submit a job to a queue that no worker consumes, and return its id."""
    task = tasks_of(sample.app)["shop.send_invoice"]
    return sample.ledger.submit(submission_of(task, {"order_id": number}, queue="nobody", **options)).job.id


def test_a_job_shows_when_it_is_due(browser: Browser, sample: Sample) -> None:
    """A job that waits has the time at which it is due; one that runs, has ended or follows another has none."""
    delayed = in_queue_of_nobody(sample, 1, countdown=3600)
    rows = {row["id"]: row for row in browser.json("/jobs", limit="200")["jobs"]}
    assert rows[delayed]["due_at"] == rows[delayed]["run_at"] > rows[delayed]["created_at"]
    due = {row["id"] for row in rows.values() if row["due_at"]}
    assert due == {delayed, sample.named["queued"], sample.named["retrying"]}


def test_stuck_jobs_are_counted_listed_and_handled(
    browser: Browser, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The overview counts the stuck jobs, the list has them with reasons, page by page; all that match are these."""
    before = browser.json("/")["attention"]["stuck"]["count"]
    waits = in_queue_of_nobody(sample, 1, countdown=3600)
    stuck = [in_queue_of_nobody(sample, number) for number in range(2, 25)]
    assert browser.json("/")["attention"]["stuck"]["count"] == before + len(stuck)
    rows = browser.json("/jobs", stuck="1", limit="200")["jobs"]
    assert {row["id"] for row in rows} >= {*stuck}
    assert {row["stuck"] for row in rows if row["id"] in stuck} == {
        "no live worker that has its task consumes its queue"
    }
    walked = [*itertools.chain(*walk(browser, "/jobs", "jobs", "cursor", stuck="1", limit="20"))]
    assert walked == [row["id"] for row in rows]
    narrow = "stuck=1&task=shop.send_invoice"
    preview = browser.posted("/bulk/preview", operation="cancel", scope="matching", filter=narrow)
    assert "all jobs with task shop.send_invoice and a reason why they are stuck" in preview.text
    browser.submit(preview, "/bulk/run")
    jobs = sample.jobs()
    assert {jobs[job_id].state for job_id in stuck} == {"canceled"}
    assert jobs[waits].state == "queued"
    monkeypatch.setattr(attention, "SCAN_LIMIT", 1)
    assert browser.json("/")["attention"]["stuck"]["is_complete"] is False


def test_what_fails_beside_jobs_is_counted(browser: Browser, sample: Sample) -> None:
    """The overview counts the webhooks that are tried again or given up, and the entries of the schedule that fail."""
    found = browser.json("/")["attention"]
    assert (found["schedules"]["failing"], found["webhooks"]["retrying"], found["webhooks"]["failed"]) == (0, 0, 0)
    webhook = sample.ledger.find(Query(task=WEBHOOK_TASK))[0]
    sample.ledger.fail(sample.start(webhook), json.dumps({"type": "E", "message": "", "traceback": ""}), "E")
    entry = {"task": "shop.study_plan", "schedule": 60.0}
    sample.app.conf.beat_schedule = {"good": entry, "bad": entry, "new": entry}
    for name, job in (("good", sample.named["double"]), ("bad", sample.named["failed"])):
        now = sample.ledger.read_clock()
        state = ScheduleState(name, "n", "every 60 s", since=now, seen_at=now, last_job=job)
        assert sample.ledger.store.put_schedule(state, expected="")
    found = browser.json("/")["attention"]
    assert found["schedules"] == {"runs": False, "failing": 1, "reason": "bad"}
    assert (found["webhooks"]["failed"], found["webhooks"]["total"]) == (1, 1)
    assert "Schedules failing 1 bad" in browser.page("/").text
    states = {row["name"]: row["last_state"] for row in browser.json("/schedules")["entries"] if row["is_job"]}
    assert states == {"good": "completed", "bad": "failed", "new": None}
    sample.app.conf.beat_schedule = {"wrong": {"task": "shop.study_plan", "schedule": 60.0, "options": {"missed": "x"}}}
    assert "missed of the schedule entry wrong" in browser.json("/")["attention"]["schedules"]["reason"]


# --- duplicates -------------------------------------------------------------------------------------------------------


def trial(browser: Browser, task: str, arguments: str) -> Any:
    return browser.json("/duplicates", task=task, arguments=arguments)["trial"]


WRONG = (
    ("shop.study_plan", "{", "not valid JSON"), ("shop.study_plan", "7", "a JSON object"),
    ("shop.study_plan", "null", "a JSON object"), ("shop.study_plan", "[" * 499, "not valid JSON"),
    ("no.such.task", "{}", "no onejob task named 'no.such.task'"), ("shop.study_plan", "{}", "project"),
    ("shop.study_plan", '{"project": "x", "course": 1}', "course"), ("shop.study_plan", "[1, 2, 3]", ""),
    ("shop.study_plan", '{"project": NaN}', ""),
)  # fmt: skip
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("shop.study_plan", {"project": "running"}), ("shop.study_plan", {"project": "new"}),
    ("shop.index_document", {"document": 7, "text": "second"}),
)  # fmt: skip


def test_the_box_tells_what_a_submission_gets(
    browser: Browser, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The box names the outcome and the job that a submission of a call then gets, or what is wrong; it stores none."""
    monkeypatch.setattr(KeyedCache, "get", lambda _cache, _key, load: load())  # on a slow machine figures are kept
    sample.clock.at = sample.ledger.read_clock()  # duplicates are counted by the hour
    for task, arguments, said in WRONG:
        found = trial(browser, task, arguments)
        assert found["answer"] is None, arguments
        assert said in found["error"], arguments
        page = browser.page("/duplicates", task=task, arguments=arguments)
        assert " ".join(found["error"].split()) in page.text
    for task, kwargs in CALLS:
        before = sample.jobs(), browser.json("/duplicates")["groups"]
        answers = [trial(browser, task, json.dumps(given))["answer"] for given in (kwargs, [*kwargs.values()])]
        assert (sample.jobs(), browser.json("/duplicates")["groups"]) == before
        got = sample.ledger.submit(submission_of(tasks_of(sample.app)[task], kwargs))
        for found in answers:
            assert (found["outcome"], found["identity"]) == (got.outcome, got.job.identity)
            assert found["existing"] is None if got.outcome == "admitted" else found["existing"]["id"] == got.job.id


def test_rules_are_in_words(browser: Browser) -> None:
    """The page says for each task which calls are equal, and has duplicates by hour of the day of the viewer's zone."""
    rules = {rule["task"]: rule for rule in browser.json("/duplicates")["rules"]}
    assert {name: (rule["unique_on"], rule["window"], rule["on_duplicate"]) for name, rule in rules.items()} == {
        "shop.study_plan": ("project", "until it has ended", "attach"),
        "shop.send_invoice": ("order_id", "until it has ended", "attach"),
        "shop.daily_report": ("region", "for each day@Europe/Berlin", "attach"),
        "shop.index_document": ("document", "until it has ended", "replace"),
    }
    totals = []
    for zone in ("UTC", "Asia/Tokyo"):
        browser.client.cookies.set("onejob_zone", zone)
        shown = browser.json("/duplicates")
        assert [each["hour"] for each in shown["hours"]] == list(range(24))
        totals.append([each["prevented"] for each in shown["hours"]])
    assert sum(totals[0]) == sum(totals[1]) > 0
    assert totals[1] == totals[0][-9:] + totals[0][:-9]
