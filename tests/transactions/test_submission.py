"""A submission in a transaction of the application: it exists after the commit, and leaves no trace without one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

import onejob
from onejob import ConfigurationError, Outcome
from onejob.jobs.lifecycle import State
from tests.transactions.owners import Psycopg, SQLAlchemyConnection, SQLAlchemySession

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.transactions.owners import Owner
    from tests.transactions.place import Place


def published(place: Place, owner: Owner) -> list[str]:
    """Return the messages after a commit: published at once if the library reports commits, else by the next sweep."""
    if not owner.hooked:
        assert place.messages() == []
        place.sweep()
    return place.messages()


def assert_no_trace(place: Place) -> None:
    """Assert that nothing was submitted."""
    assert (place.rows("jobs"), place.rows("history"), place.sweep(), place.messages()) == (0, 0, 0, [])


# --- every kind of session ------------------------------------------------------------------------------------------


def test_the_commit_creates_and_publishes_the_job(place: Place, owner: Owner) -> None:
    """A job is in the ledger, and published, when its transaction has been committed, and not before."""
    result = owner.submit(place.effect, "a")
    assert (result.outcome, place.jobs(), place.messages()) == (Outcome.ADMITTED, [], [])
    owner.commit()
    assert [(job.id, job.state) for job in place.jobs()] == [(result.id, State.QUEUED)]
    assert published(place, owner) == [result.id]
    assert place.ledger.history(result.id)[0].event == "submit"


def test_a_rollback_leaves_no_trace(place: Place, owner: Owner) -> None:
    """A job whose transaction was rolled back does not exist."""
    owner.submit(place.effect, "a")
    owner.rollback()
    assert_no_trace(place)


def test_effects_and_job_are_atomic(place: Place, owner: Owner) -> None:
    """The other writes of the transaction are committed together with the job, or not at all."""
    for end in (owner.rollback, owner.commit):
        owner.execute(place.stage.insert("a"))
        owner.submit(place.effect, "a")
        end()
        assert place.notes("a") == place.rows("jobs") == (end == owner.commit)


def test_a_savepoint_can_be_undone_by_itself(place: Place, owner: Owner) -> None:
    """A job in a savepoint that was rolled back does not exist, also when the outer transaction is committed."""
    kept = owner.submit(place.effect, "kept")
    savepoint = owner.savepoint()
    owner.submit(place.effect, "undone")
    savepoint.rollback()
    owner.commit()
    assert [job.id for job in place.jobs()] == [kept.id]
    assert published(place, owner) == [kept.id]


def test_a_released_savepoint_is_published_with_the_commit(place: Place, owner: Owner) -> None:
    """A job in a savepoint that was released is published once, when the transaction around it is committed."""
    savepoint = owner.savepoint()
    result = owner.submit(place.effect, "a")
    savepoint.release()
    assert (place.jobs(), place.messages()) == ([], [])
    owner.commit()
    assert published(place, owner) == [result.id]
    assert place.sweep() == 0


def test_a_released_savepoint_shares_the_rollback(place: Place, owner: Owner) -> None:
    """A job in a released savepoint does not exist when the outer transaction is rolled back."""
    savepoint = owner.savepoint()
    owner.submit(place.effect, "a")
    savepoint.release()
    owner.rollback()
    owner.commit()
    assert_no_trace(place)


def test_a_session_publishes_no_rolled_back_jobs(place: Place, owner: Owner) -> None:
    """A session that is used again publishes only the jobs of the committed transaction."""
    owner.submit(place.effect, "first")
    owner.rollback()
    second = owner.submit(place.effect, "second")
    owner.commit()
    owner.execute("select 1")
    owner.commit()
    assert published(place, owner) == [second.id]


def test_a_live_job_is_shared(place: Place, owner: Owner) -> None:
    """A submission in a transaction is attached to the job that holds its identity, and publishes nothing."""
    live = place.effect.delay("a")
    again = owner.submit(place.effect, "a")
    owner.commit()
    assert (again.outcome, again.id) == (Outcome.ATTACHED, live.id)
    assert place.messages() == [live.id]
    assert place.rows("jobs") == 1


def test_a_transaction_sees_its_own_jobs(place: Place, owner: Owner) -> None:
    """The second of two equal submissions in one transaction is attached to the first."""
    first, second = (owner.submit(place.effect, "a") for _ in range(2))
    owner.commit()
    assert (second.outcome, second.id) == (Outcome.ATTACHED, first.id)
    assert published(place, owner) == [first.id]


def test_a_job_for_later_waits_in_the_ledger(place: Place, owner: Owner) -> None:
    """A job with a countdown is published when it is due, not with the commit."""
    result = owner.submit(place.effect, "a", countdown=3600)
    owner.commit()
    job = place.ledger.get(result.id)
    assert (place.messages(), place.sweep()) == ([], 0)
    assert job.wake_at == pytest.approx(job.created_at + 3600)


# --- single libraries -----------------------------------------------------------------------------------------------


def test_a_closed_session_publishes_nothing_of_before(place: Place) -> None:
    """A session of SQLAlchemy that is closed without a commit, and used again, publishes no jobs from before."""
    owner = SQLAlchemySession(place.url)
    owner.submit(place.effect, "first")
    owner.handle.close()
    second = owner.submit(place.effect, "second")
    owner.commit()
    owner.close()
    assert place.messages() == [second.id]


@pytest.mark.parametrize("end", ["close", "rollback"])
def test_an_inner_savepoint_is_rolled_back_with_the_outer_one(place: Place, end: str) -> None:
    """The jobs of a released inner savepoint are rolled back with the outer one, also if that one is only closed."""
    owner = SQLAlchemySession(place.url)
    outer = owner.handle.begin_nested()
    with owner.handle.begin_nested():
        owner.submit(place.effect, "inner")
    getattr(outer, end)()
    kept = owner.submit(place.effect, "kept")
    owner.commit()
    owner.close()
    assert place.messages() == [kept.id]


def test_the_commit_of_a_whole_session_commits_its_savepoints(place: Place) -> None:
    """A savepoint that is still open at the commit of its session belongs to what is published."""
    owner = SQLAlchemySession(place.url)
    owner.savepoint()
    owner.savepoint()
    result = owner.submit(place.effect, "a")
    owner.commit()
    owner.close()
    assert place.messages() == [result.id]


def test_a_session_on_an_outer_connection_does_not_publish(place: Place) -> None:
    """The commit of a session in an outer transaction publishes nothing; the outer commit or rollback decides."""
    owner = SQLAlchemyConnection(place.url)
    for end in (owner.rollback, owner.commit):
        owner.execute("select 1")
        with Session(owner.handle, join_transaction_mode="create_savepoint") as session:
            place.effect.submit("a", session=session)
            session.commit()
        assert (place.jobs(), place.messages()) == ([], [])
        end()
        assert place.sweep() == (end == owner.commit)
    owner.close()


def test_django_without_a_transaction_submits_at_once(place: Place) -> None:
    """Django's connection outside of a transaction commits a submission by itself, and publishes it."""
    from tests.transactions.owners import Django

    owner = Django(place.url)
    result = place.effect.submit("a", session=owner.handle)
    owner.close()
    assert place.messages() == [result.id] == [job.id for job in place.jobs()]


def test_a_submission_on_commit_waits_for_djangos_commit(place: Place) -> None:
    """`delay_on_commit` and `apply_async_on_commit` submit after the commit, and not at all after a rollback."""
    from tests.transactions.owners import Django

    owner = Django(place.url)
    for end, count in ((owner.rollback, 0), (owner.commit, 2)):
        owner.begin()
        place.effect.delay_on_commit("a")
        place.effect.apply_async_on_commit(("b",), countdown=3600)
        assert place.jobs() == []
        end()
        assert len(place.jobs()) == count
    assert len(place.messages()) == 1
    owner.close()


def test_a_submission_on_commit_needs_django(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Django `delay_on_commit` raises an error that says what to do."""
    monkeypatch.setitem(sys.modules, "django.db", None)
    with pytest.raises(ConfigurationError, match="pip install django"):
        place.effect.delay_on_commit("a")
    assert place.jobs() == []


def _dictionaries_of_psycopg(url: str) -> object:
    return psycopg.connect(url, row_factory=dict_row)


def _dictionaries_of_psycopg2(url: str) -> object:
    import psycopg2  # type: ignore[import-untyped] # ships no types
    from psycopg2.extras import RealDictCursor  # type: ignore[import-untyped] # ships no types

    connection: object = psycopg2.connect(url, cursor_factory=RealDictCursor)
    return connection


@pytest.mark.parametrize("connect", [_dictionaries_of_psycopg, _dictionaries_of_psycopg2])
def test_a_connection_may_have_a_row_factory(place: Place, connect: Callable[[str], object]) -> None:
    """A submission works on a connection with a row factory."""
    owner = Psycopg(place.url)
    owner.close()
    owner.handle = connect(place.url)
    result = owner.submit(place.effect, "a")
    owner.commit()
    owner.close()
    assert [job.id for job in place.jobs()] == [result.id]


def test_a_job_is_due_at_once_where_commits_are_not_reported(place: Place) -> None:
    """If the library does not report commits, the job is due for publication as soon as it is visible."""
    owner = SQLAlchemyConnection(place.url)
    result = owner.submit(place.effect, "a")
    owner.commit()
    owner.close()
    job = place.ledger.get(result.id)
    assert job.wake_at == job.created_at


def test_an_unavailable_broker_only_delays_a_committed_job(place: Place) -> None:
    """When the broker is unavailable after the commit, the job is in the ledger with a `wake_at`."""
    place.app.conf.update(broker_url="redis://127.0.0.1:1/0")
    owner = SQLAlchemySession(place.url)
    result = owner.submit(place.effect, "a")
    owner.commit()
    owner.close()
    job = place.ledger.get(result.id)
    assert job.wake_at == pytest.approx(job.created_at + job.lease)


def test_a_quota_is_consumed_with_the_commit(place: Place, owner: Owner) -> None:
    """A quota limits jobs in a transaction, too; a rollback returns what it has consumed."""
    with onejob.submitter("a", quota="1/hour"):
        owner.submit(place.effect, "a")
        owner.rollback()
        owner.submit(place.effect, "b")
        with pytest.raises(onejob.QuotaExceededError):
            owner.submit(place.effect, "c")
        owner.commit()
        with pytest.raises(onejob.QuotaExceededError):
            place.effect.delay("c")
    assert len(place.jobs()) == 1
