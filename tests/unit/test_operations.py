"""The operations that the HTTP API, the command line and the dashboard share, and resubmission."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

import onejob
from onejob.celery.app_state import app_state_of
from onejob.celery.control import resubmit
from onejob.celery.message import decode
from onejob.celery.operations import Operation, operate
from onejob.errors import (
    DuplicateJobError,
    InvalidArgumentsError,
    JobEndedError,
    JobNotEndedError,
    JobNotFoundError,
    NoDeadLetterError,
    NotResubmittableError,
    NotWaitingError,
    OneJobError,
)
from onejob.jobs.lifecycle import FINAL, State
from onejob.jobs.model import Cancel, Outcome
from onejob.jobs.records import Query
from tests.http.shop import build

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery

    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger

ORIGIN = "over HTTP by ops"
ERROR = '{"type": "E", "message": "", "traceback": ""}'
REFUSALS: dict[Operation, type[OneJobError]] = {
    Operation.CANCEL: JobEndedError,
    Operation.FORCE_CANCEL: JobEndedError,
    Operation.RUN_NOW: NotWaitingError,
    Operation.REDRIVE: NoDeadLetterError,
    Operation.DELETE: JobNotEndedError,
}


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Celery]:
    """Return an app on SQLite."""
    app = build(f"sqlite:///{tmp_path / 'ledger.db'}")
    yield app
    app_state_of(app).ledger.close()


@pytest.fixture
def ledger(app: Celery) -> Ledger:
    """Return its ledger."""
    return app_state_of(app).ledger


def brought(app: Celery, ledger: Ledger, state: State, order_id: int = 1, **options: Any) -> Job:
    """Submit a job, which is delayed if it waits, and bring it into a state."""
    waits = state in {State.QUEUED, State.CANCELED}
    task: Any = app.tasks["shop.invoice"]
    job_id = task.apply_async((order_id,), countdown=3600 if waits else None, **options).id
    if state is State.CANCELED:
        return ledger.cancel(job_id)
    if waits:
        return ledger.get(job_id)
    job = ledger.claim(job_id, nonce="n", node="node").job
    assert job is not None
    match state:
        case State.RETRYING:
            again: dict[str, Any] = {"payload": job.payload, "options": job.options, "retries": 1, "error": None}
            return ledger.retry(job, delay=3600.0, reason="again", **again)
        case State.COMPLETED:
            return ledger.complete(job, "1")
        case State.FAILED:
            return ledger.fail(job, ERROR, "E")
    return job


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("operation", Operation)
def test_an_operation_applies_to_its_states(app: Celery, ledger: Ledger, operation: Operation, state: State) -> None:
    """In its states an operation succeeds, in all others its error is raised, by its check as by itself."""
    job = brought(app, ledger, state)
    (light,) = ledger.find(Query(light=True))
    if state not in operation.states:
        with pytest.raises(REFUSALS[operation]):
            operation.check(light)
        with pytest.raises(REFUSALS[operation]):
            operate(app, ledger, operation, light, origin=ORIGIN)
        assert ledger.get(job.id) == job
        return
    operation.check(light)
    after = operate(app, ledger, operation, light, origin=ORIGIN)
    assert ledger.get_or_none(job.id) == after
    if after is not None:
        assert ledger.history(job.id)[-1].detail == f"{operation.done} {ORIGIN}"


def test_every_state_allows_an_operation() -> None:
    """There is an operation for a job in each state, and deletion is for ended jobs only."""
    assert frozenset().union(*(operation.states for operation in Operation)) == frozenset(State)
    assert Operation.DELETE.states == FINAL


def test_a_forced_cancellation_needs_no_broker(app: Celery, ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    """A forced cancellation of a run is in the ledger although the broker fails, which is logged."""
    job = brought(app, ledger, State.RUNNING)
    app.conf.update(broker_url="redis://127.0.0.1:1/0", broker_write_url="redis://127.0.0.1:1/0")
    with caplog.at_level(logging.WARNING, "onejob"):
        after = operate(app, ledger, Operation.FORCE_CANCEL, job, origin=ORIGIN)
    assert after is not None
    assert (after.state, after.cancel) == (State.RUNNING, Cancel.FORCED)
    assert f"job {job.id} is canceled" in caplog.text
    assert operate(None, ledger, Operation.FORCE_CANCEL, job, origin=ORIGIN) == after


def test_an_unknown_job_is_not_found(app: Celery, ledger: Ledger) -> None:
    """Every operation on a job that was deleted meanwhile raises `JobNotFoundError`."""
    for operation in Operation:
        job = brought(app, ledger, min(operation.states))
        ledger.cancel(job.id)
        ledger.remove(ledger.get(job.id))
        with pytest.raises(JobNotFoundError):
            operate(app, ledger, operation, job, origin=ORIGIN)


# --- resubmission ---------------------------------------------------------------------------------------------------


def test_a_dead_letter_is_submitted_with_other_arguments(app: Celery, ledger: Ledger) -> None:
    """The new job has the new arguments and their identity, and the queue and priority of the dead letter, now gone."""
    dead = brought(app, ledger, State.FAILED, queue="slow", priority=3)
    admission = resubmit(app, ledger, dead, args=[2], kwargs={"note": "fixed"}, actor="ops")
    job, message = ledger.get(admission.job.id), decode(admission.job.payload)
    assert (admission.outcome, message.args, message.kwargs) == (Outcome.ADMITTED, [2], {"note": "fixed"})
    assert (job.task, job.queue, job.priority_rank) == (dead.task, "slow", dead.priority_rank)
    assert (job.source, job.submitter, job.run_at) == ("edit", "ops", job.created_at)
    assert job.identity != dead.identity
    assert [each.id for each in ledger.find(Query())] == [job.id]


def test_a_tenants_dead_letter_stays_its_own(app: Celery, ledger: Ledger) -> None:
    """The new job of a submitter with own jobs is its own, whoever edits, and consumes no quota of it."""
    with onejob.submitter("tenant", own_jobs=True, quota="1/day"):
        dead = brought(app, ledger, State.FAILED)
    admission = resubmit(app, ledger, dead, args=[2], kwargs={}, actor="ops")
    with onejob.submitter("tenant", own_jobs=True, quota="1/day"):
        assert app.tasks["shop.invoice"].delay(2).id == admission.job.id
    assert admission.job.submitter == "tenant"


def test_an_equal_job_answers_an_edited_one(app: Celery, ledger: Ledger) -> None:
    """If a job with the new arguments exists, it answers, and the dead letter is gone."""
    dead, live = brought(app, ledger, State.FAILED), brought(app, ledger, State.RUNNING, 2)
    admission = resubmit(app, ledger, dead, args=[2], kwargs={}, actor="ops")
    assert (admission.outcome, admission.job.id) == (Outcome.ATTACHED, live.id)
    assert ledger.get_or_none(dead.id) is None


def test_a_dead_letter_stays_if_its_submission_is_refused(app: Celery, ledger: Ledger) -> None:
    """Wrong arguments, a duplicate that is refused, and an unknown task leave the dead letter as it is."""
    dead = brought(app, ledger, State.FAILED)
    with pytest.raises(InvalidArgumentsError):
        resubmit(app, ledger, dead, args=[], kwargs={}, actor="ops")
    strict = app.tasks["shop.strict"]
    job = ledger.claim(strict.delay(1).id, nonce="s", node="node").job
    assert job is not None
    refused = ledger.fail(job, ERROR, "E")
    strict.delay(2)
    with pytest.raises(DuplicateJobError):
        resubmit(app, ledger, refused, args=[2], kwargs={}, actor="ops")
    app.tasks.unregister("shop.invoice")
    with pytest.raises(NotResubmittableError, match=r"no onejob task shop\.invoice"):
        resubmit(app, ledger, dead, args=[2], kwargs={}, actor="ops")
    assert {each.id for each in ledger.find(Query(states=frozenset({State.FAILED})))} == {dead.id, refused.id}


def test_only_dead_letters_outside_of_a_canvas_are_resubmitted(app: Celery, ledger: Ledger) -> None:
    """A job that has not failed, or whose end a canvas waits for, is refused."""
    with pytest.raises(NoDeadLetterError):
        resubmit(app, ledger, brought(app, ledger, State.QUEUED), args=[2], kwargs={}, actor="ops")
    member = brought(app, ledger, State.FAILED, 3, link=app.tasks["shop.anything"].s(json=True))
    with pytest.raises(NotResubmittableError, match="canvas"):
        resubmit(app, ledger, member, args=[2], kwargs={}, actor="ops")
    assert ledger.get(member.id) == member
