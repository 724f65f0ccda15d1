"""The messages of jobs need no acknowledgements to a Redis broker: nothing that the ledger knows is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onejob import State
from onejob.jobs.lifecycle import Transition
from tests.celery.app import PLAIN
from tests.celery.harness import LEASE, PATIENCE, House, await_
from tests.quiet import KILLED, provokes

SETTINGS: dict[str, Any] = {PLAIN: False, "worker_prefetch_multiplier": 10}
RECEIVED = 6
"""How many messages a worker has received whose jobs wait for the one that runs."""


def hold_one(house: House, number: int = RECEIVED) -> tuple[Any, list[Any]]:
    """Return the result of a running job, and those of others whose messages its worker has received."""
    held = house.begin("held", ["hold:never", "return"])
    results = [house.play.delay(f"received-{number}", ["return"]) for number in range(number)]
    await_(lambda: not house.queued_messages())
    return held, results


@pytest.mark.parametrize(("setting", "copies"), [(False, 1), (True, 2)])
def test_the_broker_keeps_the_messages_of_other_tasks(house: House, *, setting: bool, copies: int) -> None:
    """By default the broker keeps the received messages of other tasks; with the setting those of jobs, too."""
    house.config |= {"onejob_broker_acks": setting, "worker_prefetch_multiplier": 10}
    house.worker("-c", "1")
    held = house.begin("kept")
    results = [house.plain.delay(1), house.play.delay("waits", ["return"])]
    await_(lambda: house.queued_messages() == house.broker.hlen("unacked") == copies)
    house.open("kept")
    assert held.get(PATIENCE) == "kept"
    assert [result.get(PATIENCE) for result in results][1] == "waits"
    await_(lambda: not house.broker.exists("unacked", "unacked_index"))
    house.assert_quiet()


@provokes(Transition.RELEASE, logs=[KILLED], because="the worker shuts down")
def test_a_stopping_worker_returns_what_it_has_received(house: House) -> None:
    """A worker that is told to stop puts the messages of jobs that it has not begun back, long before a lease ends."""
    house.config |= SETTINGS
    house.use_lease(2 * PATIENCE)
    worker = house.worker("-c", "1")
    held, results = hold_one(house)
    worker.stop()
    assert house.queued_messages() == 1 + RECEIVED
    house.worker("-c", "1")
    assert [result.get(PATIENCE) for result in results] == [f"received-{number}" for number in range(RECEIVED)]
    assert held.get(PATIENCE) == "held"
    assert {house.job(result).attempt for result in results} == {1}
    house.assert_quiet()


@pytest.mark.deep
@provokes(Transition.PUBLISH, logs=["Cannot connect to redis"], because="the broker restarts")
def test_a_new_connection_has_no_acknowledgements_either(own_house: Callable[..., House]) -> None:
    """After a restart of the broker, the worker receives messages as before; the ledger sends what it had received.

    No file with messages is left for an operator, as Celery does otherwise.
    """
    own = own_house(**SETTINGS, result_backend=None)
    own.use_lease(LEASE)
    worker = own.worker("-c", "1")
    held, results = hold_one(own)
    own.server.stop()
    own.server.start()
    worker.await_text("6 received messages could not be returned")
    assert "DUMP" not in worker.text
    own.open("never")
    for each in (held, *results):
        own.await_state(each, State.COMPLETED)
    later = own.begin("later")
    assert not own.broker.exists("unacked", "unacked_index")
    own.open("later")
    own.await_state(later, State.COMPLETED)
    own.assert_quiet()
