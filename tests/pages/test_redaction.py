"""The hook that decides which values are shown: what it hides is on no page, and cannot be guessed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from onejob.ledger.ledger import NextRun
from onejob.ledger.publication import note_publication
from onejob.webhooks.job import webhook_submission
from tests.cases import for_each
from tests.pages.browser import browser_of
from tests.pages.html_page import HtmlPage

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from tests.pages.browser import Browser
    from tests.pages.sample import Sample

SECRET = "s3cret-4711"  # noqa: S105 - what the tests look for
HIDDEN = "(hidden)"
PAGES = (
    "/", "/jobs", "/jobs?state=running", "/jobs?state=failed", "/duplicates", "/duplicates?by=submitter", "/dead",
    "/tasks", "/workers", "/audit", "/palette",
)  # fmt: skip


def hide(_job: Job, _name: str, _value: Any) -> Any:
    return HIDDEN


def hide_fields(_job: Job, name: str, value: Any) -> Any:
    """Hide all values, but keep their form where that is an object."""
    return dict.fromkeys(value, HIDDEN) if isinstance(value, dict) else f"{name} {HIDDEN}"


@pytest.fixture
def jobs(sample: Sample) -> dict[str, Job]:
    """Return jobs in every state with the secret in all their values."""
    jobs = {}
    for state in ("queued", "running", "completed", "failed", "retrying"):
        job = sample.submit("shop.study_plan", project=f"{SECRET} {state}").job
        sample.submit("shop.study_plan", project=f"{SECRET} {state}", style=SECRET)
        sample.ledger.follow(webhook_submission("https://example.org/hook", job), follows_id=job.id)
        jobs[state] = job
    error = json.dumps({"type": "ValueError", "message": f"no {SECRET}", "traceback": f"line 1\n{SECRET}"})
    for state in ("running", "completed", "failed", "retrying"):
        run = jobs[state] = sample.start(jobs[state])
        sample.ledger.report(run, json.dumps({"stage": SECRET, "done": 1, "total": 2}))
        sample.ledger.keep_step(run, "load", json.dumps({"found": SECRET}))
    sample.ledger.complete(jobs["completed"], json.dumps({"sent": SECRET}))
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
def test_what_is_hidden_is_nowhere(sample: Sample, jobs: dict[str, Job], redact: Any) -> None:
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


def test_the_hook_gets_each_value(sample: Sample, jobs: dict[str, Job]) -> None:
    """The hook gets the job with its values, and the name of each."""
    seen: dict[tuple[str, str], Any] = {}

    def note(job: Job, name: str, value: Any) -> Any:
        seen[job.id, name] = value
        return value

    browser = browser_of(sample, redact=note)
    for job in jobs.values():
        assert SECRET in browser.page(f"/jobs/{job.id}").source
    failed, completed = jobs["failed"].id, jobs["completed"].id
    assert seen[failed, "arguments"] == {"args": [], "kwargs": {"project": f"{SECRET} failed"}}
    assert seen[failed, "progress"]["stage"] == seen[completed, "result"]["sent"] == SECRET
    assert seen[failed, "step load"] == {"found": SECRET}
    assert seen[failed, "error"]["message"] == f"no {SECRET}"
    assert SECRET in seen[failed, "reason"]


@for_each("value", [False, 0, "", [], {}])
def test_empty_values_are_hidden_too(sample: Sample, hidden: Browser, value: Any) -> None:
    """The hook decides about every result, also about one that is false."""
    job = sample.submit("shop.study_plan", project=f"empty {value!r}").job
    sample.ledger.complete(sample.start(job), json.dumps(value))
    assert hidden.json(f"/jobs/{job.id}")["job"]["result"] == HIDDEN


def test_hidden_values_cannot_be_searched_edited_or_copied(
    sample: Sample, hidden: Browser, jobs: dict[str, Job]
) -> None:
    """With a hook no values are searched for, guessed, edited or copied."""
    failed = jobs["failed"].id
    assert hidden.get("/duplicates", by="identity").status_code == 422
    guess = json.dumps({"project": f"{SECRET} queued"})
    assert hidden.get("/duplicates", task="shop.study_plan", arguments=guess).status_code == 403
    for name in ("argument", "reason", "identity"):
        assert hidden.get("/jobs", **{name: SECRET}).status_code == 403
        fields = {"operation": "delete", "scope": "matching", "filter": f"{name}={SECRET}"}
        assert hidden.post("/bulk/preview", **fields).status_code == 403
        assert hidden.post("/bulk/run", **fields).status_code == 403
    assert hidden.get("/find", q=SECRET).headers["location"] == f"/ops/jobs/{SECRET}"
    page, shown = hidden.page(f"/jobs/{failed}"), hidden.json(f"/jobs/{failed}")
    assert "As code" not in page.source
    assert f"/ops/edit/{failed}" not in page.links
    assert (shown["job"]["as_python"], shown["job"]["as_curl"], shown["can_edit"]) == (None, None, False)
    assert hidden.get(f"/edit/{failed}").status_code == 403
    assert hidden.post(f"/edit/{failed}", args="[]", kwargs='{"project": "x"}').status_code == 403
    assert sample.ledger.get(failed).state == "failed"


def test_a_hidden_group_is_operated(sample: Sample, hidden: Browser, jobs: dict[str, Job]) -> None:
    """A group of dead letters whose message is hidden is redriven as one that is shown."""
    groups = hidden.json("/dead")["groups"]
    index = next(number for number, group in enumerate(groups) if group["job_ids"] == [jobs["failed"].id])
    assert groups[index]["pattern"] is None
    forms = [form for form in hidden.page("/dead").forms if form.action == "/ops/bulk/preview"]
    preview = HtmlPage(hidden.post_pairs("/bulk/preview", [*forms[index].fields, ("operation", "redrive")]).text)
    assert "1 job will be redriven" in preview.text
    hidden.submit(preview, "/bulk/run")
    assert sample.ledger.get(jobs["failed"].id).state == "queued"


def test_a_hook_that_fails_hides_everything(sample: Sample, jobs: dict[str, Job]) -> None:
    """When the hook raises, the page is an error that shows no value."""

    def fail(_job: Job, _name: str, value: Any) -> Any:
        raise ValueError(value)

    response = browser_of(sample, redact=fail).get(f"/jobs/{jobs['failed'].id}")
    assert (response.status_code, SECRET in response.text) == (500, False)
