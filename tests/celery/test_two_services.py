"""Two services with tasks, brokers and workers of their own, on one ledger: neither publishes jobs of the other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import FINAL, State, Transition
from tests.celery.app import ONLY
from tests.celery.harness import LEASE, LONG_LEASE, await_, on_every_store
from tests.quiet import provokes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from onejob import AsyncResult
    from tests.celery.harness import House

COUNTDOWN = 0.5
BACKLOG = 300


class Services:
    """Two services on one ledger; `orders` has the task `play`, and `mails` the task `play_silent`."""

    def __init__(self, orders: House, mails: House) -> None:
        self.orders = orders
        self.mails = mails

    def assert_no_foreign_message(self) -> None:
        """Assert that no worker got a message of a task that it does not have, and no broker has one."""
        for house in (self.orders, self.mails):
            for worker in house.workers:
                assert "Received unregistered task" not in worker.text
            raw = house.broker.lrange("celery", 0, -1)
            names = {json.loads(message)["headers"]["task"] for message in raw}
            assert names <= set(house.config[ONLY])


@pytest.fixture
def services(request: pytest.FixtureRequest, new_house: Callable[..., House], tmp_path: Path) -> Iterator[Services]:
    """Return two services without workers."""
    directories = [tmp_path / name for name in ("orders", "mails")]
    for directory in directories:
        directory.mkdir()
    orders = new_house(directories[0], getattr(request, "param", "sqlite"), **{ONLY: ["play"]})
    ledger = {name: orders.config[name] for name in ("onejob_store", "onejob_namespace") if name in orders.config}
    mails = new_house(directories[1], "sqlite", **ledger, **{ONLY: ["play_silent"], "onejob_lease": LEASE})
    yield Services(orders, mails)
    for house in (mails, orders):
        house.close()


@on_every_store("services")
def test_neither_service_publishes_jobs_of_the_other(services: Services) -> None:
    """Jobs with countdowns of two services are published once, each by its own, while both sweep one ledger."""
    orders, mails = services.orders, services.mails
    for house in (orders, mails):
        house.use_lease(LONG_LEASE)
        house.start("-P", "solo")
    for house in (orders, mails):
        house.workers[0].await_ready()
    results = [
        (house, task.apply_async((f"{task.name}-{number}", ["return"]), countdown=COUNTDOWN))
        for number in range(5)
        for house, task in ((orders, orders.play), (mails, mails.play_silent))
    ]
    for house, result in results:
        assert_on_time(house, result)
    services.assert_no_foreign_message()


@provokes(Transition.CRASH, Transition.PUBLISH, because="a worker is killed, and its service is down for a while")
@pytest.mark.deep
def test_the_backlog_of_a_stopped_service_delays_no_other(services: Services) -> None:
    """While a service is down with due jobs and a lost run, the other is on time; then all of them run."""
    orders, mails = services.orders, services.mails
    orders.use_lease(3 * LEASE)  # it ends leases of others once it has been up for one of its own
    worker = mails.worker("-P", "solo")
    lost = mails.play_silent.delay("lost", ["hold:lost", "return"])
    mails.await_mark("lost")
    worker.sigkill()
    keys = [(f"mail-{number}", ["return"]) for number in range(BACKLOG)]
    backlog = mails.play_silent.submit_many(keys, countdown=0.1)
    orders.worker("-P", "threads", "-c", "4")
    results = [orders.play.apply_async((f"order-{number}", ["return"]), countdown=COUNTDOWN) for number in range(10)]
    for result in results:
        assert_on_time(orders, result)
    await_(lambda: mails.job(lost).state is State.QUEUED)
    assert orders.queued_messages() == 0
    assert {mails.job(result).published for result in backlog} == {0}
    mails.worker("-P", "threads", "-c", "4")
    for result in (lost, *backlog):
        assert mails.await_state(result, *FINAL).state is State.COMPLETED
    services.assert_no_foreign_message()


def assert_on_time(house: House, result: AsyncResult) -> None:
    """Assert that a job ends after at most one noted publication; none is noted if a worker was quicker."""
    house.await_state(result, *FINAL)
    assert house.events(result).count("publish") <= 1


def test_workers_register_their_tasks_and_queues(services: Services) -> None:
    """A worker registers its tasks, its pool and the queues that it consumes, also when they change."""
    services.orders.worker("-P", "threads", "-c", "3", "-Q", "orders,urgent")
    (worker,) = await_(services.orders.ledger.store.workers)
    assert (worker.tasks, worker.pool, worker.concurrency) == (("play",), "thread", 3)
    assert worker.queues == ("orders", "urgent")
    assert worker.knows("play")
    assert not worker.knows("play_silent")
    services.orders.app.control.cancel_consumer("urgent", reply=True)
    services.orders.app.control.add_consumer("late", reply=True)
    await_(lambda: services.orders.ledger.store.workers()[0].queues == ("late", "orders"))
