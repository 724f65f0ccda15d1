"""Every kind of session: a commit, a rollback and a savepoint decide; who submits the same meanwhile waits for them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from onejob import Outcome, StoreUnavailableError
from onejob.celery.current_job import RunningJob
from onejob.celery.run import Run
from onejob.errors import LeaseLost
from onejob.jobs.lifecycle import State, Transition
from onejob.observability.events import JobEvent
from onejob.stores.postgres import connection
from tests.quiet import provokes
from tests.transactions.cluster import PostgresCluster
from tests.transactions.owners import KINDS, Owner


def published(cluster: PostgresCluster, owner: Owner) -> list[str]:
    """Return the messages after a commit: published at once if the library reports commits, else by the next sweep."""
    if not owner.hooked:
        assert cluster.messages() == []
        cluster.sweep()
    return cluster.messages()


def submitted(emitted: list[JobEvent]) -> list[tuple[str, object]]:
    return [(event.job_id, event.fields["outcome"]) for event in emitted if event.name == "job_submitted"]


def complete(owner: Owner, run: Run, result: str) -> None:
    owner.call(lambda handle: run.complete_in(handle, result))


def test_the_commit_creates_and_publishes_the_job(
    cluster: PostgresCluster, owner: Owner, emitted: list[JobEvent]
) -> None:
    """A job exists, is published, and is reported with its duplicates, after the commit of its transaction only."""
    owner.execute(cluster.effects.insert("a"))
    first, second = owner.submit(cluster.effect, "a"), owner.submit(cluster.effect, "a")
    assert (first.outcome, second.outcome, second.id) == (Outcome.ADMITTED, Outcome.ATTACHED, first.id)
    assert (cluster.jobs(), cluster.messages(), cluster.notes("a"), emitted) == ([], [], 0, [])
    owner.commit()
    assert [(job.id, job.state) for job in cluster.jobs()] == [(first.id, State.QUEUED)]
    assert (published(cluster, owner), cluster.notes("a"), cluster.sweep()) == ([first.id], 1, 0)
    assert submitted(emitted) == ([(first.id, "admitted"), (first.id, "attached")] if owner.hooked else [])


def test_the_commit_makes_a_job_with_room_due(cluster: PostgresCluster, owner: Owner) -> None:
    """A job with a limit that is submitted in a transaction waits in the ledger, and has its slot after the commit."""
    first, second = (owner.submit(cluster.effect_alone, key) for key in "ab")
    assert (cluster.jobs(), cluster.messages()) == ([], [])
    owner.commit()
    assert published(cluster, owner) == [first.id]
    assert (cluster.job(first).parked_on, cluster.job(second).parked_on) == (None, "limit:database")


def test_a_rollback_leaves_no_trace(cluster: PostgresCluster, owner: Owner, emitted: list[JobEvent]) -> None:
    """A job whose transaction was rolled back does not exist, and the session's next commit publishes its own only."""
    owner.execute(cluster.effects.insert("a"))
    owner.submit(cluster.effect, "first")
    owner.rollback()
    assert (cluster.rows("jobs"), cluster.rows("history"), cluster.sweep(), cluster.messages()) == (0, 0, 0, [])
    assert (cluster.notes("a"), submitted(emitted)) == (0, [])
    second = owner.submit(cluster.effect, "second")
    owner.commit()
    owner.execute("select 1")
    owner.commit()
    assert published(cluster, owner) == [second.id]


def test_savepoints_are_undone_by_themselves(cluster: PostgresCluster, owner: Owner, emitted: list[JobEvent]) -> None:
    """A job in a savepoint that was rolled back does not exist; one in a released savepoint is published once."""
    savepoint = owner.savepoint()
    kept = owner.submit(cluster.effect, "kept")
    savepoint.release()
    savepoint = owner.savepoint()
    owner.submit(cluster.effect, "undone")
    savepoint.rollback()
    assert (cluster.jobs(), cluster.messages()) == ([], [])
    owner.commit()
    assert [job.id for job in cluster.jobs()] == [kept.id] == published(cluster, owner)
    assert cluster.sweep() == 0
    assert submitted(emitted) == ([(kept.id, "admitted")] if owner.hooked else [])
    savepoint = owner.savepoint()
    owner.submit(cluster.effect, "rolled back around it")
    savepoint.release()
    owner.rollback()
    owner.commit()
    assert [job.id for job in cluster.jobs()] == [kept.id]
    assert cluster.messages() == [kept.id]


@provokes(Transition.CRASH, because="the test ends the run")
def test_effects_result_and_state_are_one_commit(cluster: PostgresCluster, owner: Owner) -> None:
    """A completion is undone by a rollback, or committed with its effects; a stale run is refused before its commit."""
    run = cluster.started("a")
    for result, end in (("undone", owner.rollback), ("kept", owner.commit)):
        owner.execute(cluster.effects.insert("a"))
        complete(owner, run, result)
        assert (cluster.ledger.get(run.id), cluster.notes("a"), run.find_committed()) == (run.job, 0, None)
        end()
    job = cluster.ledger.get(run.id)
    assert (job.state, job.result, cluster.notes("a")) == (State.COMPLETED, '"kept"', 1)
    assert run.find_committed() == job
    stale = cluster.started("b")
    second = cluster.claim_again(stale)
    with pytest.raises(LeaseLost):
        complete(owner, stale, "late")
    owner.rollback()
    assert cluster.ledger.complete(second, '"in time"').result == '"in time"'


# --- equal submissions wait for the end of a transaction, and no other operation does ---------------------------------

SHORT = ("set lock_timeout = '250ms'", "set statement_timeout = '30s'")
"""What a connection of the ledger begins with, with less patience than it has for users."""


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    """Return a pool with one thread, which may wait."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("joins", [True, False])
def test_an_equal_submission_waits_for_the_transaction(
    cluster: PostgresCluster, session: Owner, plain: Owner, aside: ThreadPoolExecutor, joins: bool, commits: bool
) -> None:
    """A submission that equals one of an open transaction is attached after its commit, admitted after its rollback."""
    first = session.submit(cluster.effect, "a")
    second = aside.submit(plain.submit, cluster.effect, "a") if joins else aside.submit(cluster.effect.delay, "a")
    cluster.await_waiters()
    assert not second.done()
    session.commit() if commits else session.rollback()
    answer = second.result()
    plain.commit()
    assert answer.outcome == (Outcome.ATTACHED if commits else Outcome.ADMITTED)
    assert (answer.id == first.id) == commits
    assert [job.id for job in cluster.jobs()] == [answer.id]
    assert cluster.messages() == [answer.id] * (commits or not joins)


def test_only_an_equal_submission_waits_and_not_for_long(
    cluster: PostgresCluster, session: Owner, plain: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has waited too long, by default ten seconds, raises an error, and has written nothing.

    In a transaction it waits by the settings of that connection, and its error is the driver's.
    """
    assert "set lock_timeout = '10s'" in connection.SESSION
    monkeypatch.setattr(connection, "SESSION", SHORT)
    session.submit(cluster.effect, "a")
    other = cluster.effect.delay("b")
    with pytest.raises(StoreUnavailableError, match="lock timeout"):
        cluster.effect.delay("a")
    plain.execute("set lock_timeout = '50ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        plain.submit(cluster.effect, "a")
    plain.rollback()
    session.rollback()
    assert cluster.messages() == [other.id] == [job.id for job in cluster.jobs()]


def test_a_duplicate_does_not_block_the_live_job(
    cluster: PostgresCluster, session: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a transaction with a duplicate is open, the run is renewed, reports, keeps a step, and ends."""
    monkeypatch.setattr(connection, "SESSION", SHORT)
    run = cluster.started()
    job = run.job
    session.submit(cluster.effect, "a")
    session.submit(cluster.effect, "a", task_id="follower")
    assert [renewal.held for renewal in cluster.ledger.renew([(job.id, job.claim)])] == [True]
    RunningJob(run).progress(1, 2)
    assert RunningJob(run).step("first", lambda: 1) == 1
    assert cluster.ledger.complete(job, '"done"').state is State.COMPLETED
    session.commit()
    assert cluster.ledger.get("follower").follows_id == job.id
    assert cluster.messages() == [job.id]


def test_a_follower_whose_followed_job_ended_first_still_ends(working: PostgresCluster) -> None:
    """A follower that is committed after the end of the followed job ends like that job."""
    live = working.effect.delay("behind", "waits and commits")
    working.await_mark("behind", "waits")
    owner = KINDS["sqlalchemy-session"](working.url)
    follower = owner.submit(working.effect, "behind", task_id="follower-of-behind")
    working.open("behind")
    assert working.ended(live).result == '"result of behind"'
    owner.commit()
    owner.close()
    assert follower.outcome is Outcome.ATTACHED
    assert working.ended(follower).result == '"result of behind"'
    assert working.notes("behind") == 1
