"""The messages of jobs need no acknowledgements to a Redis broker: nothing that the ledger knows is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import celery
import pytest

from onejob import State
from onejob.jobs.lifecycle import Transition
from tests.celery.app import PLAIN
from tests.celery.harness import LEASE, PATIENCE, House, await_, on_every_store
from tests.quiet import KILLED, provokes
from tests.services import start_redis

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SETTINGS: dict[str, Any] = {PLAIN: False, "worker_prefetch_multiplier": 10}
RECEIVED = 6
"""How many messages a worker has received whose jobs wait for the one that runs."""


@pytest.fixture
def received(house: House) -> House:
    """Return a house whose workers receive many messages at once."""
    house.config |= SETTINGS
    return house


def hold_one(house: House, number: int = RECEIVED) -> tuple[Any, list[Any]]:
    """Return the result of a running job, and those of others whose messages its worker has received."""
    held = house.play.delay("held", ["hold:never", "return"])
    house.await_mark("held")
    results = [house.play.delay(f"received-{number}", ["return"]) for number in range(number)]
    await_(lambda: not house.queued_messages())
    return held, results


def test_the_broker_keeps_no_copy_of_a_received_message(received: House) -> None:
    """Jobs run, one after the other and in canvases, and the broker stores nothing for their acknowledgement."""
    house = received
    house.worker("-c", "1")
    result = house.play.delay("alone", ["hold"])
    house.await_mark("alone")
    assert not house.broker.exists("unacked", "unacked_index")
    house.open("alone")
    assert result.get(PATIENCE) == "alone"
    chord = celery.chord([house.add.s(1), house.add.s(2)], house.echo.s())
    assert sorted(chord.apply_async().get(PATIENCE)) == [3, 4]
    house.assert_quiet()


@pytest.mark.parametrize(("setting", "copies"), [(False, 1), (True, 2)])
def test_the_broker_keeps_the_messages_of_other_tasks(house: House, *, setting: bool, copies: int) -> None:
    """By default the broker keeps the received messages of other tasks; with the setting those of jobs, too."""
    house.config |= {"onejob_broker_acks": setting, "worker_prefetch_multiplier": 10}
    house.worker("-c", "1")
    held = house.play.delay("kept", ["hold"])
    house.await_mark("kept")
    results = [house.plain.delay(1), house.play.delay("waits", ["return"])]
    await_(lambda: house.queued_messages() == house.broker.hlen("unacked") == copies)
    house.open("kept")
    assert held.get(PATIENCE) == "kept"
    assert [result.get(PATIENCE) for result in results][1] == "waits"
    await_(lambda: not house.broker.exists("unacked", "unacked_index"))
    house.assert_quiet()


@provokes(Transition.RELEASE, logs=[KILLED], because="the worker shuts down")
def test_a_stopping_worker_returns_what_it_has_received(received: House) -> None:
    """A worker that is told to stop puts the messages of jobs that it has not begun back, long before a lease ends."""
    house = received
    house.use_lease(2 * PATIENCE)
    worker = house.worker("-c", "1")
    held, results = hold_one(house)
    worker.sigterm()
    worker.await_end()
    assert house.queued_messages() == 1 + RECEIVED
    house.worker("-c", "1")
    assert [result.get(PATIENCE) for result in results] == [f"received-{number}" for number in range(RECEIVED)]
    assert held.get(PATIENCE) == "held"
    assert {house.job(result).attempt for result in results} == {1}
    house.assert_quiet()


@on_every_store("house")
@pytest.mark.usefixtures("received")
@provokes(Transition.CRASH, Transition.PUBLISH, because="the worker is killed")
def test_a_killed_worker_loses_no_job(house: House) -> None:
    """The jobs whose messages a worker had received when its group was killed run on another worker, once each."""
    house.use_lease(LEASE)
    worker = house.worker("-c", "1")
    held, results = hold_one(house)
    worker.sigkill()
    house.worker("-c", "2")
    assert [result.get(PATIENCE) for result in results] == [f"received-{number}" for number in range(RECEIVED)]
    assert held.get(PATIENCE) == "held"
    assert [house.runs(f"received-{number}") for number in range(RECEIVED)] == [1] * RECEIVED
    assert house.assert_ran(held, State.COMPLETED, "held", 2).crashes == 1
    house.assert_quiet()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[House]:
    """Return a house with a broker of its own, which the test may stop."""
    server = start_redis(tmp_path, "--databases", "4000")
    settings = SETTINGS | {"result_backend": None}
    house = House(tmp_path, server, "sqlite", settings)
    house.app.set_current()
    yield house
    house.close()
    server.stop()


@pytest.mark.deep
@provokes(Transition.PUBLISH, logs=["Cannot connect to redis"], because="the broker restarts")
def test_a_new_connection_has_no_acknowledgements_either(own: House) -> None:
    """After a restart of the broker, the worker receives messages as before; the ledger sends what it had received.

    No file with messages is left for an operator, as Celery does otherwise.
    """
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
    later = own.play.delay("later", ["hold"])
    own.await_mark("later")
    assert not own.broker.exists("unacked", "unacked_index")
    own.open("later")
    own.await_state(later, State.COMPLETED)
    own.assert_quiet()
