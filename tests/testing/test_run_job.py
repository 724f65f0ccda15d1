"""A body runs in the process of the test, with a job of its own."""

import pytest

import onejob
from onejob.testing import Jobs, isolated, run_job
from tests.cases import for_each
from tests.testing import payments, shop


@pytest.fixture(autouse=True)
def _fresh_calls() -> None:
    shop.calls.clear()


def test_without_any_fixture_a_body_has_its_job() -> None:
    """`run_job` needs no fixture, no broker and no server: the body has its `current_job()`, and its result is JSON."""
    run = run_job(shop.plan, "physics", cards=1)
    assert run.result["cards"] == ["outline of physics 0"]
    assert run.result["attempt"] == 1
    assert run.result["key"].startswith("onejob-")
    assert run.state is onejob.State.COMPLETED
    assert [each["stage"] for each in run.progress] == ["outline", "cards"]
    assert run.steps == {"outline": "outline of physics", "cards": ["outline of physics 0"]}


def test_a_later_attempt_gets_the_kept_steps() -> None:
    """With `steps` the body is the second attempt and gets their values; `attempt` and `retries` are as given."""
    run = run_job(shop.plan, "physics", cards=1, steps={"outline": "kept"})
    assert run.result["attempt"] == 2
    assert run.result["cards"] == ["kept 0"]
    assert shop.calls == ["cards"]
    assert run_job(shop.plan, "physics", attempt=4).result["attempt"] == 4
    assert run_job(shop.fetch, "u", retries=2).result == 2


def test_a_canceled_body_stops_at_its_next_report() -> None:
    """A body whose cancellation is requested stops at its first progress, and its job is canceled."""
    run = run_job(shop.plan, "physics", canceled=True)
    assert run.state is onejob.State.CANCELED
    assert shop.calls == []
    with pytest.raises(onejob.OneJobError, match="no result: its job is canceled"):
        _ = run.result


def test_a_retry_shows_its_countdown_and_its_cause() -> None:
    """A body that asks for a retry leaves a retrying job, the countdown, and the exception that caused it."""
    run = run_job(shop.fetch, "https://example.com", retries=1)
    assert run.state == onejob.State.RETRYING
    assert run.retried
    assert run.retry_in == 120
    assert isinstance(run.error, shop.GatewayDownError)
    with pytest.raises(onejob.OneJobError, match="its job is retrying, to run again in 120 s"):
        _ = run.result


@for_each("eager", [False, True])
def test_a_failure_is_raised_by_the_result(eager: bool) -> None:
    """The error of a failed run is kept as it was raised, and `result` raises it, so that no test overlooks it."""
    with isolated(shop.app, eager=eager):
        run = run_job(shop.fail, "no such order")
    assert run.state is onejob.State.FAILED
    assert isinstance(run.error, ValueError)
    with pytest.raises(ValueError, match="no such order"):
        _ = run.result


def test_arguments_and_results_pass_through_json() -> None:
    """What a real job cannot store, a tested one cannot either: arguments are refused, and a result fails the job."""
    with pytest.raises(onejob.errors.InvalidPayloadError, match="no canonical text"):
        run_job(shop.plan, object())
    with pytest.raises(onejob.errors.InvalidArgumentsError, match="does not accept"):
        run_job(shop.invoice)
    run = run_job(shop.unstorable)
    assert isinstance(run.error, onejob.errors.InvalidPayloadError)


def test_a_run_is_nobodys_duplicate() -> None:
    """A body runs although an equal job is live, or has just succeeded; what it submits is a job as any other."""
    with isolated(shop.app) as jobs:
        live = shop.invoice.delay(7)
        assert run_job(shop.invoice, 7).result == "invoice 7"
        assert run_job(shop.report, "monday").result == run_job(shop.report, "monday").result
        assert live.job.state is onejob.State.QUEUED
        assert [each.job_id for each in jobs.submitted()] == [live.id]
        inner = jobs.run_job(shop.parent, 4).result
        assert jobs.assert_submitted(shop.double, 4)[0].job_id == inner
        jobs.run_all()
        assert jobs.get(inner).result == 8


def test_options_that_cannot_be_are_refused(jobs: Jobs) -> None:
    """Steps of a first attempt, attempt 0, a task of Celery's own and one of another app are refused with a remedy."""
    with pytest.raises(onejob.errors.ConfigurationError, match="only an earlier one keeps steps"):
        jobs.run_job(shop.plan, "physics", attempt=1, steps={"outline": 1})
    with pytest.raises(onejob.errors.ConfigurationError, match="count from 1"):
        jobs.run_job(shop.plan, "physics", attempt=0)
    with pytest.raises(onejob.errors.ConfigurationError, match=r"base=onejob\.Task"):
        jobs.run_job(shop.plain, 1)
    with pytest.raises(onejob.errors.ConfigurationError, match=r"of app 'payments'.*isolated app 'testing_shop'"):
        jobs.run_job(payments.charge_bare, "ann")
    with pytest.raises(onejob.errors.ConfigurationError, match=r"crash_matrix runs a task that has base=onejob\.Task"):
        jobs.crash_matrix(shop.plain, 1, effects=None)
