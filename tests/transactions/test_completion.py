"""Completion in a transaction of the application: effects, result and state are one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import celery
import psycopg
import pytest
from sqlalchemy.orm import Session

from onejob import InvalidPayloadError, LeaseLost
from onejob.celery.current_job import RunningJob, set_current_job
from onejob.jobs.lifecycle import State
from tests.services import eventually
from tests.transactions.owners import Psycopg, SQLAlchemySession
from tests.transactions.place import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.jobs.model import Job
    from tests.transactions.owners import Owner
    from tests.transactions.place import Place


def started(place: Place, key: str = "a") -> RunningJob:
    """Submit and claim a job, like a worker."""
    return RunningJob(place.claim(place.effect.delay(key).id), place.ledger, place.limits)


def claim_again(place: Place, run: RunningJob) -> Job:
    """Start another run of the job, which makes this run's token stale."""
    place.ledger.crash(run.job, "its worker was presumed dead", "{}")
    return place.claim(run.id)


# --- every kind of session ------------------------------------------------------------------------------------------


def test_effects_result_and_state_are_one_commit(place: Place, owner: Owner) -> None:
    """A job that completes in a transaction is running until the commit, and completed with its effects after it."""
    run = started(place)
    owner.execute(place.stage.insert("a"))
    owner.call(lambda session: run.complete_in(session, {"total": 3}))
    assert (place.ledger.get(run.id).state, place.notes("a")) == (State.RUNNING, 0)
    assert run.find_committed() is None
    owner.commit()
    job = place.ledger.get(run.id)
    assert (job.state, job.result, place.notes("a")) == (State.COMPLETED, '{"total": 3}', 1)
    assert run.find_committed() == job


def test_a_rollback_undoes_the_completion(place: Place, owner: Owner) -> None:
    """After a rolled-back completion the job is running, and the run may still complete."""
    run = started(place)
    owner.execute(place.stage.insert("a"))
    owner.call(lambda session: run.complete_in(session, 1))
    owner.rollback()
    assert (place.ledger.get(run.id), place.notes("a")) == (run.job, 0)
    owner.call(lambda session: run.complete_in(session, 2))
    owner.commit()
    assert place.ledger.get(run.id).result == "2"


def test_a_stale_run_loses_its_effects(place: Place, owner: Owner) -> None:
    """A run with a stale token is refused before its commit, and the current run completes."""
    run = started(place)
    second = claim_again(place, run)
    owner.execute(place.stage.insert("a"))
    with pytest.raises(LeaseLost):
        owner.call(lambda session: run.complete_in(session, "late"))
    owner.rollback()
    assert (place.ledger.get(run.id).token, place.notes("a")) == (second.token, 0)
    assert place.ledger.complete(second, '"in time"').result == '"in time"'


def test_the_job_is_locked_between_completion_and_commit(place: Place, owner: Owner) -> None:
    """Once a run has completed in a transaction, an operation of the ledger on the job waits for the commit."""
    run = started(place)
    owner.call(lambda session: run.complete_in(session, 1))
    assert place.ledger.take_due(tasks=place.tasks, limit=10) == []
    assert place.ledger.get(run.id).state is State.RUNNING
    owner.commit()
    assert place.ledger.crash(run.job, "too late", "{}").applied is False


# --- the block ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("connect", [Psycopg, SQLAlchemySession])
def test_a_block_without_a_result_completes_with_none(place: Place, connect: Callable[[str], Owner]) -> None:
    """A block that sets no result completes the job with None, commits, and closes its session."""
    owner = connect(place.url)
    run = started(place)
    with set_current_job(run), run.transaction(lambda: owner.handle):
        owner.execute(place.stage.insert("a"))
    assert (place.ledger.get(run.id).result, place.notes("a")) == ("null", 1)
    owner.close()


def test_an_exception_in_the_block_passes_and_undoes_it(place: Place) -> None:
    """An exception in the block rolls back effects and completion, and is re-raised unchanged."""
    run = started(place)
    error = LookupError("a")
    with pytest.raises(LookupError) as caught, run.transaction(place.stage.session) as session:  # noqa: PT012 - a block
        place.stage.write(session, "a")
        run.complete_in(session, "never")
        raise error
    assert caught.value is error
    assert (place.ledger.get(run.id), place.notes("a")) == (run.job, 0)


def test_a_second_block_after_an_exception_completes(place: Place) -> None:
    """A task may retry its transaction; the commit that succeeds completes the job."""
    run = started(place)
    for attempt in (1, 2):
        try:
            with run.transaction(place.stage.session) as session:
                place.stage.write(session, "a")
                run.complete_in(session, attempt)
                if attempt == 1:
                    raise LookupError
        except LookupError:
            assert run.find_committed() is None
    assert (place.ledger.get(run.id).result, place.notes("a")) == ("2", 1)


def test_a_stale_block_raises_lease_lost(place: Place) -> None:
    """A block with a stale token raises `LeaseLost`, which `except Exception` does not catch."""
    run = started(place)
    claim_again(place, run)
    swallowed = False
    with pytest.raises(LeaseLost):  # noqa: PT012 - a block
        try:
            with run.transaction(place.stage.session) as session:
                place.stage.write(session, "a")
        except Exception:  # noqa: BLE001 - what bodies do
            swallowed = True
    assert not swallowed
    assert place.notes("a") == 0


def test_a_result_is_checked_before_the_commit(place: Place) -> None:
    """A result that cannot be stored is refused before the commit."""
    run = started(place)
    for result in (object(), float("nan"), "x" * (place.limits.size + 1)):
        with pytest.raises(InvalidPayloadError), run.transaction(place.stage.session) as session:  # noqa: PT012 - a block
            place.stage.write(session, "a")
            run.complete_in(session, result)
    assert (place.ledger.get(run.id), place.notes("a")) == (run.job, 0)


def test_the_commit_releases_the_identity(place: Place) -> None:
    """An equal submission is attached until the commit of the completion, and admitted after it."""
    run = started(place)
    with run.transaction(place.stage.session) as session:
        place.stage.write(session, "a")
        assert place.effect.delay("a").id == run.id
        assert isinstance(session, Session)
    assert place.effect.delay("a").id != run.id


def test_the_commit_makes_followers_due(place: Place) -> None:
    """The commit of a completion makes the followers of the job due."""
    run = started(place)
    follower = place.effect.apply_async(("a",), task_id="follower")
    with run.transaction(place.stage.session):
        assert place.sweep() == 0
    assert place.sweep() == 1
    assert follower.id in place.messages()


# --- on a worker ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["effect", "greedy"])
@pytest.mark.parametrize("how", ["commits", "raises afterwards", "loses the answer", "loses the answer plainly"])
def test_what_was_committed_counts(working: Place, task: str, how: str) -> None:
    """A job whose transaction was committed has completed with its result, whatever the body does after it."""
    key = f"{task}-{how}".replace(" ", "-")
    result = getattr(working, task).delay(key, how)
    assert result.get(timeout=PATIENCE) == f"result of {key}"
    job = working.ended(result)
    assert (job.state, job.attempt, working.notes(key)) == (State.COMPLETED, 1, 1)


def test_the_block_decides_on_the_result(working: Place) -> None:
    """The return value of a task that has completed in a transaction is ignored."""
    result = working.effect.delay("quiet", "commits without a result")
    assert result.get(timeout=PATIENCE) is None
    assert working.notes("quiet") == 1


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises inside", "LookupError: raises-inside"),
        ("forgets to commit", "OneJobError: the body called complete_in, but its transaction was not committed"),
        ("leaves it open", "OneJobError: the body called complete_in, but its transaction was not committed"),
        ("cannot be stored", "InvalidPayloadError: the result cannot be stored as JSON"),
    ],
)
def test_what_was_not_committed_fails(working: Place, how: str, message: str) -> None:
    """A job whose transaction was not committed fails with an error that says why, and has had no effects."""
    key = how.replace(" ", "-")
    job = working.ended(working.effect.delay(key, how))
    assert (job.state, working.notes(key)) == (State.FAILED, 0)
    assert job.reason.startswith(message)


def test_a_block_that_was_rolled_back_does_not_count(working: Place) -> None:
    """A task that continues after its block was rolled back completes with its return value, without the effects."""
    result = working.effect.delay("swallowed", "swallows its rollback")
    assert result.get(timeout=PATIENCE) == "result of swallowed"
    assert working.notes("swallowed") == 0


def test_a_late_worker_changes_nothing(working: Place) -> None:
    """A run that loses its lease inside of its block ends at once, and the current run's result is kept."""
    result = working.effect.delay("late", "loses its lease")
    working.await_mark("late", "waits")
    working.ledger.crash(working.ledger.get(result.id), "its worker was presumed dead", "{}")
    second = working.claim(result.id)
    working.stage.mark("late", "gate")
    working.await_mark("late", "left")
    working.ledger.complete(second, '"in time"')
    eventually(lambda: f"effect[{result.id}] ignored" in working.log(), PATIENCE)
    assert (result.get(timeout=PATIENCE), working.notes("late")) == ("in time", 0)
    assert not any(working.stage.marked("late", mark) for mark in ("swallowed", "went-on"))


def test_a_chain_continues_with_the_committed_result(working: Place) -> None:
    """The next task of a chain gets the committed result."""
    effect, note = working.effect.si("chained", "commits"), working.note.s("end-of-chain")
    result = celery.chain(effect, note, app=working.app).apply_async()
    assert result.get(timeout=PATIENCE) == ["end-of-chain", "result of chained"]
    first: Any = result.parent
    eventually(lambda: not working.ledger.get(first.id).canvas_pending, PATIENCE)


def test_a_chain_continues_after_a_lost_response(working: Place) -> None:
    """The next task of a chain runs, also when the response of the commit is lost."""
    effect, note = working.effect.si("chained-lost", "loses the answer"), working.note.s("end-of-lost-chain")
    result = celery.chain(effect, note, app=working.app).apply_async()
    assert result.get(timeout=PATIENCE) == ["end-of-lost-chain", "result of chained-lost"]


def test_followers_end_with_the_followed_job(working: Place) -> None:
    """A follower of a job that completes in a transaction ends with the committed result, without own effects."""
    followed = working.effect.delay("led", "waits and commits")
    working.await_mark("led", "waits")
    follower = working.effect.apply_async(("led",), task_id="follower-of-led")
    working.stage.mark("led", "gate")
    assert follower.get(timeout=PATIENCE) == followed.get(timeout=PATIENCE) == "result of led"
    assert (follower.id, working.notes("led")) == ("follower-of-led", 1)


def test_a_connection_that_dies_before_the_commit_completes_nothing(place: Place) -> None:
    """A transaction whose connection is lost before the commit has no effect, and the run may still complete."""
    run = started(place)
    own = psycopg.connect(place.url)
    with pytest.raises(psycopg.OperationalError), run.transaction(lambda: own) as connection:  # noqa: PT012 - a block
        connection.execute(place.stage.insert("a").encode())
        run.complete_in(connection, 1)
        place.cut(connection.info.backend_pid)
    assert run.find_committed() is None
    assert (place.ledger.complete(run.job, "2").result, place.notes("a")) == ("2", 0)
