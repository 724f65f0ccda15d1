"""A message is sent again only when it is known to be gone: a backlog gets no copies, and drains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onejob.jobs.lifecycle import State, Transition
from tests.celery.harness import House, await_, on_every_store
from tests.quiet import provokes

if TYPE_CHECKING:
    from collections.abc import Sequence

BACKLOG = 100
SHORT = 1.0
"""A lease, as short as the heartbeat of a house permits."""


def publications(house: House) -> int:
    """Return how often sweeps have published any job."""
    return sum(entry.event == Transition.PUBLISH for job in house.jobs() for entry in house.ledger.history(job.id))


def await_completed(house: House, results: Sequence[Any]) -> None:
    """Wait until jobs have completed."""
    ids = [result.id for result in results]
    await_(lambda: all(job.state is State.COMPLETED for job in house.ledger.get_many(ids).values()))


@on_every_store("house")
def test_a_backlog_gets_no_copies(house: House) -> None:
    """Jobs that wait longer than their lease, without a worker and then behind each other, are sent and run once."""
    house.use_lease(SHORT)
    results = house.add.submit_many([(number,) for number in range(BACKLOG)])
    last = results[-1].job
    await_(lambda: house.ledger.read_clock() > last.created_at + 2 * last.lease)
    assert house.add.delay(BACKLOG - 1).id == last.id
    house.worker("-c", "1")
    await_completed(house, results)
    assert publications(house) == 0
    assert {house.job(result).attempt for result in results} == {1}
    house.assert_quiet()


@on_every_store("house")
@provokes(Transition.PUBLISH, because="the broker loses the message")
def test_a_message_that_the_broker_lost_is_sent_again(house: House) -> None:
    """A job whose message was lost while it was in the queue is live, and runs, at its first attempt."""
    house.use_lease(SHORT)
    lost = house.play.delay("lost", ["return"])
    assert house.queued_messages() == 1
    house.broker.flushdb() if house.kind != "redis" else house.app.control.purge()
    assert house.play.delay("lost", ["return"]).id == lost.id
    house.worker("-c", "1")
    assert house.assert_ran(lost, State.COMPLETED, "lost", runs=1).attempt == 1


@provokes(Transition.CRASH, Transition.PUBLISH, because="the worker is killed")
@pytest.mark.parametrize("restarted", [False, True], ids=["another worker", "the same worker"])
def test_the_jobs_that_a_killed_worker_held_run_soon(house: House, *, restarted: bool) -> None:
    """Jobs in the memory of a killed worker are published when its heartbeat expires, however long they have waited."""
    house.use_lease(SHORT)
    house.config |= {"worker_prefetch_multiplier": 8}
    busy = house.worker("-c", "1")
    house.play_leased.delay("held", ["hold:never"])
    house.await_mark("held")
    waiting = [house.play.delay(f"waiting-{number}", ["return"]) for number in range(5)]
    await_(lambda: not house.queued_messages())
    first = waiting[0].job
    await_(lambda: house.ledger.read_clock() > first.created_at + 3 * SHORT)
    assert publications(house) == 0
    await_(lambda: len(house.ledger.workers()[0].reserved) == 1 + len(waiting))
    busy.sigkill()
    killed_at = house.ledger.read_clock()
    if restarted:
        house.workers.remove(busy)  # so that the next one has its name
    house.worker("-c", "1")
    await_completed(house, waiting)
    started = [house.job(result).started_at or 0.0 for result in waiting]
    assert min(started) > killed_at
