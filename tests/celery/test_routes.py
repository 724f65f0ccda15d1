"""Where a message goes: its route is resolved once, and apps with other tasks and queues share a ledger."""

import json
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from celery import Celery
from celery.exceptions import QueueNotFound
from kombu.exceptions import EncodeError, SerializerNotInstalled

from onejob import Outcome, State
from onejob.celery.app_state import app_state_of
from onejob.celery.messages.routing import Routing, is_unpublishable
from onejob.celery.submission.options import tasks_of
from onejob.errors import InvalidArgumentsError
from onejob.jobs.lifecycle import FINAL, Transition
from onejob.jobs.query import Query
from onejob.jobs.route import Route
from onejob.jobs.text_limits import TextLimits
from onejob.ledger.sweep import Publishing, sweep
from tests.cases import for_each
from tests.celery.app import ONLY
from tests.celery.harness import LEASE, LONG_LEASE, Cluster, await_, on_every_store
from tests.quiet import provokes


def queue_of(cluster: Cluster, queue: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in cluster.broker.lrange(queue, 0, -1)]


def sweep_once(app: Celery) -> Any:
    app_state = app_state_of(app)
    return sweep(app_state.ledger, Publishing(app_state.publisher.publish), tasks=frozenset(tasks_of(app)))


class Destination(str, Enum):
    EXCHANGE, KEY = "own_exchange", "own_key"


def test_a_destination_of_an_enum_is_its_text(cluster: Cluster) -> None:
    """A text of an enum leads where the same text leads, and changes no later call."""
    routing = Routing(cluster.another_app(), TextLimits())
    options = {"exchange": Destination.EXCHANGE, "routing_key": Destination.KEY}
    texts = {"exchange": "own_exchange", "routing_key": "own_key"}
    routes = [routing.plan(cluster.play, (), {}, given, None).route for given in (options, texts)]
    assert [*map(Route.decode, routes)] == [Route("own_exchange", "own_key", "")] * 2


def test_an_equal_value_of_another_type_is_not_taken_for_it(cluster: Cluster) -> None:
    """`True` is refused as a priority, also after a call whose priority was 1."""
    assert cluster.play.apply_async(("one", ["return"]), priority=1).outcome is Outcome.ADMITTED
    with pytest.raises(InvalidArgumentsError, match="priority=True"):
        cluster.play.apply_async(("two", ["return"]), priority=True)


def broken_router(*_args: Any, **_options: Any) -> Any:
    raise ZeroDivisionError("router")


# --- refused at the submission --------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception]]] = {
    "queue": ({"task_create_missing_queues": False}, {"queue": "typo"}, QueueNotFound),
    "serializer": ({}, {"serializer": "typo"}, SerializerNotInstalled),
    "compression": ({}, {"compression": "typo"}, InvalidArgumentsError),
    "router": ({"task_routes": [broken_router]}, {}, ZeroDivisionError),
    "encoding": ({"accept_content": ["json", "yaml"]}, {"serializer": "yaml"}, EncodeError),
    "content that workers refuse": ({}, {"serializer": "pickle"}, InvalidArgumentsError),
}


@for_each("case", REFUSED)
def test_what_cannot_be_sent_is_refused_and_leaves_no_row(cluster: Cluster, case: str) -> None:
    """A submission whose message has no route or no encoding raises, stores nothing, and blocks no correct one."""
    settings, options, error = REFUSED[case]
    play: Any = cluster.another_app(**settings).tasks["play"]
    item = {"key": case, "acts": ["return"], "data": uuid4()}
    calls: list[Callable[[], Any]] = [
        lambda: play.apply_async(kwargs=item, **options),
        lambda: play.apply_async(kwargs=item, countdown=5, **options),
        lambda: play.submit_many([{**item, "key": "other"}, item], **options),
    ]
    before = cluster.ledger.find(Query())
    for submit in calls:
        with pytest.raises(error) as raised:
            submit()
        assert is_unpublishable(raised.value) or error is InvalidArgumentsError
    assert cluster.ledger.find(Query()) == before
    assert cluster.play.delay(case, ["return"]).outcome is Outcome.ADMITTED


# --- the stored route -----------------------------------------------------------------------------------------------


@provokes(Transition.PUBLISH, because="no worker consumes the queue for a while")
def test_every_publication_uses_the_route_of_the_submitter(cluster: Cluster) -> None:
    """A sweeper of an app with other routes, and without the queue, sends a job where its submitter would have."""
    cluster.use_lease(LEASE)
    cluster.app.conf.update(task_routes={"play": {"queue": "of-the-submitter", "priority": 0}})
    result = cluster.play.apply_async(("routed", ["return"]), countdown=0.01)
    assert cluster.job(result).queue == "of-the-submitter"
    settings = {"task_routes": {"play": {"queue": "of-the-sweeper"}}, "task_create_missing_queues": False}
    other = cluster.another_app(**settings)
    await_(lambda: sweep_once(other).published == 1)
    (message,) = [each for name in ("of-the-submitter", "of-the-sweeper") for each in queue_of(cluster, name)]
    assert message["properties"]["delivery_info"]["routing_key"] == "of-the-submitter"
    assert message["properties"]["priority"] == 0
    assert [entry.detail for entry in cluster.ledger.history(result.id)][-1].startswith(
        "published to queue of-the-subm"
    )


def test_a_router_is_called_once(cluster: Cluster) -> None:
    """A router function decides once per submission, with its arguments, however often the job is published."""
    calls: list[Any] = []

    def router(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **_: Any) -> Any:
        calls.append((name, args[0]))
        return {"queue": f"of-{args[0]}"}

    cluster.app.conf.update(task_routes=[router])
    results = [cluster.play.delay(key, ["return"]) for key in ("a", "b")]
    publisher = app_state_of(cluster.app).publisher
    publisher.publish_all([cluster.job(result) for result in results])
    assert calls == [("play", "a"), ("play", "b")]
    assert (len(queue_of(cluster, "of-a")), len(queue_of(cluster, "of-b"))) == (2, 2)
    cluster.app.conf.update(task_routes={"play": {"queue": "changed"}})
    assert cluster.play.delay("c", ["return"]).job.queue == "changed"
    publisher.publish(replace(cluster.job(results[0]), route=""))  # a job of another version
    assert len(queue_of(cluster, "changed")) == 2
    result = cluster.play.apply_async(("topic", ["return"]), exchange="topics", routing_key="a.b", countdown=5)
    assert json.loads(cluster.job(result).route)[:2] == ["topics", "a.b"]


@provokes(logs=("QueueNotFound",), because="Celery logs that it rejects the message")
@pytest.mark.deep
def test_a_retry_to_an_unknown_queue_fails_the_job(cluster: Cluster) -> None:
    """A run that retries to a queue that does not exist, and must not be created, fails with that reason."""
    cluster.worker("-c", "1", task_create_missing_queues=False)
    job = cluster.await_state(cluster.play.delay("lost", ["retry_to:typo"]), State.FAILED)
    assert "QueueNotFound" in job.reason
    assert "typo" in job.reason


# --- two services -----------------------------------------------------------------------------------------------------


COUNTDOWN = 0.5


class Services(NamedTuple):
    """Two services on one ledger; `orders` has the task `play`, and `mails` the task `play_no_result`."""

    orders: Cluster
    mails: Cluster


@pytest.fixture
def services(request: pytest.FixtureRequest, new_cluster: Callable[..., Cluster]) -> Services:
    """Return two services without workers."""
    orders = new_cluster(getattr(request, "param", "sqlite"), "orders", **{ONLY: ["play"]})
    ledger = {name: orders.config[name] for name in ("onejob_store", "onejob_namespace") if name in orders.config}
    mails = new_cluster("sqlite", "mails", **ledger, **{ONLY: ["play_no_result"], "onejob_lease": LEASE})
    return Services(orders, mails)


@on_every_store("services")
def test_neither_service_publishes_jobs_of_the_other(services: Services) -> None:
    """Jobs with countdowns of two services are published once, each by its own, while both sweep one ledger."""
    orders, mails = services.orders, services.mails
    for cluster in (orders, mails):
        cluster.use_lease(LONG_LEASE)
        cluster.start("-P", "solo")
    for cluster in (orders, mails):
        cluster.workers[0].await_ready()
    results = [
        (cluster, task.apply_async((f"{task.name}-{number}", ["return"]), countdown=COUNTDOWN))
        for number in range(5)
        for cluster, task in ((orders, orders.play), (mails, mails.play_no_result))
    ]
    for cluster, result in results:
        cluster.await_state(result, *FINAL)
        assert cluster.events(result).count("publish") <= 1  # none is noted if a worker was quicker
    for cluster in services:
        assert "Received unregistered task" not in cluster.workers[0].text
        names = {message["headers"]["task"] for message in queue_of(cluster, "celery")}
        assert names <= set(cluster.config[ONLY])


def test_workers_register_their_tasks_and_queues(services: Services) -> None:
    """A worker registers its tasks, its pool and the queues that it consumes, also when they change."""
    services.orders.worker("-P", "threads", "-c", "3", "-Q", "orders,urgent")
    (worker,) = await_(services.orders.ledger.store.workers)
    assert (worker.tasks, worker.pool, worker.concurrency) == (("play",), "thread", 3)
    assert worker.queues == ("orders", "urgent")
    assert worker.knows("play")
    assert not worker.knows("play_no_result")
    services.orders.app.control.cancel_consumer("urgent", reply=True)
    services.orders.app.control.add_consumer("late", reply=True)
    await_(lambda: services.orders.ledger.store.workers()[0].queues == ("late", "orders"))
