"""What is told of a transaction: what has become true, and nothing before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.services import eventually
from tests.transactions.place import PATIENCE

if TYPE_CHECKING:
    from onejob.observability.events import JobEvent
    from tests.transactions.owners import Owner
    from tests.transactions.place import Place


@pytest.fixture
def told(place: Place, monkeypatch: pytest.MonkeyPatch) -> list[JobEvent]:
    """Return what the ledger has told since."""
    told: list[JobEvent] = []
    monkeypatch.setattr(place.ledger, "tell", told.append)
    return told


def test_a_submission_is_told_after_the_commit(place: Place, owner: Owner, told: list[JobEvent]) -> None:
    """A submission is told when it has become true, where the library tells of that; elsewhere it is not told."""
    first, second = owner.submit(place.effect, "a"), owner.submit(place.effect, "a")
    assert told == []
    owner.commit()
    submissions = [(event.job_id, event.fields["outcome"]) for event in told if event.name == "job_submitted"]
    assert submissions == ([(first.id, "admitted"), (second.id, "attached")] if owner.hooked else [])


def test_nothing_is_told_of_a_rollback(place: Place, owner: Owner, told: list[JobEvent]) -> None:
    """What was rolled back, whole or to a savepoint, has not happened."""
    owner.submit(place.effect, "a")
    owner.rollback()
    savepoint = owner.savepoint()
    owner.submit(place.effect, "b")
    savepoint.rollback()
    owner.commit()
    assert [event for event in told if event.name == "job_submitted"] == []


def test_a_broker_that_is_away_silences_nobody(
    place: Place, owner: Owner, told: list[JobEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each submission of a transaction is told after the commit, also when the broker takes no message."""
    monkeypatch.setattr("onejob.celery.submit.publish", lambda *_args: False)
    for key in "abc":
        owner.submit(place.effect, key)
    owner.commit()
    assert [event.name for event in told].count("job_submitted") == (3 if owner.hooked else 0)


@pytest.mark.parametrize("how", ["commits", "loses the answer"])
def test_a_completion_in_a_transaction_is_told_once(working: Place, how: str) -> None:
    """A run that its body's transaction has ended is told as completed, once, whatever the commit answered."""
    result = working.effect.delay(f"told-{how}", how)
    working.ended(result)
    line = f"event=job_completed job_id={result.id}"
    eventually(lambda: line in working.log(), PATIENCE)
    assert working.log().count(line) == 1
