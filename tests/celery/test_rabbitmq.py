"""RabbitMQ as the broker: a submission waits for no confirm, and what the broker loses or refuses runs nevertheless."""

import socket
from collections.abc import Iterator
from datetime import date
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from amqp.exceptions import FrameSyntaxError

from onejob import Outcome, State
from onejob.celery.app_state import app_state_of
from onejob.jobs.lifecycle import Transition
from tests.celery.app import ACK_DELAY
from tests.celery.harness import LEASE, PATIENCE, Cluster, await_
from tests.proxies import HalfOpen
from tests.quiet import provokes
from tests.services import rabbitmq_url

COUNT = 50


@pytest.fixture
def half_open() -> Iterator[HalfOpen]:
    proxy = HalfOpen(urlsplit(rabbitmq_url()).port or 5672)
    yield proxy
    proxy.close()


def behind(half_open: HalfOpen, rabbit: Cluster) -> Any:
    """Return a task of an app that reaches RabbitMQ through a proxy, and whose connection has sent messages."""
    parts = urlsplit(rabbitmq_url())
    address = parts.netloc.rpartition("@")[0] + f"@127.0.0.1:{half_open.port}"
    task: Any = rabbit.another_app(broker_url=urlunsplit(parts._replace(netloc=address))).tasks["play"]
    for number in range(3):
        task.delay(f"first-{number}", ["return"])
    return task


def ready(channel: Any, queue: str) -> int:
    """Return how many messages wait in a queue."""
    return int(channel.queue_declare(queue, passive=True).message_count)


def accepted(cluster: Cluster) -> int:
    """Return how many messages the parent of a cluster's worker knows to be in the hands of its processes."""
    (worker,) = cluster.workers
    stats = cluster.app.control.inspect([f"{worker.name}@test"]).stats() or {}
    return sum(each["total"].get("play", 0) for each in stats.values())


def test_a_body_without_memory_ends_no_worker(rabbit: Cluster) -> None:
    """A `MemoryError`, at the first attempt and at the last one, fails its job, and its worker goes on."""
    worker = rabbit.worker("-c", "2")
    results = [
        getattr(rabbit, task).delay(task, ["odd:MemoryError"]) for task in ("play", "play_acks_late", "play_retry_all")
    ]
    for result in results:
        with pytest.raises(MemoryError):
            result.get(PATIENCE)
    assert rabbit.play.delay("next", ["return"]).get(PATIENCE) == "next"
    assert worker.alive


@provokes(Transition.CRASH, Transition.PUBLISH, because="the worker is killed")
def test_a_killed_worker_loses_no_job(rabbit: Cluster) -> None:
    """The jobs of a killed worker, the running one and those it had received, complete on another one, once each."""
    rabbit.use_lease(LEASE)
    worker = rabbit.worker("-c", "1", worker_prefetch_multiplier=10)
    held = rabbit.begin("held")
    others = [rabbit.play.delay(f"other-{number}", ["return"]) for number in range(5)]
    worker.sigkill()
    rabbit.open("held")
    rabbit.worker("-c", "2")
    assert held.get(PATIENCE) == "held"
    assert [result.get(PATIENCE) for result in others] == [f"other-{number}" for number in range(5)]
    assert [rabbit.runs(f"other-{number}") for number in range(5)] == [1] * 5
    assert rabbit.assert_ran(held, State.COMPLETED, "held", 2).crashes == 1


@provokes(Transition.PUBLISH, because="the broker refuses messages")
def test_a_refused_message_stays_in_the_ledger(rabbit: Cluster, channel: Any, queue: str) -> None:
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


def test_a_message_that_cannot_be_written_is_refused(rabbit: Cluster) -> None:
    """A header that AMQP cannot write is no outage: the call raises, and stores nothing."""
    with pytest.raises(FrameSyntaxError):
        rabbit.play.apply_async(("odd", ["return"]), headers={"day": date(2026, 1, 31)})
    assert rabbit.jobs() == []


def test_a_stopping_worker_has_acknowledged_all(rabbit: Cluster, channel: Any, queue: str) -> None:
    """Acknowledgements that wait for others are sent before a worker ends: nothing is delivered again."""
    worker = rabbit.worker("-c", "1", worker_prefetch_multiplier=10, **{ACK_DELAY: 10 * PATIENCE})
    results = [rabbit.play.delay(f"job-{number}", ["return"]) for number in range(3)]
    assert [result.get(PATIENCE) for result in results] == ["job-0", "job-1", "job-2"]
    # A job may have ended before the worker's parent has read that it began, and then Celery acknowledges nothing.
    await_(lambda: accepted(rabbit) == len(results))
    worker.stop()
    assert ready(channel, queue) == 0


# --- messages without confirms ----------------------------------------------------------------------------------------


def test_a_submission_waits_for_no_answer_of_the_broker(
    rabbit: Cluster, half_open: HalfOpen, channel: Any, queue: str
) -> None:
    """While RabbitMQ answers nothing, submissions return, and their messages are in the queue."""
    task = behind(half_open, rabbit)
    half_open.drops_replies = True
    results = [task.delay("alone", ["return"]), *task.submit_many([(f"many-{number}", ["return"]) for number in "ab"])]
    assert {rabbit.job(result).publish_error for result in results} == {""}
    await_(lambda: ready(channel, queue) == 3 + len(results))


@provokes(Transition.PUBLISH, because="messages are lost on their way")
def test_a_message_that_is_lost_is_published_again(
    rabbit: Cluster, half_open: HalfOpen, channel: Any, queue: str
) -> None:
    """A job whose unconfirmed message never arrived is published on the evidence of an empty queue, and runs once."""
    rabbit.use_lease(LEASE)
    task = behind(half_open, rabbit)
    await_(lambda: ready(channel, queue) == 3)
    half_open.drops_requests = True
    lost = task.delay("lost", ["return"])
    assert lost.outcome is Outcome.ADMITTED
    rabbit.worker("-c", "1")
    assert rabbit.play.AsyncResult(lost.id).get(PATIENCE) == "lost"
    assert rabbit.assert_ran(lost, State.COMPLETED, "lost", 1).crashes == 0


def test_an_idle_connection_that_the_broker_closed_loses_no_message(rabbit: Cluster, channel: Any, queue: str) -> None:
    """A submission notices that its connection was closed meanwhile, and writes its message on a new one."""
    app = rabbit.another_app(onejob_publish_timeout=PATIENCE)  # so that a busy machine has the time to connect
    play: Any = app.tasks["play"]
    for number in range(3):
        play.delay(f"first-{number}", ["return"])
    with app_state_of(app).publisher._broker.producer() as producer:
        producer.channel.connection.sock.shutdown(socket.SHUT_RD)  # it reads the end, as after a close by the server
    play.delay("next", ["return"])
    await_(lambda: ready(channel, queue) == 4)
