"""Completion in a transaction of the application: effects, result and state are one commit."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import celery
import psycopg
import pytest
from psycopg import IsolationLevel, errors
from sqlalchemy.orm import Session

from onejob.celery.current_job import RunningJob
from onejob.errors import InvalidPayloadError, LeaseLost
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Submission
from onejob.ledger.ledger import Ledger
from tests.cases import for_each
from tests.celery.harness import PATIENCE, await_
from tests.quiet import provokes
from tests.submissions import submission_of
from tests.transactions.cluster import PostgresCluster
from tests.transactions.owners import Owner


def test_the_job_is_locked_between_completion_and_commit(cluster: PostgresCluster, plain: Owner) -> None:
    """Once a run has completed in a transaction, an operation of the ledger on the job waits for the commit."""
    run = cluster.started()
    plain.call(lambda handle: run.complete_in(handle, 1))
    assert cluster.ledger.take_due(tasks=cluster.tasks, limit=10) == []
    assert cluster.ledger.get(run.id).state is State.RUNNING
    plain.commit()
    assert cluster.ledger.crash(run.job, "too late", "{}").applied is False


def test_a_second_block_after_an_exception_completes(cluster: PostgresCluster) -> None:
    """An exception in the block passes unchanged and undoes all; the next block that is committed completes the job."""
    run, error = cluster.started(), LookupError("a")
    with pytest.raises(LookupError) as caught, RunningJob(run).transaction(cluster.effects.session) as session:  # noqa: PT012 - a block
        cluster.effects.write(session, "a")
        run.complete_in(session, 1)
        raise error
    assert (caught.value, run.find_committed()) == (error, None)
    assert (cluster.ledger.get(run.id), cluster.notes("a")) == (run.job, 0)
    with RunningJob(run).transaction(cluster.effects.session) as session:
        cluster.effects.write(session, "a")
        run.complete_in(session, 2)
    assert (cluster.ledger.get(run.id).result, cluster.notes("a")) == ("2", 1)


@provokes(Transition.CRASH, because="the test ends the run")
def test_a_stale_block_raises_lease_lost(cluster: PostgresCluster) -> None:
    """A block with a stale token raises `LeaseLost`, which `except Exception` does not catch."""
    run = cluster.started()
    cluster.claim_again(run)
    with pytest.raises(LeaseLost), RunningJob(run).transaction(cluster.effects.session) as session:
        cluster.effects.write(session, "a")
    assert cluster.notes("a") == 0
    assert not issubclass(LeaseLost, Exception)


def test_a_result_is_checked_before_the_commit(cluster: PostgresCluster) -> None:
    """A result that cannot be stored is refused before the commit."""
    run = cluster.started()
    for result in (object(), float("nan"), "x" * (cluster.limits.size + 1)):
        with pytest.raises(InvalidPayloadError), RunningJob(run).transaction(cluster.effects.session) as session:  # noqa: PT012 - a block
            cluster.effects.write(session, "a")
            run.complete_in(session, result)
    assert (cluster.ledger.get(run.id), cluster.notes("a")) == (run.job, 0)


def test_the_commit_releases_the_identity(cluster: PostgresCluster) -> None:
    """Until the commit of a completion an equal submission is attached; then it is admitted, and followers are due."""
    run = cluster.started()
    follower = cluster.effect.apply_async(("a",), task_id="follower")
    with RunningJob(run).transaction(cluster.effects.session) as session:
        cluster.effects.write(session, "a")
        assert cluster.effect.delay("a").id == run.id
        assert isinstance(session, Session)
        assert cluster.sweep() == 0
    assert cluster.sweep() == 1
    assert follower.id in cluster.messages()
    assert cluster.effect.delay("a").id != run.id


@provokes(logs=["raised unexpected"], because="the body fails")
@for_each("task, how, result, notes", [
    *(
        (task, how, "result of {}", 1)
        for task in ("effect", "retrying")
        for how in ("commits", "raises afterwards", "loses the answer", "loses the answer plainly")
    ),
    ("effect", "commits without a result", None, 1),
    ("effect", "swallows its rollback", "result of {}", 0),
])  # fmt: skip
def test_what_was_committed_counts(
    working: PostgresCluster, task: str, how: str, result: str | None, notes: int
) -> None:
    """A committed transaction completes the job, which is reported once, whatever the body does after it.

    Without one the returned value counts, and there are no effects.
    """
    key = f"{task}-{how}".replace(" ", "-")
    answer = getattr(working, task).delay(key, how)
    assert answer.get(timeout=PATIENCE) == (result and result.format(key))
    job = working.ended(answer)
    assert (job.state, job.attempt, working.notes(key)) == (State.COMPLETED, 1, notes)
    line = f"event=job_completed job_id={answer.id}"
    working.workers[0].await_text(line)
    assert working.workers[0].text.count(line) == 1


def test_a_completion_in_a_transaction_frees_its_slot(working: PostgresCluster) -> None:
    """Jobs that take turns by a limit of one, and complete in transactions of their own, all run."""
    results = [working.effect_alone.delay(f"alone-{number}", "commits") for number in range(3)]
    assert [each.get(timeout=PATIENCE) for each in results] == [f"result of alone-{number}" for number in range(3)]
    assert working.ledger.store.limit_use("database").holders == ()


@for_each("how", ["commits", "loses the answer"])
def test_a_chain_continues_with_the_committed_result(working: PostgresCluster, how: str) -> None:
    """The next task of a chain gets the committed result, also when the response of the commit is lost."""
    key = f"chained-{how}".replace(" ", "-")
    result = celery.chain(working.effect.si(key, how), working.note.s(f"end-of-{key}"), app=working.app).apply_async()
    assert result.get(timeout=PATIENCE) == [f"end-of-{key}", f"result of {key}"]
    first: Any = result.parent
    await_(lambda: not working.ledger.get(first.id).canvas_pending)


def test_a_connection_that_dies_before_the_commit_completes_nothing(cluster: PostgresCluster) -> None:
    """A transaction whose connection is lost before the commit has no effect, and the run may still complete."""
    run = cluster.started()
    own = psycopg.connect(cluster.url)
    with pytest.raises(psycopg.OperationalError), RunningJob(run).transaction(lambda: own) as connection:  # noqa: PT012 - a block
        connection.execute(cluster.effects.insert("a").encode())
        run.complete_in(connection, 1)
        cluster.cut(connection.info.backend_pid)
    assert run.find_committed() is None
    assert (cluster.ledger.complete(run.job, "2").result, cluster.notes("a")) == ("2", 0)


LATER: dict[str, Callable[[Ledger, Submission, str], object]] = {
    "attaches": lambda ledger, later, _: ledger.submit(later),
    "runs next": lambda ledger, later, _: ledger.submit(replace(later, follows=False, queue_next=True)),
    "follows": lambda ledger, later, job_id: ledger.follow(later, follows_id=job_id),
}


@for_each("level, later", product([IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE], LATER))
def test_what_follows_is_woken(cluster: PostgresCluster, level: IsolationLevel, later: str) -> None:
    """A completion fails if what follows the job was committed after its snapshot; repeated, it wakes what follows."""
    run = cluster.started(key := f"{level.name} {later}")
    connection = psycopg.connect(cluster.url)
    connection.isolation_level = level
    connection.execute("select 1 from pg_class limit 1")
    LATER[later](cluster.ledger, submission_of(cluster.effect, args=(key,), task_id=f"after {key}"), run.id)
    with pytest.raises(errors.SerializationFailure):
        run.complete_in(connection, 1)
    connection.rollback()
    run.complete_in(connection, 1)
    connection.commit()
    connection.close()
    assert cluster.ledger.get(run.id).state is State.COMPLETED
    assert cluster.ledger.get(f"after {key}").wake_at is not None
    assert cluster.sweep() == 1
