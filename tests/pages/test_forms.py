"""Forms: those of other sites change nothing; on many jobs, what a preview counts is what is done."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from celery.schedules import crontab, schedule

from onejob.api.checked_request import BODY_LIMIT
from onejob.celery.beat.ticks import Beat
from onejob.client.operation import Operation
from onejob.errors import StoreUnavailableError
from onejob.jobs.lifecycle import State
from onejob.pages import actions
from onejob.pages.access import FIELD_LIMIT
from tests.cases import for_each
from tests.conftest import on_every_store
from tests.fundamentals.shop import claimed, order
from tests.pages.browser import SAME_ORIGIN, Browser, HtmlPage, browser_of
from tests.pages.sample import Sample

FORM = "application/x-www-form-urlencoded"
ORIGIN = {"origin": "http://127.0.0.1"}


@pytest.fixture
def unchanged(sample: Sample) -> Iterator[Sample]:
    """Return the sample; assert that the test leaves every job as it was."""
    before = sample.jobs()
    yield sample
    assert sample.jobs() == before


def forms_of(sample: Sample) -> list[tuple[str, dict[str, str]]]:
    failed = sample.named["failed"]
    return [
        (f"/operate/{failed}", {"operation": "redrive"}),
        (f"/edit/{failed}", {"args": "[]", "kwargs": '{"order_id": 5}'}),
        ("/schedules/celery.backend_cleanup", {"operation": "pause"}),
        ("/blocks", {"kind": "strike", "task": "shop.study_plan"}),
        ("/blocks/p-1", {"kind": "pause"}),
        ("/limits", {"limit_key": "customer", "value": "0"}),
        ("/limits/clear", {"limit_key": "customer"}),
        ("/bulk/run", {"operation": "delete", "scope": "matching", "filter": "state=failed"}),
    ]


@for_each("sent", [
    *({"headers": headers} for headers in (
        {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"sec-fetch-site": "none"},
        {"sec-fetch-site": "cross-site"} | ORIGIN, {"sec-fetch-site": ""},
        {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1:81"}, {"origin": ""},
        {"origin": "http://127.0.0.1.evil.example"}, {"origin": "http://["},
        {"referer": "http://127.0.0.1/ops/jobs"}, {},
    )),
    *({"csrf_token": token} for token in ("", "x", "\N{SNOWMAN}")),
])  # fmt: skip
def test_a_form_of_another_site_is_refused(browser: Browser, unchanged: Sample, sent: Any) -> None:
    """A form is refused unless the browser says that a page of this origin sent it, and it has the browser's token."""
    for path, fields in forms_of(unchanged):
        assert browser.post(path, **sent, **fields).status_code == 403


def test_the_token_of_another_browser_is_refused(browse: Callable[..., Browser], unchanged: Sample) -> None:
    """The token of one browser is no good in another one, nor without a cookie or with one that was planted."""
    one, other, mallory, victim = browse(), browse(), browse(authorize=lambda _: ("mallory", "edit")), browse()
    for each in (mallory, victim):  # another port of the host can set this
        each.client.cookies.set("onejob_csrf", "z", path="/ops")
    for path, fields in forms_of(unchanged):
        assert one.post(path, csrf_token=other.token(), **fields).status_code == 403
        for token in ("z", mallory.token()):
            assert victim.post(path, csrf_token=token, **fields).status_code == 403
        fresh = browse()
        assert fresh.post_pairs(path, [("csrf_token", one.token()), *fields.items()]).status_code == 403
        fresh.client.cookies.set("onejob_csrf", "", path="/ops")
        assert fresh.post_pairs(path, [("csrf_token", ""), *fields.items()]).status_code == 403


BIG = f"note={'x' * BODY_LIMIT}"


@for_each("body, content_type, status", [
    *(("", content_type, 415) for content_type in (
        "application/json", "text/plain", "multipart/form-data; boundary=x", "", f"{FORM}-x"
    )),
    *((body, FORM, 422) for body in ("&".join(["a=1"] * (FIELD_LIMIT + 1)), "note=%ff", "note=\u00e4", "note=a%00b")),
    (BIG, FORM, 413), (iter([BIG.encode()]), FORM, 413),
])  # fmt: skip
def test_a_body_that_no_page_sends_is_refused(
    browser: Browser, unchanged: Sample, body: Any, content_type: str, status: int
) -> None:
    """A body of another type, of too many bytes or fields, or with what no form has in it, is refused."""
    for path, fields in forms_of(unchanged):
        own = "&".join(f"{name}={value}" for name, value in {"csrf_token": browser.token(), **fields}.items())
        content = f"{own}&{body}".encode() if isinstance(body, str) else iter([own.encode(), b"&", BIG.encode()])
        headers = SAME_ORIGIN | {"content-type": content_type}
        response = browser.client.post(f"/ops{path}", content=content, headers=headers)
        assert response.status_code == status, response.text


def test_a_form_of_this_browser_is_done(sample: Sample) -> None:
    """A form of this origin with the browser's token is done, in any process; the next page replaces an empty token."""
    first, second, failed = browser_of(sample), browser_of(sample), sample.named["failed"]
    token = first.token()
    second.client.cookies = first.client.cookies
    for headers in (SAME_ORIGIN, ORIGIN, SAME_ORIGIN | {"origin": "null"}):
        job = sample.submit("shop.study_plan", project=f"{headers}").job
        sent = second.post(f"/operate/{job.id}", headers=headers, csrf_token=token, operation="cancel")
        assert (sent.status_code, sample.ledger.get(job.id).state) == (303, "canceled")
    first.client.cookies.set("onejob_csrf", "", path="/ops")
    assert first.submit(first.page(f"/jobs/{failed}"), f"/operate/{failed}", operation="redrive").status_code == 303


@for_each("back", [
    "//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/\t/evil.example",
    "\\\\evil.example", "", "jobs", "/\n//evil.example", "/jobs?state=failed",
])  # fmt: skip
def test_the_way_back_stays_on_the_site(browser: Browser, back: str) -> None:
    """The link back from a bulk operation is a path of this dashboard, whatever the form says."""
    page = browser.posted("/bulk/preview", scope="matching", operation="delete", filter="state=failed", back=back)
    assert ("/ops/jobs?state=failed" if "?" in back else "/ops/jobs") in page.links
    assert [link for link in page.links if "evil" in link or not link.startswith(("/ops/", "#"))] == []


def events_of(sample: Sample, job_id: str) -> list[str]:
    return [each.event for each in sample.ledger.history(job_id) if "on the dashboard by ann" in each.detail]


def previewed(page: HtmlPage) -> int:
    """Return how many jobs a preview counts."""
    found = re.search(r"([\d,]+)\+? jobs? will be", page.text)
    return int(found[1].replace(",", "")) if found else 0


def confirm(browser: Browser, page: HtmlPage) -> list[tuple[int, int]]:
    """Send the form of a preview and of each page that follows; return how many were done and refused after each."""
    counts: list[tuple[int, int]] = []
    while forms := [form for form in page.forms if form.action == "/ops/bulk/run"]:
        assert len(counts) < 100
        page = HtmlPage(browser.post_pairs("/bulk/run", forms[0].fields).text)
        found = re.search(r"([\d,]+) (?:[a-z ]+?)(?:, ([\d,]+) refused)?(?:\.| so far)", page.text)
        assert found is not None
        counts.append((int(found[1]), int(found[2] or 0)))
    return counts


@on_every_store
def test_a_preview_counts_what_is_done(any_sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that match are done in portions, each job once: as many as the preview says, and none that came after it."""
    monkeypatch.setattr(actions, "PORTION", 3)
    sample, browser = any_sample, browser_of(any_sample, "operate")
    before = sample.jobs()
    matching = {job.id for job in before.values() if job.state is State.COMPLETED and job.submitter == "cron"}
    assert len(matching) > 6
    page = browser.posted(
        "/bulk/preview", operation="delete", scope="matching", filter="submitter=cron&state=completed"
    )
    late = sample.submit("shop.study_plan", "cron", project="after the preview").job
    sample.ledger.complete(sample.start(late), "null")
    counts = confirm(browser, page)
    assert previewed(page) == len(matching)
    assert counts == [(min(3 * portion, len(matching)), 0) for portion in range(1, -(-len(matching) // 3) + 1)]
    assert before.keys() - sample.jobs().keys() == matching
    assert late.id in sample.jobs()
    entries = [each for each in sample.ledger.audit(limit=50) if each.action == "bulk"]
    assert [(each.actor, each.source, each.outcome) for each in entries] == [("ann", "dashboard", "done")] * len(counts)
    assert all("filter.submitter=cron" in each.detail and "csrf_token" not in each.detail for each in entries)


def test_portions_end_in_time(browser: Browser, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """A portion whose time is over has done one job at least, and the next one goes on behind it."""
    monkeypatch.setattr(actions, "deadline", lambda _seconds=0.0: lambda: True)
    filter_ = "state=failed&task=shop.send_invoice"
    page = browser.posted("/bulk/preview", operation="redrive", scope="matching", filter=filter_)
    failed = {job.id for job in sample.jobs().values() if job.state is State.FAILED}
    counts = confirm(browser, page)
    assert [done + refused for done, refused in counts] == list(range(1, len(failed) + 1))
    assert {job_id: events_of(sample, job_id) for job_id in failed} == {job_id: ["redrive"] for job_id in failed}
    browser.posted("/bulk/run", operation="run_now", scope="matching", until="9e12", filter="state=retrying")
    assert len(events_of(sample, sample.named["retrying"])) == 1


def test_portions_of_selected_rows_end_in_time(
    browser: Browser, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of selected rows the preview counts all, and those that a portion has no time for are done in the next ones."""
    monkeypatch.setattr(actions, "deadline", lambda _seconds=0.0: lambda: True)
    failed = [job.id for job in sample.jobs().values() if job.state is State.FAILED][:3]
    rows = [sample.named["running"], *failed]
    page = browser.posted("/bulk/preview", *(("id", job_id) for job_id in rows), operation="redrive")
    assert previewed(page) == 3
    assert confirm(browser, page) == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert {job_id: events_of(sample, job_id) for job_id in failed} == {job_id: ["redrive"] for job_id in failed}


@for_each("operation", Operation)
def test_an_operation_touches_only_states_that_it_applies_to(
    browser: Browser, sample: Sample, operation: Operation
) -> None:
    """An operation on all jobs, and one on all ids, is done to those in its states, and leaves all others unchanged."""
    sample.dead_letter(project=operation)
    sample.submit("shop.study_plan", project=f"waits for {operation}")
    before = sample.jobs()
    meant = {job.id for job in before.values() if job.state in operation.states}
    page = browser.posted("/bulk/preview", operation=operation, scope="matching", filter="")
    by_id = browser.posted("/bulk/preview", *(("id", job_id) for job_id in before), operation=operation)
    assert previewed(page) == previewed(by_id) == len(meant)
    [(done, refused)] = confirm(browser, page)
    assert done + refused == len(meant)
    after = sample.jobs()
    assert {job_id for job_id, job in before.items() if after.get(job_id) != job} <= meant


def test_selected_jobs_are_done_and_refused_ones_are_listed(browser: Browser, sample: Sample) -> None:
    """Of the selected rows those that the operation applies to are done; each other one is listed with its reason."""
    failed, running = sample.named["failed"], sample.named["running"]
    ids = [("id", each) for each in (failed, running, "no-such-job", failed)]
    preview = browser.posted("/bulk/preview", *ids, operation="delete", back="/jobs?state=failed")
    assert previewed(preview) == 1
    before = sample.jobs()
    result = HtmlPage(browser.submit(preview, "/bulk/run").text)
    for said in ("1 deleted, 2 refused.", f"job {running} is running", "no-such-job"):
        assert said in result.text
    assert "/ops/jobs?state=failed" in result.links
    assert before.keys() - sample.jobs().keys() == {failed}


def test_what_still_needs_a_job_is_shown_before_it_is_deleted(browser: Browser, sample: Sample) -> None:
    """A job with an idempotency key is not deleted: the page says why, and offers a form that does it all the same."""
    ledger = sample.ledger
    kept = ledger.complete(claimed(ledger, ledger.submit(order(4711, key="k")).job.id), "1").id
    ids = [("id", each) for each in (kept, sample.named["failed"])]
    preview = browser.posted("/bulk/preview", *ids, operation="delete")
    assert previewed(preview) == 1
    assert f"job {kept} cannot be deleted: it is completed, and answers its idempotency key until" in preview.text
    result = HtmlPage(browser.submit(preview, "/bulk/run").text)
    assert "1 deleted, 1 refused." in result.text
    assert ledger.get(kept).id == kept
    forced = HtmlPage(browser.submit(result, "/bulk/preview").text)
    assert previewed(forced) == 1
    assert "1 deleted." in HtmlPage(browser.submit(forced, "/bulk/run").text).text
    assert ledger.get_or_none(kept) is None
    assert "operation=force_delete" in sample.audited("detail")[0][0]


def test_a_group_of_dead_letters_is_redriven(browser: Browser, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """The buttons of a group redrive or drop exactly its dead letters, in portions, also after its oldest is gone."""
    monkeypatch.setattr(actions, "PORTION", 2)
    for number in range(4):
        sample.dead_letter(project=number)
    groups = browser.json("/dead")["groups"]
    form = next(form for form in browser.page("/dead").forms if form.action == "/ops/bulk/preview")
    group = next(each for each in groups if each["group"] == form.hidden("group"))
    fields = [*form.fields, ("operation", "redrive")]
    page = HtmlPage(browser.post_pairs("/bulk/preview", fields).text)
    assert previewed(page) == group["count"] == 4
    before, oldest = sample.jobs(), group["job_ids"][-1]
    first = HtmlPage(browser.submit(page, "/bulk/run").text)
    sample.ledger.drop(oldest)
    assert previewed(HtmlPage(browser.post_pairs("/bulk/preview", fields).text)) == 1
    assert confirm(browser, first)[-1] == (3, 0)
    assert {job_id for job_id, job in sample.jobs().items() if job != before[job_id]} | {oldest} == {*group["job_ids"]}
    assert browser.json("/dead")["groups"] == [each for each in groups if each != group]
    assert "No job that matches" in HtmlPage(browser.post_pairs("/bulk/preview", fields).text).text
    [(detail,)] = sample.audited("detail")
    assert f" group cursor done refused filter.state=failed filter.task={group['task']} filter.since=" in detail


def test_a_preview_fixes_relative_times(browser: Browser, sample: Sample) -> None:
    """A filter such as `until=1h` is that of the preview, however long the confirmation takes."""
    sample.clock.at = now = sample.ledger.read_clock()
    page = browser.posted("/bulk/preview", operation="delete", scope="matching", filter="until=12h&state=completed")
    before = sample.jobs()
    meant = {each for each, job in before.items() if job.created_at < now - 12 * 3600 and job.state == "completed"}
    assert previewed(page) == len(meant)
    sample.clock.at = now + 6 * 3600
    assert confirm(browser, page)[-1] == (len(meant), 0)
    assert before.keys() - sample.jobs().keys() == meant


MANY = [("id", f"job-{number}") for number in range(1001)]
MATCHING = {"operation": "delete", "scope": "matching"}


@for_each("ids, fields, named", [
    ([], {"operation": "explode"}, "operation"), ([], {"operation": ""}, "operation"), ([], {}, "operation"),
    ([], {"operation": "delete"}, "select 1 to 1000 jobs"), (MANY, {"operation": "delete"}, "select 1 to 1000 jobs"),
    ([("id", "\u2028")], {"operation": "delete", "scope": "ids"}, "select 1 to 1000 jobs"),
    ([], MATCHING | {"filter": "state=lost"}, "state"), ([], MATCHING | {"filter": "since=soon"}, "since"),
    *(([], MATCHING | {"until": until}, "until") for until in ("nan", "inf", "soon")),
    ([], MATCHING | {"cursor": "x"}, "cursor"), ([], MATCHING | {"done": "-1"}, "done"),
    ([], {"operation": "delete", "scope": "group"}, "group"),
    ([], MATCHING | {"operation": "redrive", "filter": "state=completed"}, "no job that matches"),
])  # fmt: skip
def test_an_invalid_form_changes_nothing(browser: Browser, sample: Sample, ids: Any, fields: Any, named: str) -> None:
    """A form without a selection, with too many ids, or with an invalid field, is a 422 page that says so."""
    before = sample.jobs()
    assert named in browser.posted("/bulk/run", *ids, status=422, **fields).text
    assert sample.jobs() == before


def test_a_store_that_is_away_ends_the_portion(
    browser: Browser, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the store does not respond during a portion or an edit, the page is a 503, and so the audit log says."""

    def fail(*_args: Any, **_options: Any) -> None:
        raise StoreUnavailableError("it is away")

    page = browser.posted("/bulk/preview", ("id", sample.named["failed"]), operation="delete")
    monkeypatch.setattr(sample.ledger, "delete", fail)
    assert browser.submit(page, "/bulk/run").status_code == 503
    assert sample.audited("action", "outcome") == [("bulk", "store-unavailable")]
    monkeypatch.setattr(sample.ledger.store, "find_existing", fail)
    edited = browser.posted(f"/edit/{sample.named['failed']}", args="[]", kwargs='{"order_id": 1}', status=503)
    assert "may or may not have taken effect" in edited.text
    assert sample.audited("action", "outcome") == [("edit", "store-unavailable")]


# --- the beat schedule ----------------------------------------------------------------------------------------------


class Failing(schedule):
    """A schedule with a fault."""

    def remaining_estimate(self, last_run_at: Any) -> Any:
        raise LookupError("no such moon")


@pytest.fixture
def scheduled(sample: Sample) -> Sample:
    """Return the sample with a schedule, at which a worker has looked."""
    nightly = {"task": "shop.daily_report", "schedule": crontab(hour=3, minute=0), "kwargs": {"region": "north"}}
    sample.app.conf.beat_schedule = {"nightly/north": nightly, "wrong": nightly | {"schedule": Failing(60)}}
    Beat(sample.app).look()
    return sample


def plain() -> None: ...


def test_only_a_job_has_a_page(scheduled: Sample, browser: Browser) -> None:
    """The message of the last tick has a link if it is a job, and not if its task is one of Celery alone."""
    task: Any = scheduled.app.task
    task(name="plain", shared=False)(plain)
    nightly = scheduled.app.conf.beat_schedule["nightly/north"]
    scheduled.app.conf.beat_schedule = {"nightly/north": nightly, "plain": nightly | {"task": "plain", "kwargs": {}}}
    Beat(scheduled.app).look()
    for state in scheduled.ledger.store.schedules():
        last = replace(state, nonce="new", last_job=f"of-{state.name}")
        assert scheduled.ledger.store.put_schedule(last, expected=state.nonce)
    page = browser.page("/schedules")
    assert "of-plain" in page.text
    assert [link for link in page.links if "/jobs/" in link] == ["/ops/jobs/of-nightly%2Fnorth"]


def test_the_forms_of_an_entry(scheduled: Sample, browser: Browser) -> None:
    """The page has each entry with its next tick; its forms pause, resume and run one, and are recorded."""
    text = browser.page("/schedules").text
    assert "onejob_beat is off" in text
    assert "crontab: 0 3 * * *" in text
    assert "fails" in text
    path = "/schedules/nightly%2Fnorth"
    assert browser.post(path, operation="pause").status_code == 303
    assert "nightly/north is paused." in browser.page("/schedules").text
    entries = {each["name"]: each for each in browser.json("/schedules")["entries"]}
    assert entries["nightly/north"]["paused"] is True
    assert entries["nightly/north"]["next_tick_at"] is None
    assert entries["wrong"]["error"] == "cannot be computed: LookupError: no such moon"
    assert browser.post(path, operation="resume").status_code == 303
    assert "nightly/north goes on." in browser.page("/schedules").text
    jobs = len(scheduled.jobs())
    assert browser.post(path, operation="run").status_code == 303
    assert "nightly/north is submitted: job" in browser.page("/schedules").text
    assert len(scheduled.jobs()) in {jobs, jobs + 1}  # the report of the day answers if there is one
    assert scheduled.audited("action", "target", "detail")[0] == ("schedule", "nightly/north", "POST operation=run")
    assert browser.post(path, operation="drop").status_code == 422
    assert browser.post("/schedules/nothing", operation="run").status_code == 404
