"""The page of a job: what it shows and hides, under which ids, and its forms."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from html import unescape
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

import onejob
from onejob.celery.messages.payload import decode, loads, to_json
from onejob.jobs.model import JobRow, Submission
from onejob.ledger.ledger import NextRun
from onejob.ledger.sweep import note_publication
from onejob.pages import job as job_view
from onejob.pages.context import UNREADABLE
from onejob.webhooks.job import webhook_submission
from tests.api.serving import serving
from tests.browser.hostile import WHOLE, attack
from tests.cases import for_each
from tests.conftest import on_every_store
from tests.pages.browser import SAME_ORIGIN, Browser, HtmlPage, browser_of, mounted
from tests.pages.sample import Sample

ERROR = json.dumps({"type": "E", "message": ""})
PAYLOAD = '{"task": "shop.study_plan", "args": [], "kwargs": {"project": "odd"}}'


def submission(job_id: str, **values: Any) -> Submission:
    defaults: dict[str, Any] = {
        "task": "shop.study_plan", "identity": f"identity of {job_id}", "fingerprint": "f", "nonce": f"nonce {job_id}",
        "payload": PAYLOAD, "options": "{}", "lease": 30.0,
    }  # fmt: skip
    return Submission(id=job_id, **(defaults | values))


def submit(sample: Sample, job_id: str, **values: Any) -> JobRow:
    return sample.ledger.submit(submission(job_id, **values)).job


@for_each("job_id", [
    "a/b", "a//b", "/a", "a/", "50%", "a b", "a?b=c", "a#b", "задача", "a&b=c", "a/edit", "a/operate", "a;b",
    "\"'<>", "a+b", "a\\b", "...",
])  # fmt: skip
def test_every_id_has_its_page_and_its_forms(browser: Browser, sample: Sample, job_id: str) -> None:
    """Whatever characters an id has, lists link the page of its job, which links its JSON and has its two forms."""
    sample.ledger.fail(sample.start(submit(sample, job_id)), ERROR, "E")
    path = f"/ops/jobs/{quote(job_id, safe='')}"
    assert browser.get("/find", q=job_id).headers["location"] == path
    assert path in browser.page("/jobs", argument="project=odd").links
    page = HtmlPage(browser.client.get(path).text)
    json_link = next(link for link in page.links if link.endswith("?format=json"))
    assert browser.client.get(json_link).json()["job"]["id"] == job_id
    form = next(form for form in page.forms if "/operate/" in form.action)
    redriven = browser.client.post(form.action, data=dict(form.fields) | {"operation": "redrive"}, headers=SAME_ORIGIN)
    assert (redriven.status_code, redriven.headers["location"]) == (303, path)
    assert "Redrive: the job is queued now." in HtmlPage(browser.client.get(path).text).text
    assert sample.audited("target") == [(job_id,)]
    sample.ledger.fail(sample.start(sample.ledger.get(job_id)), ERROR, "E")
    edit_link = next(link for link in page.links if "/edit/" in link)
    form = next(form for form in HtmlPage(browser.client.get(edit_link).text).forms if "/edit/" in form.action)
    fields = dict(form.fields) | {"args": "[]", "kwargs": json.dumps({"project": f"edited {job_id}"})}
    edited = browser.client.post(form.action, data=fields, headers=SAME_ORIGIN)
    assert edited.status_code == 303, edited.text
    assert sample.ledger.get_or_none(job_id) is None
    new = browser.json(edited.headers["location"].removeprefix("/ops"))["job"]
    assert new["arguments"]["kwargs"] == {"project": f"edited {job_id}"}


@for_each("payload", [
    "{}", "[1]", "1", "no JSON", '{"task": "shop.study_plan", "args": [], "kwargs": {}, "newer": 1}',
    '{"task": "shop.study_plan", "args": 1, "kwargs": {}}', '{"task": "shop.study_plan", "args": [], "kwargs": []}',
])  # fmt: skip
def test_a_job_whose_payload_is_no_message_is_shown(browser: Browser, sample: Sample, payload: str) -> None:
    """A job of another version is shown and listed, says that its payload cannot be read, and cannot be edited."""
    job_id = f"odd-{len(payload)}"
    sample.ledger.fail(sample.start(submit(sample, job_id, payload=payload)), ERROR, "E")
    page = browser.page(f"/jobs/{job_id}")
    assert UNREADABLE in page.text
    assert [link for link in page.links if "/edit/" in link] == []
    assert browser.json("/jobs")["jobs"][0]["id"] == job_id
    assert browser.get(f"/edit/{job_id}").status_code == 422


def test_the_request_of_a_job_has_its_arguments_by_name(browser: Browser, sample: Sample) -> None:
    """The request to copy names positional arguments as the task does; it has none for more than the task takes."""
    for args, body in ((["x"], '{"task": "shop.study_plan", "kwargs": {"project": "x"}}'), (["x"] * 99, None)):
        payload = json.dumps({"task": "shop.study_plan", "args": args, "kwargs": {}})
        submit(sample, job_id := f"with-{len(args)}", payload=payload)
        shown = browser.json(f"/jobs/{job_id}")["job"]["as_curl"]
        assert (shown and body in shown) == (body and True), shown


def test_what_cannot_be_shown_or_done_is_a_page(browser: Browser, sample: Sample) -> None:
    """No job is 404, a deleted one a 410 that says how it ended, a wrong state 409, an unknown operation 422."""
    for path in ("/jobs/unknown", "/jobs/" + "x" * 300, "/jobs/%00", "/edit/unknown", "/edit/", "/live?job=%00"):
        response = browser.client.get(f"/ops{path}")
        assert response.status_code == 404, path
        assert "<main" in response.text, path
    for job_id in ("unknown", "%00", ""):
        assert browser.post(f"/operate/{job_id}", operation="cancel").status_code == 404
        assert browser.post(f"/edit/{job_id}", args="[]", kwargs="{}").status_code == 404
    for operation, status in (("cancel", 409), ("explode", 422)):
        assert browser.post(f"/operate/{sample.named['double']}", operation=operation).status_code == status
    for name in ("queued", "running", "double", "canceled"):
        assert browser.get(f"/edit/{sample.named[name]}").status_code == 409
        assert "/ops/edit/" not in browser.page(f"/jobs/{sample.named[name]}").source
    browser.posted("/bulk/run", ("id", sample.named["failed"]), operation="delete")
    response = browser.get(f"/jobs/{sample.named['failed']}")
    assert response.status_code == 410
    assert "failed" in HtmlPage(response.text).text


def test_a_job_shows_its_runs_duplicates_webhooks_and_followers(browser: Browser, sample: Sample) -> None:
    """A page has the runs in order, the lost one, too, each duplicate, the newest first, webhooks and followers."""
    shown = browser.json(f"/jobs/{sample.named['crashed']}")
    assert [(span["kind"], span["label"]) for span in shown["spans"] if span["kind"] != "waiting"] == [
        ("lost", "attempt 1 on west@web-3: lost"), ("completed", "attempt 2 on south@web-2: completed"),
    ]  # fmt: skip
    assert [step["name"] for step in shown["steps"]] == ["load"]
    source = browser.page(f"/jobs/{sample.named['crashed']}").source
    assert source.count('<rect class="lost"') == source.count('<rect class="completed"') == 1
    times = [span[name] for span in shown["spans"] for name in ("begin", "end")]
    assert times == sorted(times)
    shown = browser.json(f"/jobs/{sample.named['double']}")
    assert [each["arguments_differ"] for each in shown["duplicates"]] == [True, False, False, False]
    assert [each["url"] for each in shown["webhooks"]] == ["https://example.org/hooks/invoices"]
    assert shown["followers"] == []
    text = browser.page(f"/jobs/{sample.named['double']}").text
    assert "https://example.org/hooks/invoices" in text
    assert "differ in what does not count" in text
    for path in (f"/jobs/{sample.named['double']}", "/jobs"):
        assert "/ops/jobs?tag=a+%26+b" in browser.page(path).links, path
    first = submit(sample, "first", delay=8e9)
    follower = replace(submission("follower"), identity=first.identity)
    assert sample.ledger.follow(follower, follows_id=first.id) is not None
    for zone in ("Pacific/Kiritimati", "Etc/GMT+12"):  # it is due at the end of the calendar
        browser.client.cookies.set("onejob_zone", zone)
        assert f"/ops/jobs/{first.id}" in browser.page("/jobs/follower").links
        assert "/ops/jobs/follower" in browser.page(f"/jobs/{first.id}").links
        assert "follower" in browser.page("/jobs").source
    assert browser.json("/jobs/follower")["followed"]["id"] == first.id
    assert "result" not in browser.json(f"/jobs/{first.id}")["followers"][0]


def once() -> None: ...


def test_the_page_of_a_job_has_the_rule_of_its_task(browser: Browser, sample: Sample) -> None:
    """A job of a task of this app says by what its calls are equal."""
    task: Any = sample.app.task
    task(name="shop.once", base=onejob.Task, shared=False, unique_on=())(once)
    rules = {"shop.once": "the task alone", "shop.study_plan": "project", "shop.gone": None}
    for name, rule in rules.items():
        submit(sample, name, task=name)
        page = browser.page(f"/jobs/{name}")
        assert ("Calls are equal by" in page.text) == bool(rule)
        assert (f"equal by: {rule}." in page.text) == bool(rule)
        assert browser.json(f"/jobs/{name}")["job"]["unique_on"] == rule


def test_a_member_of_a_canvas_names_what_waits_for_it(browser: Browser, sample: Sample) -> None:
    """A job in a canvas shows what waits for it, keeps its arguments, and names the task that it replaced."""
    options = {"link": [{"task": "shop.daily_report"}], "chain": [{"task": "a"}, {"task": "b"}], "group_id": "group-1"}
    job = submit(sample, "member", options=json.dumps(options))
    shown = {part["kind"]: (part["tasks"], part["id"]) for part in browser.json("/jobs/member")["canvas"]}
    assert shown == {"link": (["shop.daily_report"], None), "chain": (["a", "b"], None), "group_id": ([], "group-1")}
    assert "chain: a, b" in browser.page("/jobs/member").text
    sample.ledger.fail(sample.start(job), ERROR, "E")
    page = browser.posted("/edit/member", args="[]", kwargs='{"project": "x"}', status=409)
    assert "member of a canvas" in page.text
    submit(sample, "replaced", payload=to_json(loads(PAYLOAD) | {"replaced_by": ["task-1"]}))
    assert "Replaced after task task-1" in browser.page("/jobs/replaced").text


def test_long_values_are_cut(browser: Browser, sample: Sample) -> None:
    """A long value is cut with a link that shows all of it, and JSON has all of it."""
    payload = {"task": "shop.study_plan", "args": ["x" * 2 * job_view.CUT + "THE END"], "kwargs": {}}
    submit(sample, "a/long?one", payload=json.dumps(payload))
    page = browser.page("/jobs/a%2Flong%3Fone")
    assert "THE END" not in page.source.partition("As code")[0]
    link = next(link for link in page.links if "all=1" in link)
    assert "THE END" in browser.client.get(link).text.partition("As code")[0]
    assert browser.json("/jobs/a%2Flong%3Fone")["job"]["arguments"]["args"][0].endswith("THE END")
    assert len(browser.json("/jobs", limit="20")["jobs"][0]["arguments"]) == 120


def test_typed_arguments_stay_typed(browser: Browser, sample: Sample) -> None:
    """A date among the arguments of a dead letter is a date in the job that is submitted from its form."""
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    job = sample.dead_letter(project=at)
    source = browser.page(f"/edit/{job.id}").source
    args, kwargs = re.findall(r"<textarea[^>]*>(.*?)</textarea>", source, re.DOTALL)
    edited = json.loads(unescape(kwargs)) | {"style": "long"}
    response = browser.post(f"/edit/{job.id}", args=args, kwargs=json.dumps(edited))
    new = sample.ledger.get(response.headers["location"].rpartition("/")[2])
    assert decode(new.payload).kwargs == {"project": at, "style": "long"}


def test_no_page_has_an_element_of_a_text(browser: Browser, sample: Sample) -> None:
    """Lists, also filtered, previews and the form of an edit have a hostile text as a text, and send it back."""
    attacked = attack(sample, WHOLE)
    failed, name = quote(attacked.jobs["failed"], safe=""), quote(attacked.name)
    filtered = (f"/jobs?task={name}&worker={name}", f"/dead?task={name}", f"/duplicates?by=identity&task={name}")
    pages = [browser.page(path) for path in (*PAGES, *filtered, f"/edit/{failed}")]
    forms = [form.fields for form in pages[PAGES.index("/dead")].forms if form.action == "/ops/bulk/preview"]
    pages += [HtmlPage(browser.post_pairs("/bulk/preview", [*each, ("operation", "redrive")]).text) for each in forms]

    pages.append(browser.posted(f"/edit/{failed}", args="[]", kwargs=attacked.name, status=422))
    for page in pages:
        assert not [each for each in page.elements if each & {"img", "iframe", "b", "i", "u", "onerror", "onload"}]
        assert [link for link in page.links if link.startswith("javascript:")] == []
    assert sum(" ".join(attacked.name.split()) in page.text for page in pages) > len(PAGES)
    assert attacked.name in unescape(pages[-1].source)


@for_each("args, kwargs, said", [
    ("[", "{}", "args is not valid JSON"), ("{}", "{}", "args must be a JSON array"), ("[]", "[]", "kwargs must be"),
    ("[]", "", "kwargs is not valid JSON"), ("[" * 5000, "{}", "args is not valid JSON"),
    ("[]", '{"project": NaN}', "NaN"),
    ("[]", '{"project": 4711}', "kwargs.project: Input should be a valid string"),
    ("[1, 2, 3, 4]", "{}", "argument"), ("[]", '{"unknown": 1}', "unknown"),
    ("[]", '{"project": {"__type__": "decimal", "__value__": "x"}}', "kwargs is not valid JSON"),
    ("[]", '{"project": {"__type__": "no-such-type", "__value__": 1}}', "kwargs is not valid JSON"),
])  # fmt: skip
def test_wrong_arguments_are_refused(browser: Browser, sample: Sample, args: str, kwargs: str, said: str) -> None:
    """Arguments that are no JSON, or the task refuses, over HTTP or at all, show the form again with the reason."""
    failed = sample.dead_letter(project=f"{args[:20]}{kwargs}")
    before = sample.jobs()
    page = browser.posted(f"/edit/{failed.id}", args=args, kwargs=kwargs, status=422)
    assert said in page.text
    assert args[:500] in page.text
    assert sample.jobs() == before


@on_every_store
def test_every_job_has_a_page(any_sample: Sample) -> None:
    """On every store each job has a page, and its JSON the ledger's state; over HTTP also one that looks escaped."""
    browser = browser_of(any_sample)
    for job in any_sample.jobs().values():
        browser.page(f"/jobs/{job.id}")
    for job_id in any_sample.named.values():
        assert browser.json(f"/jobs/{job_id}")["job"]["state"] == any_sample.ledger.get(job_id).state
    submit(any_sample, "%2F")
    with serving(mounted(any_sample.app, authorize=lambda _request: ("ann", "read"))) as served:
        found = httpx2.get(f"{served.url}/ops/jobs/%252F?format=json", timeout=60).json()
        assert found["job"]["id"] == "%2F"


SECRET = "s3cret-4711"  # noqa: S105 - what the tests look for
HIDDEN = "(hidden)"
PAGES = (
    "/", "/jobs", "/jobs?state=running", "/jobs?state=failed", "/duplicates", "/duplicates?by=submitter", "/dead",
    "/tasks", "/workers", "/schedules", "/audit", "/palette",
)  # fmt: skip


def hide(_job: JobRow, _name: str, _value: Any) -> Any:
    return HIDDEN


def hide_fields(_job: JobRow, name: str, value: Any) -> Any:
    """Hide all values, but keep their form where that is an object."""
    return dict.fromkeys(value, HIDDEN) if isinstance(value, dict) else f"{name} {HIDDEN}"


@pytest.fixture
def jobs(sample: Sample) -> dict[str, JobRow]:
    """Return jobs in every state with the secret in all their values, and in the values of their webhooks."""
    jobs = {}
    for state in ("queued", "running", "completed", "failed", "retrying"):
        job = sample.submit("shop.study_plan", project=f"{SECRET} {state}").job
        sample.submit("shop.study_plan", project=f"{SECRET} {state}", style=SECRET)
        sample.ledger.follow(webhook_submission(f"https://example.org/hook?{SECRET}", job), follows_id=job.id)
        jobs[state] = job
    error = json.dumps({"type": "ValueError", "message": f"no {SECRET}", "traceback": f"line 1\n{SECRET}"})
    for state in ("running", "completed", "failed", "retrying"):
        run = jobs[state] = sample.start(jobs[state])
        sample.ledger.report(run, json.dumps({"stage": SECRET, "done": 1, "total": 2}))
        sample.ledger.keep_step(run, "load", json.dumps({"found": SECRET}))
    sample.ledger.complete(jobs["completed"], json.dumps({"sent": SECRET}))
    (hook,) = sample.ledger.followers(jobs["completed"].id, limit=9)
    sample.ledger.fail(sample.start(hook), error, f"ValueError: no {SECRET}")
    sample.ledger.fail(jobs["failed"], error, f"ValueError: no {SECRET}")
    retried = jobs["retrying"]
    reason = f"ValueError: no {SECRET}; next attempt in 900 s"
    sample.ledger.retry(retried, NextRun.again(retried, delay=900.0, retries=1), error=error, reason=reason)
    note_publication(sample.ledger, jobs["queued"], f"ValueError: no queue for {SECRET}")
    return jobs


@pytest.fixture
def hidden(sample: Sample) -> Browser:
    """Return a browser that sees no values."""
    return browser_of(sample, redact=hide)


@for_each("redact", [hide, hide_fields])
def test_what_is_hidden_is_nowhere(sample: Sample, jobs: dict[str, JobRow], redact: Any) -> None:
    """With a hook no page in any format has a value of a job, or a hash with which its arguments could be guessed."""
    secrets = [SECRET, *(text for job in jobs.values() for text in (job.identity, job.fingerprint))]
    own = [f"/jobs/{job.id}" for job in jobs.values()]
    browser, plain = browser_of(sample, redact=redact), browser_of(sample)
    for path in (*PAGES, *own):
        for form in ("html", "json", "csv"):
            response = browser.get(path + ("&" if "?" in path else "?") + f"format={form}")
            assert response.status_code in {200, 422}
            assert not [text for text in secrets if text in response.text], (path, form)
    for path in ("/jobs", "/dead", *own):
        assert HIDDEN in browser.page(path).source
        assert SECRET in plain.page(path).source, "the law is about the hook"
    for operation in ("cancel", "redrive", "delete"):
        fields = [("id", job.id) for job in jobs.values()]
        assert SECRET not in browser.post("/bulk/preview", *fields, operation=operation).text


def test_the_hook_gets_each_value(sample: Sample, jobs: dict[str, JobRow], hidden: Browser) -> None:
    """The hook gets the job with its values, and the name of each, false ones, too; if it raises, no value is shown."""
    seen: dict[tuple[str, str], Any] = {}

    def note(job: onejob.Job, name: str, value: Any) -> Any:
        assert isinstance(job, onejob.Job)
        seen[job.id, name] = value
        return value

    def fail(_job: onejob.Job, _name: str, value: Any) -> Any:
        raise ValueError(value)

    browser = browser_of(sample, redact=note)
    for job in jobs.values():
        assert SECRET in browser.page(f"/jobs/{job.id}").source
    failed, completed = jobs["failed"].id, jobs["completed"].id
    assert seen[failed, "arguments"] == {"args": [], "kwargs": {"project": f"{SECRET} failed"}}
    assert seen[failed, "progress"]["stage"] == seen[completed, "result"]["sent"] == SECRET
    assert seen[failed, "step load"] == {"found": SECRET}
    assert seen[failed, "error"]["message"] == f"no {SECRET}"
    assert SECRET in seen[failed, "reason"]
    shown = browser_of(sample, redact=lambda *_: None).json(f"/jobs/{failed}")
    assert (shown["job"]["error"], shown["job"]["reason"]) == (None, "")
    empty: tuple[Any, ...] = (False, 0, "", [], {})
    for value in empty:
        job = sample.submit("shop.study_plan", project=f"empty {value!r}").job
        sample.ledger.complete(sample.start(job), json.dumps(value))
        assert hidden.json(f"/jobs/{job.id}")["job"]["result"] == HIDDEN
    response = browser_of(sample, redact=fail).get(f"/jobs/{failed}")
    assert response.status_code == 500
    assert SECRET not in response.text


def test_hidden_values_cannot_be_searched_edited_or_copied(
    sample: Sample, hidden: Browser, jobs: dict[str, JobRow]
) -> None:
    """With a hook no values are searched for, guessed, edited or copied; a group of dead letters is redriven still."""
    failed = jobs["failed"].id
    assert hidden.get("/duplicates", by="identity").status_code == 422
    guess = json.dumps({"project": f"{SECRET} queued"})
    assert hidden.get("/duplicates", task="shop.study_plan", arguments=guess).status_code == 403
    for name in ("argument", "error", "identity"):
        assert hidden.get("/jobs", **{name: SECRET}).status_code == 403
        fields = {"operation": "delete", "scope": "matching", "filter": f"{name}={SECRET}"}
        assert hidden.post("/bulk/preview", **fields).status_code == 403
        assert hidden.post("/bulk/run", **fields).status_code == 403
    assert hidden.get("/find", q=SECRET).headers["location"] == f"/ops/jobs/{SECRET}"
    page, shown = hidden.page(f"/jobs/{failed}"), hidden.json(f"/jobs/{failed}")
    assert "As code" not in page.source
    assert f"/ops/edit/{failed}" not in page.links
    assert shown["job"]["as_python"] is None
    assert shown["job"]["as_curl"] is None
    assert shown["can_edit"] is False
    assert hidden.get(f"/edit/{failed}").status_code == 403
    assert hidden.post(f"/edit/{failed}", args="[]", kwargs='{"project": "x"}').status_code == 403
    assert sample.ledger.get(failed).state == "failed"
    groups = hidden.json("/dead")["groups"]
    index = next(number for number, group in enumerate(groups) if group["job_ids"] == [failed])
    assert groups[index]["pattern"] is None
    forms = [form for form in hidden.page("/dead").forms if form.action == "/ops/bulk/preview"]
    preview = HtmlPage(hidden.post_pairs("/bulk/preview", [*forms[index].fields, ("operation", "redrive")]).text)
    assert "1 job will be redriven" in preview.text
    hidden.submit(preview, "/bulk/run")
    assert sample.ledger.get(failed).state == "queued"
