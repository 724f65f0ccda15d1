"""`on_duplicate`, duplicates and idempotency keys of submissions in a transaction of the application."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob import KeyReuseMismatchError, Outcome, State
from onejob.celery.message import decode
from tests.transactions.owners import SQLAlchemySession

if TYPE_CHECKING:
    from tests.transactions.owners import Owner
    from tests.transactions.place import Place


def test_the_commit_replaces_the_arguments(place: Place, owner: Owner) -> None:
    """Arguments that are replaced in a transaction change the job at its commit, and not before."""
    first = place.newest.apply_async(("a", "old"), countdown=600)
    again = owner.submit(place.newest, "a", "new", countdown=600)
    assert (again.id, again.outcome) == (first.id, Outcome.REPLACED)
    assert decode(place.ledger.get(first.id).payload).args == ["a", "old"]
    owner.commit()
    assert decode(place.ledger.get(first.id).payload).args == ["a", "new"]


def test_a_rollback_keeps_the_arguments(place: Place, owner: Owner) -> None:
    """After a rollback the job has its previous arguments."""
    first = place.newest.apply_async(("a", "old"), countdown=600)
    before = place.ledger.get(first.id)
    owner.submit(place.newest, "a", "new")
    owner.rollback()
    assert (place.ledger.get(first.id), place.ledger.duplicates(first.id)) == (before, [])


@pytest.mark.parametrize("commits", [True, False])
def test_the_commit_queues_the_next_run(place: Place, owner: Owner, commits: bool) -> None:
    """A run that is queued next in a transaction exists after its commit, and not after a rollback."""
    first = place.again.delay("a", "old")
    run = place.claim(first.id)
    following = owner.submit(place.again, "a", "new")
    assert following.outcome is Outcome.QUEUED_NEXT
    owner.commit() if commits else owner.rollback()
    place.ledger.complete(run, "1")
    jobs = {job.id: job for job in place.jobs()}
    assert (following.id in jobs) is commits
    assert not commits or jobs[following.id].holds_identity


def test_a_duplicate_is_recorded_at_once(place: Place, owner: Owner) -> None:
    """A duplicate in a transaction is counted and recorded at once, also when the transaction is rolled back."""
    first = place.effect.delay("a")
    owner.submit(place.effect, "a")
    (duplicate,) = place.ledger.duplicates(first.id)
    assert (duplicate.outcome, duplicate.answered_by, place.ledger.get(first.id).duplicate_count) == (
        Outcome.ATTACHED,
        first.id,
        1,
    )
    owner.rollback()
    assert place.ledger.duplicates(first.id) == [duplicate]


def test_a_duplicate_in_the_same_transaction_does_not_wait(place: Place, owner: Owner) -> None:
    """A duplicate of a job of the same transaction is attached to it."""
    first, second = owner.submit(place.effect, "a"), owner.submit(place.effect, "a")
    assert (second.id, second.outcome) == (first.id, Outcome.ATTACHED)
    owner.commit()
    assert [job.id for job in place.jobs()] == [first.id]


@pytest.mark.parametrize("commits", [True, False])
def test_a_key_is_kept_with_the_commit(place: Place, owner: Owner, commits: bool) -> None:
    """An idempotency key of a transaction names its job after the commit, and is free after a rollback."""
    first = owner.submit(place.effect, "a", idempotency_key="k")
    with pytest.raises(KeyReuseMismatchError):
        owner.submit(place.effect, "b", idempotency_key="k")
    owner.commit() if commits else owner.rollback()
    if commits:
        again = place.effect.apply_async(("a",), idempotency_key="k")
        assert (again.id, again.outcome) == (first.id, Outcome.ATTACHED)
    else:
        assert place.effect.apply_async(("b",), idempotency_key="k").outcome is Outcome.ADMITTED


def test_many_in_a_transaction(place: Place, owner: Owner) -> None:
    """The results of a batch in a transaction are in order, and its jobs are published after the commit."""
    live = place.effect.delay("live")
    results = owner.call(lambda s: place.effect.submit_many([("a",), ("live",), ("a",), {"key": "b"}], session=s))
    expected = [Outcome.ADMITTED, Outcome.ATTACHED, Outcome.ATTACHED, Outcome.ADMITTED]
    assert [result.outcome for result in results] == expected
    assert place.messages() == [live.id]
    owner.commit()
    place.sweep()
    assert place.messages() == sorted([live.id, results[0].id, results[3].id])


def test_a_refused_duplicate_raises_in_a_transaction(place: Place) -> None:
    """With `on_duplicate="raise"` a duplicate raises in a transaction, which can continue."""
    place.strict.delay("a")
    owner = SQLAlchemySession(place.url)
    results = owner.call(lambda s: place.strict.submit_many([("a",), ("b",)], session=s))
    owner.commit()
    owner.close()
    assert [result.outcome for result in results] == [Outcome.REJECTED, Outcome.ADMITTED]
    assert place.ledger.get(results[1].id).state is State.QUEUED
