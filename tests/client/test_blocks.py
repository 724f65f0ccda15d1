"""Pauses and strikes from Python: what they select, what is refused, and what the audit log has of them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery

import onejob
from onejob.errors import BlockNotFoundError, InvalidBlockError
from onejob.ledger.ledger import Ledger
from tests.cases import for_each
from tests.conftest import every_store

INVOICE = "shop.invoice"


@every_store
def test_blocks_are_made_listed_and_ended(client: onejob.Client, ledger: Ledger) -> None:
    """Each block is listed under its kind with what it selects until it is ended, and the audit log has both."""
    soon = datetime.now(UTC) + timedelta(hours=2)
    pause = client.pause(task=INVOICE, where={"order.id": 42, "paid": True}, until=soon, note="the  bank\nis down")
    strike = client.strike(INVOICE, queue="slow")
    assert (client.pauses(), client.strikes()) == ([pause], [strike])
    assert (pause.kind, pause.where, pause.note) == ("pause", {"order.id": "42", "paid": "true"}, "the bank is down")
    assert pause.until == soon
    assert (pause.created_by, strike.task, strike.queue) == ("in Python by ann", INVOICE, "slow")
    assert (client.resume(pause.id), client.lift(strike.id)) == (pause, strike)
    assert (client.pauses(), client.strikes()) == ([], [])
    entries = [(each.actor, each.action, each.target, each.detail) for each in reversed(ledger.audit(limit=9))]
    assert entries == [
        ("ann", "pause", INVOICE, f"task={INVOICE} order.id paid"),
        ("ann", "strike", INVOICE, f"task={INVOICE} queue=slow"),
        ("ann", "resume", pause.id, ""), ("ann", "lift", strike.id, ""),
    ]  # fmt: skip


@for_each("given, why", [
    ({}, "a pause that selects every job is refused"),
    ({"task": INVOICE, "until": timedelta(0)}, "would be over already"),
    ({"where": {"a b": 1}}, "'a b' is no path into arguments"),
    ({"where": {"order[0]": 1}}, "is no path into arguments"),
    ({"where": {f"a{number}": 1 for number in range(9)}}, "9 arguments are named; at most 8"),
    ({"task": "x" * 257}, "the task has 257 characters"),
    ({"queue": "q", "note": "n" * 201}, "the note has 201 characters"),
])  # fmt: skip
def test_a_pause_that_cannot_work_is_refused(client: onejob.Client, given: dict[str, Any], why: str) -> None:
    """A pause that selects everything, is over, or has an invalid path is refused, and nothing is written."""
    with pytest.raises(InvalidBlockError, match=why):
        client.pause(**given)
    assert client.pauses() == []


def test_a_time_has_a_zone(client: onejob.Client) -> None:
    """A naive time, and a number, are refused as what they are."""
    with pytest.raises(ValueError, match="has no time zone"):
        client.pause(task=INVOICE, until=datetime(2099, 1, 1))
    wrong: Any = 3600
    with pytest.raises(TypeError, match="until is a datetime, or a timedelta after now"):
        client.pause(task=INVOICE, until=wrong)


def test_an_app_knows_its_tasks_and_their_arguments(app: Celery) -> None:
    """With an app, a task or an argument that does not exist is refused with a similar name."""
    client = onejob.Client(app)
    with pytest.raises(InvalidBlockError, match=r"no onejob task named 'shop\.invoise'.*did you mean shop\.invoice"):
        client.pause(task="shop.invoise")
    with pytest.raises(InvalidBlockError, match=r"has no argument named 'orderid'.*did you mean order_id"):
        client.strike(INVOICE, where={"orderid": 7})
    assert client.strike(INVOICE, where={"order_id": 7}).where == {"order_id": "7"}


def test_an_unknown_block_is_named(client: onejob.Client) -> None:
    """Ending what does not exist raises an error that is also a `LookupError`."""
    with pytest.raises(BlockNotFoundError, match="no pause has the id 'p-0'"):
        client.resume("p-0")


def test_coroutines_do_the_same(client: onejob.Client) -> None:
    """Each method has a coroutine."""

    async def operate() -> None:
        made = await client.apause(queue="slow")
        assert await client.apauses() == [made]
        assert await client.aresume(made.id) == made
        struck = await client.astrike(INVOICE)
        assert await client.astrikes() == [struck]
        assert await client.alift(struck.id) == struck

    asyncio.run(operate())
