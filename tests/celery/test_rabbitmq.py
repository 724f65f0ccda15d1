"""RabbitMQ as the broker: a submission waits for no confirm, and what the broker loses or refuses runs nevertheless."""

from __future__ import annotations

import secrets
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from kombu import Connection

from onejob import Outcome, State
from onejob.celery.app_state import app_state_of
from onejob.celery.direct_broker import AmqpBroker
from onejob.jobs.lifecycle import Transition
from tests.cases import for_each
from tests.celery.harness import LEASE, PATIENCE, HalfOpen, House, await_
from tests.celery.test_direct_broker import ARGUMENTS, OPTIONS, TOGETHER, Pair
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


@pytest.fixture
def half_open(url: str) -> Iterator[HalfOpen]:
    """Return a proxy in front of RabbitMQ."""
    proxy = HalfOpen(urlsplit(url).port or 5672)
    yield proxy
    proxy.close()


def behind(half_open: HalfOpen, rabbit: House, url: str) -> Any:
    """Return a task of an app that reaches RabbitMQ through a proxy, and whose connection has sent messages."""
    parts = urlsplit(url)
    address = parts.netloc.rpartition("@")[0] + f"@127.0.0.1:{half_open.port}"
    task: Any = rabbit.another_app(broker_url=urlunsplit(parts._replace(netloc=address))).tasks["play"]
    for number in range(3):
        task.delay(f"first-{number}", ["return"])
    return task


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


def test_a_stopping_worker_has_acknowledged_all(rabbit: House, channel: Any, queue: str) -> None:
    """Acknowledgements that wait for others are sent before a worker ends: nothing is delivered again."""
    rabbit.use_lease(LEASE)
    worker = rabbit.worker("-c", "1", worker_prefetch_multiplier=10)
    results = [rabbit.play.delay(f"job-{number}", ["return"]) for number in range(3)]
    assert [result.get(PATIENCE) for result in results] == ["job-0", "job-1", "job-2"]
    worker.sigterm()
    worker.await_end()
    assert ready(channel, queue) == 0


# --- messages without confirms ----------------------------------------------------------------------------------------


def test_a_submission_waits_for_no_answer_of_the_broker(
    rabbit: House, half_open: HalfOpen, url: str, channel: Any, queue: str
) -> None:
    """While RabbitMQ answers nothing, submissions return, and their messages are in the queue."""
    task = behind(half_open, rabbit, url)
    half_open.drops_replies = True
    results = [task.delay("alone", ["return"]), *task.submit_many([(f"many-{number}", ["return"]) for number in "ab"])]
    assert {rabbit.job(result).publish_error for result in results} == {""}
    await_(lambda: ready(channel, queue) == 3 + len(results))


@provokes(Transition.PUBLISH, because="messages are lost on their way")
def test_a_message_that_is_lost_is_published_again(
    rabbit: House, half_open: HalfOpen, url: str, channel: Any, queue: str
) -> None:
    """A job whose unconfirmed message never arrived is published on the evidence of an empty queue, and runs once."""
    rabbit.use_lease(LEASE)
    task = behind(half_open, rabbit, url)
    await_(lambda: ready(channel, queue) == 3)
    half_open.drops_requests = True
    lost = task.delay("lost", ["return"])
    assert lost.outcome is Outcome.ADMITTED
    rabbit.worker("-c", "1")
    assert rabbit.play.AsyncResult(lost.id).get(PATIENCE) == "lost"
    assert rabbit.assert_ran(lost, State.COMPLETED, "lost", 1).crashes == 0


def test_an_idle_connection_that_the_broker_closed_loses_no_message(rabbit: House, channel: Any, queue: str) -> None:
    """A submission notices that its connection was closed meanwhile, and writes its message on a new one."""
    app = rabbit.another_app(onejob_publish_timeout=PATIENCE)  # so that a busy machine has the time to connect
    play: Any = app.tasks["play"]
    for number in range(3):
        play.delay(f"first-{number}", ["return"])
    with app_state_of(app).publisher._broker.producer() as producer:
        producer.channel.connection.sock.shutdown(socket.SHUT_RD)  # it reads the end, as after a close by the server
    play.delay("next", ["return"])
    await_(lambda: ready(channel, queue) == 4)


# --- messages are those of Celery -------------------------------------------------------------------------------------


class RabbitPair(Pair):
    """An app that sends messages to RabbitMQ by Celery, and as onejob writes them."""

    kind = AmqpBroker

    def __init__(self, house: House, channel: Any, queue: str) -> None:
        super().__init__(house)
        self._channel, self._queue_name = channel, queue

    def popped(self) -> list[Any]:
        """Empty the queue; return its messages."""
        await_(lambda: ready(self._channel, self._queue_name) > 0)
        found = []
        while (message := self._channel.basic_get(self._queue_name, no_ack=True)) is not None:
            info = {name: message.delivery_info[name] for name in ("exchange", "routing_key")}
            found.append((info, message.properties, message.body))
        return found


@pytest.fixture
def pair(rabbit: House, channel: Any, queue: str) -> RabbitPair:
    """Return the two ways."""
    return RabbitPair(rabbit, channel, queue)


LEFT_OUT = {"queue", "queue object", "routing key", "extra"}
"""Options with another queue, and with a user that is not there."""


@for_each("options", [*((name,) for name in OPTIONS if name not in LEFT_OUT), tuple({*TOGETHER} - LEFT_OUT)])
def test_every_option_has_its_place(pair: RabbitPair, options: tuple[str, ...]) -> None:
    """For every option of a publication, the properties, headers and body are those of `send_task`."""
    given = {name: value for each in options for name, value in OPTIONS[each](pair.app).items()}
    pair.assert_same(*[pair.submission({"a": number, "b": "x"}, **given) for number in range(3)])


@for_each("arguments", ARGUMENTS)
def test_the_arguments_are_those_of_celery(pair: RabbitPair, arguments: str) -> None:
    """Whatever the arguments, the body and the texts that show them are those of `send_task`."""
    args, kwargs = ARGUMENTS[arguments]
    pair.assert_same(*[pair.submission(kwargs, args) for _ in range(3)])
