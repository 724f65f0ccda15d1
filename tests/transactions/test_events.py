"""Job events of transactions: emitted after the commit, never before it or after a rollback."""

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
def emitted(place: Place, monkeypatch: pytest.MonkeyPatch) -> list[JobEvent]:
    """Return the list of emitted events."""
    emitted: list[JobEvent] = []
    monkeypatch.setattr(place.ledger, "emit", emitted.append)
    return emitted


def test_a_submission_emits_its_event_after_the_commit(place: Place, owner: Owner, emitted: list[JobEvent]) -> None:
    """A submission emits its event after the commit if the library reports commits, and otherwise emits none."""
    first, second = owner.submit(place.effect, "a"), owner.submit(place.effect, "a")
    assert emitted == []
    owner.commit()
    submissions = [(event.job_id, event.fields["outcome"]) for event in emitted if event.name == "job_submitted"]
    assert submissions == ([(first.id, "admitted"), (second.id, "attached")] if owner.hooked else [])


def test_a_rollback_emits_nothing(place: Place, owner: Owner, emitted: list[JobEvent]) -> None:
    """A submission that was rolled back, also to a savepoint, emits no event."""
    owner.submit(place.effect, "a")
    owner.rollback()
    savepoint = owner.savepoint()
    owner.submit(place.effect, "b")
    savepoint.rollback()
    owner.commit()
    assert [event for event in emitted if event.name == "job_submitted"] == []


def test_an_unavailable_broker_suppresses_no_event(
    place: Place, owner: Owner, emitted: list[JobEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each submission of a transaction emits its event after the commit, also when the broker is unavailable."""
    monkeypatch.setattr("onejob.celery.submit.publish", lambda *_args: False)
    for key in "abc":
        owner.submit(place.effect, key)
    owner.commit()
    assert [event.name for event in emitted].count("job_submitted") == (3 if owner.hooked else 0)


@pytest.mark.parametrize("how", ["commits", "loses the answer"])
def test_a_completion_in_a_transaction_emits_one_event(working: Place, how: str) -> None:
    """A run that completes in a transaction emits one event, also when the response of the commit is lost."""
    result = working.effect.delay(f"emitted-{how}", how)
    working.ended(result)
    line = f"event=job_completed job_id={result.id}"
    eventually(lambda: line in working.log(), PATIENCE)
    assert working.log().count(line) == 1
