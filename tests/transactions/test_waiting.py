"""Equal submissions while a transaction is open: they wait for its end, and no other operation does."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from onejob import Outcome, StoreUnavailableError
from onejob.jobs.lifecycle import State
from onejob.stores.postgres import connection
from tests.transactions.owners import KINDS, Owner
from tests.transactions.place import Place

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
    place: Place, session: Owner, plain: Owner, aside: ThreadPoolExecutor, joins: bool, commits: bool
) -> None:
    """A submission that equals one of an open transaction is attached after its commit, admitted after its rollback."""
    first = session.submit(place.effect, "a")
    second = aside.submit(plain.submit, place.effect, "a") if joins else aside.submit(place.effect.delay, "a")
    place.await_waiters()
    assert not second.done()
    session.commit() if commits else session.rollback()
    answer = second.result()
    plain.commit()
    assert answer.outcome == (Outcome.ATTACHED if commits else Outcome.ADMITTED)
    assert (answer.id == first.id) == commits
    assert [job.id for job in place.jobs()] == [answer.id]
    assert place.messages() == [answer.id] * (commits or not joins)


def test_only_an_equal_submission_waits_and_not_for_long(
    place: Place, session: Owner, plain: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has waited too long, by default ten seconds, raises an error, and has written nothing.

    In a transaction it waits by the settings of that connection, and its error is the driver's.
    """
    assert "set lock_timeout = '10s'" in connection.SESSION
    monkeypatch.setattr(connection, "SESSION", SHORT)
    session.submit(place.effect, "a")
    other = place.effect.delay("b")
    with pytest.raises(StoreUnavailableError, match="lock timeout"):
        place.effect.delay("a")
    plain.execute("set lock_timeout = '50ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        plain.submit(place.effect, "a")
    plain.rollback()
    session.rollback()
    assert place.messages() == [other.id] == [job.id for job in place.jobs()]


def test_a_duplicate_does_not_block_the_live_job(place: Place, session: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a transaction with a duplicate is open, the run is renewed, reports, keeps a step, and ends."""
    monkeypatch.setattr(connection, "SESSION", SHORT)
    run = place.started()
    job = run.job
    session.submit(place.effect, "a")
    session.submit(place.effect, "a", task_id="follower")
    assert [renewal.held for renewal in place.ledger.renew([(job.id, job.claim)])] == [True]
    run.progress(1, 2)
    assert run.step("first", lambda: 1) == 1
    assert place.ledger.complete(job, '"done"').state is State.COMPLETED
    session.commit()
    assert place.ledger.get("follower").follows_id == job.id
    assert place.messages() == [job.id]


def test_a_follower_whose_followed_job_ended_first_still_ends(working: Place) -> None:
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
