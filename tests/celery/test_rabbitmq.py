"""RabbitMQ as the broker: it confirms every message, and what it refuses stays in the ledger."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Connection

from onejob import Outcome, State
from onejob.jobs.lifecycle import Transition
from tests.celery.harness import LEASE, PATIENCE, House, await_
from tests.quiet import provokes
from tests.services import rabbitmq_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

COUNT = 50


@pytest.fixture(scope="session")
def url() -> str:
    """Return the URL of a RabbitMQ."""
    return rabbitmq_url()


@pytest.fixture
def channel(url: str) -> Iterator[Any]:
    """Return a channel of a connection of the test's own."""
    with Connection(url) as connection:
        yield connection.default_channel


@pytest.fixture
def queue(channel: Any) -> Iterator[str]:
    """Return the name of a queue that does not exist yet; it and its exchange are deleted at the end."""
    name = f"onejob-test-{secrets.token_hex(8)}"
    yield name
    channel.queue_delete(name)
    channel.exchange_delete(name)


@pytest.fixture
def rabbit(url: str, queue: str, new_house: Callable[..., House], tmp_path: Path) -> Iterator[House]:
    """Return a house without a worker whose messages go through RabbitMQ."""
    own = {"task_default_queue": queue, "control_exchange": queue}  # tests of other processes have a worker w1, too
    house = new_house(tmp_path, "sqlite", broker_url=url, broker_transport_options={}, **own)
    house.app.set_current()
    yield house
    house.close()


def ready(channel: Any, queue: str) -> int:
    """Return how many messages wait in a queue."""
    return int(channel.queue_declare(queue, passive=True).message_count)


def test_equal_jobs_run_once(rabbit: House) -> None:
    """Equal submissions, one by one and in a batch, are one job, and each different one is another; each runs once."""
    first = rabbit.play.delay("one", ["hold"])
    assert [rabbit.play.delay("one", ["hold"]).outcome for _ in range(3)] == [Outcome.ATTACHED] * 3
    results = rabbit.play.submit_many([(f"many-{number}", ["return"]) for number in range(COUNT)] * 2)
    assert len({result.id for result in results}) == COUNT
    rabbit.worker("-c", "4")
    rabbit.open("one")
    assert first.get(PATIENCE) == "one"
    assert [result.get(PATIENCE) for result in results] == [f"many-{number}" for number in range(COUNT)] * 2
    assert [rabbit.runs(f"many-{number}") for number in range(COUNT)] == [1] * COUNT
    assert rabbit.runs("one") == 1


@provokes(Transition.CRASH, Transition.PUBLISH, because="the worker is killed")
def test_a_killed_worker_loses_no_job(rabbit: House) -> None:
    """The jobs of a killed worker, the running one and those it had received, complete on another one, once each."""
    rabbit.use_lease(LEASE)
    worker = rabbit.worker("-c", "1", worker_prefetch_multiplier=10)
    held = rabbit.play.delay("held", ["hold"])
    rabbit.await_mark("held")
    others = [rabbit.play.delay(f"other-{number}", ["return"]) for number in range(5)]
    worker.sigkill()
    rabbit.open("held")
    rabbit.worker("-c", "2")
    assert held.get(PATIENCE) == "held"
    assert [result.get(PATIENCE) for result in others] == [f"other-{number}" for number in range(5)]
    assert [rabbit.runs(f"other-{number}") for number in range(5)] == [1] * 5
    assert rabbit.assert_ran(held, State.COMPLETED, "held", 2).crashes == 1


@provokes(Transition.PUBLISH, because="the broker refuses messages")
def test_a_refused_message_stays_in_the_ledger(rabbit: House, channel: Any, queue: str) -> None:
    """If RabbitMQ refuses a message, as a full queue does, the submission succeeds, and a sweep publishes it later."""
    rabbit.use_lease(LEASE)
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    channel.queue_declare(queue, durable=True, auto_delete=False, arguments=arguments)
    channel.exchange_declare(queue, "direct", durable=True, auto_delete=False)
    channel.queue_bind(queue, queue, queue)
    items = [(f"full-{number}", ["return"]) for number in range(6)]
    results = [*rabbit.play.submit_many(items[:3]), *[rabbit.play.delay(*item) for item in items[3:]]]
    assert [result.outcome for result in results] == [Outcome.ADMITTED] * 6
    await_(lambda: ready(channel, queue) == 1)
    assert {rabbit.job(result).state for result in results} == {State.QUEUED}
    channel.queue_delete(queue)
    rabbit.worker("-c", "1")
    assert [result.get(PATIENCE) for result in results] == [key for key, _ in items]
    assert [rabbit.runs(key) for key, _ in items] == [1] * 6
