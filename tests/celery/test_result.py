"""An AsyncResult shows the ledger's state in Celery's terms."""

from __future__ import annotations

import pickle
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from celery import chord, group, states
from celery.exceptions import TaskRevokedError, TimeoutError  # noqa: A004 - the name that users catch
from celery.result import AsyncResult as CeleryResult

from onejob import InvalidPayloadError, JobFailedError, JobNotFoundError, JobPurgedError, Outcome, State
from onejob.celery.app_state import app_state_of
from tests.celery.app import build
from tests.celery.harness import PATIENCE, on_every_store

if TYPE_CHECKING:
    from tests.celery.harness import House


@on_every_store("shared")
@pytest.mark.parametrize("value", [0, False, "", [], {}, None, 0.0], ids=repr)
def test_falsy_results_are_returned_unchanged(shared: House, value: Any) -> None:
    """A falsy result is returned unchanged, on the first read and on every later one."""
    result = shared.echo.delay(value)
    got = result.get(PATIENCE)
    later = shared.echo.AsyncResult(result.id).get(PATIENCE)
    assert (got, type(got)) == (later, type(later)) == (value, type(value))
    assert result.successful()


def test_states_are_celerys(shared: House) -> None:
    """In each state a job shows the corresponding Celery state, and `ready` agrees with it."""
    result = shared.play.apply_async(("life", ["hold:first>retry:0.3", "hold:second"]), countdown=0.1)
    assert (result.state, result.ready(), result.info) == (states.PENDING, False, None)
    shared.await_mark("life")
    assert (result.state, result.ready()) == (states.STARTED, False)
    shared.open("first")
    shared.await_state(result, State.RETRYING, State.RUNNING)
    shared.await_mark("life", times=2)
    shared.open("second")
    assert result.get(PATIENCE) == "life"
    assert (result.state, result.status, result.ready(), result.info) == (states.SUCCESS, states.SUCCESS, True, "life")
    assert result.date_done is not None
    waiting = shared.play.delay("life", ["retry:3600"])
    shared.await_state(waiting, State.RETRYING)
    assert (waiting.state, waiting.ready()) == (states.RETRY, False)
    waiting.revoke()
    assert (waiting.state, waiting.ready(), waiting.successful()) == (states.REVOKED, True, False)
    assert isinstance(waiting.info, TaskRevokedError)


def test_a_failure_is_raised_as_itself(shared: House) -> None:
    """A failure whose class this process has loaded is raised as that class, with its arguments and its traceback."""
    result = shared.play.delay("lookup", ["lookup:where?"])
    with pytest.raises(LookupError) as raised:
        result.get(PATIENCE)
    assert raised.value.args == ("where?",)
    assert isinstance(result.get(propagate=False), LookupError)
    assert (result.failed(), result.state) == (True, states.FAILURE)
    assert "act_raise" in str(result.traceback)


def test_a_failure_of_an_unknown_class_is_a_job_failed_error(shared: House) -> None:
    """A failure whose class this process has not loaded is raised as `JobFailedError` with its name and message."""
    result = shared.strange.delay("strange")
    with pytest.raises(JobFailedError, match=r"StrangeError: how strange") as raised:
        result.get(PATIENCE)
    assert (raised.value.job_id, raised.value.message) == (result.id, "how strange")


def test_a_result_that_cannot_be_stored_fails_the_job(shared: House) -> None:
    """A body that returns what has no JSON has failed: after one run, with the reason, and blocking nothing."""
    result = shared.play.delay("unstorable", ["unstorable"])
    with pytest.raises(InvalidPayloadError, match="the result"):
        result.get(PATIENCE)
    shared.assert_ran(result, State.FAILED, "unstorable", 1)


@on_every_store("shared")
def test_a_purged_job_is_not_awaited(shared: House) -> None:
    """The result of a purged job has its final state, and `get` raises `JobPurgedError` with state and times."""
    done, failed = shared.echo.delay("kept"), shared.play.delay("purged", ["raise"])
    for result in (done, failed):
        result.get(PATIENCE, propagate=False)
    shared.await_rest()
    purged = shared.ledger.purge([done.id, failed.id])
    assert set(purged) == {done.id, failed.id}
    shared.app.backend.forget(done.id)
    shared.app.backend.forget(failed.id)
    for result, state in ((done, states.SUCCESS), (failed, states.FAILURE)):
        later = shared.play.AsyncResult(result.id)
        assert (later.ready(), later.state) == (True, state)
        with pytest.raises(JobPurgedError, match=f"was {_our_name(state)} at ") as caught:
            later.get()
        assert caught.value.purged_at > caught.value.finished_at


def _our_name(state: str) -> str:
    """Return our name of a final state of Celery."""
    return {states.SUCCESS: "completed", states.FAILURE: "failed"}[state]


def test_the_wait_for_an_unknown_job_is_limited(shared: House) -> None:
    """An id that the ledger never had is pending, as in Celery, and `get` with a timeout raises `TimeoutError`."""
    unknown = shared.play.AsyncResult(str(uuid.uuid4()))
    assert (unknown.state, unknown.ready()) == (states.PENDING, False)
    with pytest.raises(TimeoutError, match=r"PENDING after 0\.1 s"):
        unknown.get(0.1)


def test_the_wait_for_a_result_is_limited(shared: House) -> None:
    """`get` with a timeout raises Celery's `TimeoutError`, and the job continues."""
    result = shared.play.delay("timeout", ["hold"])
    shared.await_mark("timeout")
    with pytest.raises(TimeoutError, match=r"running|STARTED"):
        result.get(timeout=0.1)
    with pytest.raises(TimeoutError):
        result.get(timeout=0)
    shared.open("timeout")
    assert result.get(timeout=PATIENCE) == "timeout"


def test_a_submission_has_its_outcome(shared: House) -> None:
    """A submission's result has its outcome and the job that answers; a result that was looked up has no outcome."""
    first = shared.play.delay("outcome", ["hold"])
    second = shared.play.delay("outcome", ["hold"])
    follower = shared.play.apply_async(("outcome", ["hold"]), task_id=str(uuid.uuid4()))
    assert [r.outcome for r in (first, second, follower)] == [Outcome.ADMITTED, Outcome.ATTACHED, Outcome.ATTACHED]
    assert [r.job.id for r in (first, second, follower)] == [first.id] * 3
    assert follower.id != first.id == second.id
    found = shared.play.AsyncResult(first.id)
    assert (found.outcome, found.job.id, found.exists()) == (None, first.id, True)
    shared.open("outcome")
    assert [r.get(PATIENCE) for r in (first, second, follower, found)] == ["outcome"] * 4


def test_an_unknown_id_is_pending(shared: House) -> None:
    """A result of an id that no job has is pending, as in Celery; its job raises."""
    unknown = shared.play.AsyncResult("unknown")
    assert (unknown.state, unknown.exists(), unknown.ready()) == (states.PENDING, False, False)
    with pytest.raises(JobNotFoundError):
        _ = unknown.job
    with pytest.raises(TimeoutError):
        unknown.get(timeout=0.05)


def test_a_result_of_a_plain_task_comes_from_the_backend(shared: House) -> None:
    """For an id without a job, the app's result backend is read."""
    sent = shared.app.send_task("plain", ("elsewhere",))
    assert sent.get(timeout=PATIENCE) == ["elsewhere"]
    assert shared.play.AsyncResult(sent.id).get(PATIENCE) == ["elsewhere"]


def test_the_result_backend_knows_a_success_too(shared: House) -> None:
    """With a result backend, Celery's own AsyncResult sees the result of a job."""
    done = shared.play.delay("backend", ["return"])
    assert CeleryResult(done.id, app=shared.app).get(timeout=PATIENCE) == "backend"


@pytest.mark.parametrize("end", ["raise", "reject", pytest.param("kill", marks=pytest.mark.deep)])
def test_the_result_backend_knows_a_failure_too(shared: House, end: str) -> None:
    """With a result backend, Celery's own AsyncResult sees that a job failed, for any reason."""
    failed = shared.play.delay(f"backend-{end}", [end])
    theirs: CeleryResult[Any] = CeleryResult(failed.id, app=shared.app)
    assert theirs.get(timeout=PATIENCE, propagate=False) is not None
    assert theirs.state == states.FAILURE


def test_an_ignored_result_is_in_the_ledger(shared: House) -> None:
    """`ignore_result` keeps a result out of the result backend; the ledger has it all the same."""
    result = shared.play_silent.delay("silent", ["return"])
    assert result.get(PATIENCE) == "silent"
    assert shared.app.backend.get_task_meta(result.id)["status"] == states.PENDING


def test_no_body_waits_for_a_result(shared: House) -> None:
    """Waiting for a job inside of a body raises, as in Celery, before it can block a worker for ever."""
    result = shared.waits.delay("blocked", "unknown")
    with pytest.raises(RuntimeError, match=r"Never call result\.get"):
        result.get(PATIENCE)


def test_results_can_be_forgotten_and_dropped(shared: House) -> None:
    """`forget` and the deletion of a result object remove nothing from the ledger."""
    result = shared.play.delay("forget", ["return"])
    assert result.get(PATIENCE) == "forget"
    result.forget()
    job_id = result.id
    del result
    assert shared.play.AsyncResult(job_id).get(PATIENCE) == "forget"


def test_the_job_of_a_result_has_values(shared: House) -> None:
    """Progress, result and error of the job of a result are values."""
    completed, failed = shared.play.delay("values", ["progress"]), shared.play.delay("raises", ["raise"])
    shared.await_mark("values", "half")
    assert completed.job.progress == {"done": 1, "total": 2, "stage": "half"}
    assert (completed.job.result, completed.job.error) == (None, None)
    shared.open("values")
    assert completed.get(PATIENCE) == completed.job.result == "values"
    shared.await_state(failed, State.FAILED)
    assert (failed.job.error["type"], failed.job.error["message"]) == ("ValueError", "raises")


def test_results_need_no_result_backend(house: House) -> None:
    """Without a result backend `app.AsyncResult` reads the ledger."""
    app = build(house.config | {"result_backend": None})
    result = app.tasks["play"].apply_async(("ledger", ["return"]), countdown=3600)
    found: Any = app.AsyncResult(result.id)
    assert (found.state, found.job.id, app.AsyncResult("unknown").state) == ("PENDING", result.id, "PENDING")
    result.revoke()
    assert (found.state, type(pickle.loads(pickle.dumps(found)))) == ("REVOKED", type(found))  # noqa: S301 - our own
    app.close()


def test_a_result_backend_stays_celerys(house: House) -> None:
    """With a result backend `app.AsyncResult` is Celery's own."""
    assert not isinstance(house.app.AsyncResult("any"), type(house.play.AsyncResult("any")))


def test_a_chord_needs_a_result_backend(house: House) -> None:
    """A chord without a result backend raises an error that says so, and nothing is submitted."""
    app = build(house.config | {"result_backend": None})
    play = app.tasks["play"]
    header, body = [play.si(f"member-{number}", ["return"]) for number in range(2)], play.si("body", ["return"])
    for canvas in (chord(header, body), group(header) | body):
        with pytest.raises(NotImplementedError, match="requires a result backend to be configured"):
            canvas.apply_async()
    assert app_state_of(app).ledger.find(house.everything()) == []
    app.close()
