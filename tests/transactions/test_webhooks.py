"""Webhooks of submissions in a transaction: created by its commit, without blocking other jobs before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob import Outcome
from onejob.celery.webhooks import ADDED_LIMIT
from onejob.errors import TooManyWebhooksError
from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query
from onejob.webhooks.job import WEBHOOK

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from tests.transactions.owners import Owner
    from tests.transactions.place import Place

URL = "https://hooks.example/"


def webhooks(place: Place) -> list[Job]:
    """Return the webhooks of a ledger."""
    return place.ledger.find(Query(task=WEBHOOK))


def submit(owner: Owner, place: Place, key: str) -> Outcome:
    """Submit a job with a webhook in an owner's transaction."""
    outcome: Outcome = owner.submit(place.effect, key, webhook_url=URL).outcome
    return outcome


def test_a_webhook_is_created_by_the_commit(place: Place, owner: Owner) -> None:
    """A webhook exists after the commit of its submission's transaction, and not after a rollback."""
    for end, count in ((owner.rollback, 0), (owner.commit, 1)):
        assert submit(owner, place, "a") is Outcome.ADMITTED
        assert webhooks(place) == []
        end()
        assert len(webhooks(place)) == count


def test_a_webhook_of_a_duplicate_blocks_nothing(place: Place, owner: Owner) -> None:
    """A live job can end while a transaction with a webhook for it is open; the webhook is sent after the commit."""
    first = place.effect.apply_async(("a",))
    job = place.claim(first.id)
    assert submit(owner, place, "a") is Outcome.ATTACHED
    place.ledger.complete(job, "null")
    owner.commit()
    (webhook,) = webhooks(place)
    assert (webhook.state, webhook.follows_id) == (State.QUEUED, first.id)
    assert [each.id for each in place.ledger.store.take_due(tasks=place.tasks, limit=10, hold=60.0)] == [webhook.id]


def test_an_end_after_the_commit_makes_the_webhook_due(place: Place, owner: Owner) -> None:
    """The end of a job makes a webhook due that was created in the same transaction."""
    submit(owner, place, "a")
    owner.commit()
    (webhook,) = webhooks(place)
    place.ledger.store.take_due(tasks=place.tasks, limit=10, hold=3600.0)
    place.ledger.complete(place.claim(str(webhook.follows_id)), "null")
    assert [each.id for each in place.ledger.store.take_due(tasks=place.tasks, limit=10, hold=60.0)] == [webhook.id]


def test_a_transaction_adds_few_webhooks(place: Place, owner: Owner) -> None:
    """The limit of webhooks per job holds in transactions, too; one that is refused adds none, and its job stands."""
    first = place.effect.apply_async(("a",))
    for number in range(ADDED_LIMIT):
        owner.submit(place.effect, "a", webhook_url=f"{URL}{number}")
    with pytest.raises(TooManyWebhooksError, match="which is the limit"):
        owner.submit(place.effect, "a", webhook_url=f"{URL}new")
    owner.commit()
    assert len(webhooks(place)) == ADDED_LIMIT
    assert place.ledger.get(first.id).state is State.QUEUED
