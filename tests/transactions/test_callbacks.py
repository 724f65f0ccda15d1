"""Callbacks that are asked for in a transaction: true with its commit, and in nobody's way before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob import Outcome
from onejob.callbacks.submission import CALLBACK
from onejob.job import Query
from onejob.lifecycle import State

if TYPE_CHECKING:
    from onejob.job import Job
    from tests.transactions.owners import Owner
    from tests.transactions.place import Place

URL = "https://hooks.example/"


def callbacks(place: Place) -> list[Job]:
    """Return the callbacks of a ledger."""
    return place.ledger.find(Query(task=CALLBACK))


def submit(owner: Owner, place: Place, key: str) -> Outcome:
    """Submit a job with a callback in an owner's transaction."""
    outcome: Outcome = owner.submit(place.effect, key, callback_url=URL).outcome
    return outcome


def test_a_callback_becomes_true_with_the_commit(place: Place, owner: Owner) -> None:
    """A callback is there when the transaction of its submission has been committed, and not after a rollback."""
    for end, count in ((owner.rollback, 0), (owner.commit, 1)):
        assert submit(owner, place, "a") is Outcome.ADMITTED
        assert callbacks(place) == []
        end()
        assert len(callbacks(place)) == count


def test_a_callback_of_a_duplicate_holds_up_nobody(place: Place, owner: Owner) -> None:
    """While a transaction that asked for a callback of a live job is open, that job ends, and is told afterwards."""
    first = place.effect.apply_async(("a",))
    job = place.claim(first.id)
    assert submit(owner, place, "a") is Outcome.ATTACHED
    place.ledger.complete(job, "null")
    owner.commit()
    (callback,) = callbacks(place)
    assert (callback.state, callback.leader) == (State.QUEUED, first.id)
    assert [each.id for each in place.ledger.store.due(limit=10, hold=60.0)] == [callback.id]


def test_an_end_after_the_commit_rings(place: Place, owner: Owner) -> None:
    """A job that is submitted with its callback in one transaction wakes it with its end."""
    submit(owner, place, "a")
    owner.commit()
    (callback,) = callbacks(place)
    place.ledger.store.due(limit=10, hold=3600.0)
    place.ledger.complete(place.claim(str(callback.leader)), "null")
    assert [each.id for each in place.ledger.store.due(limit=10, hold=60.0)] == [callback.id]
