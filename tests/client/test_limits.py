"""Limits from Python: their values, who uses them, and exceptions."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import onejob
from onejob.errors import InvalidLimitError
from onejob.ledger.ledger import Ledger
from tests.cases import for_each
from tests.conftest import every_store
from tests.limited import CUSTOMER, crowd, define


@every_store
def test_a_limit_has_its_value_its_use_and_who_waits(client: onejob.Client, ledger: Ledger) -> None:
    """Each limit is listed by name, and each key that jobs wait for, with the jobs that have its slots."""
    first, second, _ = crowd(ledger)
    customer, key, model = client.limits()
    assert [each.key for each in (customer, key, model)] == ["customer", CUSTOMER, "model"]
    assert (key.value, key.default, key.until) == ("2", "2", None)
    assert not key.is_exception
    assert (key.use, key.holders, key.waiting) == ("2 of 2 run", (first, second), 1)
    assert client.limit(CUSTOMER) == key
    assert (model.value, model.use, model.holders) == ("90/minute", "90/minute", ())


@every_store
def test_an_exception_is_valid_until_it_is_cleared(client: onejob.Client, ledger: Ledger) -> None:
    """An exception replaces the definition, the job that has room by it is due, and the audit log has who set it."""
    *_, third = crowd(ledger)
    soon = datetime.now(UTC) + timedelta(hours=2)
    changed = client.set_limit(CUSTOMER, 3, until=soon)
    assert (changed.value, changed.default, changed.until) == ("3", "2", soon)
    assert changed.is_exception
    assert ledger.get(third).parked_on is None
    assert client.set_limit("model", "5/hour").value == "5/hour"
    assert client.clear_limit(CUSTOMER).value == "2"
    entries = [(each.actor, each.action, each.target) for each in reversed(ledger.audit(limit=9))]
    assert entries == [
        ("ann", "set_limit", CUSTOMER), ("ann", "set_limit", "model"), ("ann", "clear_limit", CUSTOMER)
    ]  # fmt: skip


def test_the_exception_of_a_name_is_valid_for_its_keys(client: onejob.Client, ledger: Ledger) -> None:
    """A key has the value of its own exception, or else of its name's, or else of the definition."""
    define(ledger)
    client.set_limit("customer", 9)
    client.set_limit(CUSTOMER, 1)
    assert [client.limit(key).value for key in (CUSTOMER, "customer=7", "customer")] == ["1", "9", "9"]
    client.clear_limit("customer")
    assert [client.limit(key).value for key in (CUSTOMER, "customer=7")] == ["1", "2"]


@for_each("key, value, why", [
    ("other", 5, "no task defines a limit 'other'"), ("model", 5, "the limit model is a rate"),
    ("customer", "5/day", "is a number of running jobs"), ("customer", -1, "is no limit"),
    ("customer", True, "is no limit"), ("customer", 1_000_001, "is no limit"), ("", 5, "is no key"),
    ("customer=\n", 5, "is no key"),
])  # fmt: skip
def test_an_exception_that_cannot_be_is_refused(
    client: onejob.Client, ledger: Ledger, key: str, value: Any, why: str
) -> None:
    """An exception of no limit, of another kind, or without a value is refused, and nothing is written."""
    define(ledger)
    with pytest.raises(InvalidLimitError, match=why):
        client.set_limit(key, value)
    assert not any(each.is_exception for each in client.limits())


def test_an_unknown_limit_is_named(client: onejob.Client) -> None:
    """Looking for what does not exist raises an error that is also a `ValueError`; clearing it does so, too."""
    for call in (client.limit, client.clear_limit):
        with pytest.raises(ValueError, match="no task defines a limit 'other'"):
            call("other=1")


def test_waiting_jobs_are_found_by_their_key(client: onejob.Client, ledger: Ledger) -> None:
    """The filter `room` finds the jobs that wait for a key, and none if they should wait for a pause at once."""
    *_, third = crowd(ledger)
    assert [job.id for job in client.find(room=CUSTOMER).jobs] == [third]
    assert client.find(room="customer=7").jobs == []
    assert client.find(room=CUSTOMER, pause="p-1").jobs == []
    assert f"It waits for {CUSTOMER}: 2 of 2 run" in client.why(third).sentences[-1]


def test_coroutines_do_the_same(client: onejob.Client, ledger: Ledger) -> None:
    """Each method has a coroutine."""
    define(ledger)

    async def operate() -> None:
        made = await client.aset_limit(CUSTOMER, 5)
        assert await client.alimit(CUSTOMER) == made
        assert made in await client.alimits()
        assert (await client.aclear_limit(CUSTOMER)).value == "2"

    asyncio.run(operate())
