"""Jobs run in the process of the test, when it says so and on its clock, through the code of a worker."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import chain, chord, current_app, group

import onejob
from onejob.testing import Jobs, isolated
from tests.testing import shop


def test_nothing_runs_before_the_test_says_so(jobs: Jobs) -> None:
    """A submission is in the ledger, and runs with `run_next` or `run_all`; then its result is there."""
    first, second = shop.double.delay(1), shop.double.delay(2)
    assert (first.job.state, shop.calls) == (onejob.State.QUEUED, [])
    assert jobs.run_next()
    assert (first.get(timeout=0), second.job.state) == (2, onejob.State.QUEUED)
    assert jobs.run_all() == 1
    assert second.get(timeout=0) == 4
    assert not jobs.run_next()


def test_assertions_compare_arguments_by_name(jobs: Jobs) -> None:
    """`f(1)` and `f(a=1)` are equal, defaults count, and an outcome and a number of times narrow it."""
    for note in ("", "again"):
        shop.invoice.delay(7, note=note)
    (admitted,) = jobs.assert_submitted(shop.invoice, order_id=7, note="")
    assert admitted.outcome is onejob.Outcome.ADMITTED
    jobs.assert_submitted(shop.invoice, 7, "again", outcome="attached")
    jobs.assert_submitted(shop.invoice, times=2)
    jobs.assert_not_submitted(shop.invoice, 8)
    jobs.assert_not_submitted(shop.double)
    jobs.assert_not_submitted(shop.invoice, 7, outcome="attached")
    assert [each.kwargs for each in jobs.submitted(shop.invoice)] == [{"note": ""}, {"note": "again"}]


def test_the_client_operates_on_the_jobs_of_the_test(jobs: Jobs) -> None:
    """`jobs.client` finds the jobs of the isolated app, changes them, and shows what `jobs.get` shows."""
    result = shop.double.apply_async((1,), countdown=60)
    assert [job.id for job in jobs.client.find(state="queued").jobs] == [result.id]
    assert jobs.client.run_now(result.id) == jobs.get(result.id) == result.job
    jobs.run_all()
    assert jobs.get(result.id).result == 2
    assert result.job.finished_at is not None


def test_a_failed_assertion_names_the_nearest_submission(jobs: Jobs) -> None:
    """The message has the expectation, the smallest difference, and what was submitted."""
    shop.invoice.delay(8, note="call first")
    shop.invoice.delay(7, note="x")
    with pytest.raises(AssertionError) as caught:
        jobs.assert_submitted(shop.invoice, 7, "y", outcome="admitted")
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("was submitted 0 times with the outcome admitted, expected 1")
    assert lines[1] == "nearest: note is 'x', expected 'y'"
    assert lines[2:4] == ["submitted:", f"  {shop.invoice.name}(8, note='call first') admitted, job " + lines[3][-36:]]
    with pytest.raises(AssertionError, match=r"double was submitted 0 times, expected 1\nsubmitted:"):
        jobs.assert_submitted(shop.double)
    with pytest.raises(onejob.errors.ConfigurationError, match="one of admitted"):
        jobs.assert_submitted(shop.double, outcome="accepted")
    with pytest.raises(onejob.errors.ConfigurationError, match="no ledger"):
        jobs.assert_submitted(shop.plain)


def test_within_a_run_its_app_is_the_current_one(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body finds its own app as Celery's current one, as in its worker, and the test finds what it had before."""
    found, before = [], current_app.main
    monkeypatch.setattr(shop, "called", lambda *_: found.append(current_app.main))
    jobs.run_job(shop.plan, "x", 0)
    assert (found, current_app.main) == ([shop.app.main] * 2, before)
    assert before != shop.app.main


def test_countdowns_and_etas_become_due_on_the_clock(jobs: Jobs) -> None:
    """A delayed job runs when the test has travelled that far, and not a second before."""
    delayed = shop.double.apply_async((1,), countdown=3600)
    at = shop.double.apply_async((2,), eta=datetime.now(UTC) + timedelta(days=2))
    jobs.travel(minutes=59)
    assert jobs.run_all() == 0
    jobs.travel(minutes=1)
    assert (jobs.run_all(), delayed.get(timeout=0)) == (1, 2)
    jobs.travel(days=2)
    jobs.run_all()
    assert at.get(timeout=0) == 4
    with pytest.raises(onejob.errors.ConfigurationError, match="does not go back"):
        jobs.travel(-1)


def test_uniqueness_windows_and_retentions_end(jobs: Jobs) -> None:
    """A result is replayed within its window, the task runs again after it, and ended jobs are purged."""
    first = shop.report.delay("monday")
    jobs.run_all()
    jobs.travel(minutes=9)
    assert shop.report.delay("monday").outcome == "replayed"
    jobs.travel(minutes=2)
    assert shop.report.delay("monday").outcome == "admitted"
    jobs.travel(days=2)
    jobs.run_all()
    with pytest.raises(onejob.errors.JobPurgedError):
        jobs.get(first.id)


def test_canvases_go_on(jobs: Jobs) -> None:
    """Chains, groups and chords, with tasks of Celery's own among them, run to their ends."""
    chained = chain(shop.double.s(1), shop.plain.s(), shop.double.s())()
    several = group(shop.double.s(number) for number in (1, 2, 3))()
    summed = chord([shop.double.s(10), shop.double.s(20)], shop.total.s())()
    jobs.run_all()
    assert chained.get(timeout=0) == 4
    assert several.get(timeout=0) == [2, 4, 6]
    assert summed.get(timeout=0) == 60


def test_eager_jobs_keep_their_promises(jobs: Jobs) -> None:
    """In the eager mode a job has run when `delay` returns, and an equal one within its window is replayed."""
    with jobs.eager():
        first, again = shop.report.delay("monday"), shop.report.delay("monday")
        assert (first.outcome, again.outcome, again.get(timeout=0)) == ("admitted", "replayed", "report of monday")
        assert shop.calls == ["monday"]
        inner = shop.parent.delay(4)
        assert jobs.get(inner.get(timeout=0)).result == 8
        failed = shop.fail.delay("no")
        assert failed.job.error is not None
        assert failed.job.error.message == "no"
        assert shop.double.apply_async((1,), countdown=5).job.state is onejob.State.QUEUED
    assert shop.double.delay(3).job.state is onejob.State.QUEUED


def test_an_eager_app_is_eager_with_a_ledger(celery_app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `task_always_eager` in its settings, an isolated app runs jobs at once, and not past the ledger."""
    monkeypatch.setitem(celery_app.conf.changes, "task_always_eager", value=True)
    with isolated(celery_app) as jobs:
        outcomes = [shop.report.delay("tuesday").outcome for _ in range(2)]
        assert outcomes == ["admitted", "replayed"]
        assert jobs.is_eager


def test_an_unavailable_store_raises_where_it_does_in_production(jobs: Jobs) -> None:
    """Submissions raise `StoreUnavailableError`; a worker drops what it cannot claim, and the job runs later."""
    result = shop.double.delay(5)
    with jobs.store_unavailable():
        with pytest.raises(onejob.StoreUnavailableError):
            shop.double.delay(6)
        jobs.run_all()
    assert result.job.state is onejob.State.QUEUED
    jobs.travel(seconds=31)
    jobs.run_all()
    assert result.get(timeout=0) == 10


def test_webhooks_are_recorded_and_not_sent(celery_app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a job with a webhook is an event that the test can look at."""
    secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]
    monkeypatch.setitem(celery_app.conf, "onejob_webhook_secrets", secrets)
    with isolated(celery_app) as jobs:
        result = shop.double.apply_async((5,), webhook_url="https://hooks.example.com/jobs")
        jobs.run_all()
        ((url, event),) = jobs.webhooks
    assert url == "https://hooks.example.com/jobs"
    assert (event["type"], event["subject"], event["data"]["result"]) == ("onejob.job.completed", result.id, 10)


def test_jobs_without_an_end_are_stopped(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that submits itself for ever ends `run_all` with an error instead of a hanging test."""
    monkeypatch.setattr("onejob.testing.worker.RUN_LIMIT", 5)
    shop.endless.delay(1)
    with pytest.raises(onejob.OneJobError, match="submit each other"):
        jobs.run_all()


def test_a_message_of_a_task_that_the_app_does_not_have_is_explained(jobs: Jobs) -> None:
    """A message of an unknown task names the task, and what is missing."""
    shop.app.send_task("shop.unknown")
    with pytest.raises(onejob.OneJobError, match=r"'shop\.unknown' is due.*import the module"):
        jobs.run_all()
