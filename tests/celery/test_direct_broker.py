"""What onejob sends, or hands over from the ledger, is byte for byte what Celery's `send_task` sends."""

import json
import os
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast
from unittest.mock import Mock
from uuid import UUID

import kombu.exceptions
import pytest
import redis
from celery import Celery
from kombu import Queue
from kombu.messaging import Producer
from kombu.transport.redis import Channel

from onejob.celery.app_state import app_state_of
from onejob.celery.messages.broker import Broker
from onejob.celery.messages.message_builder import AmqpBroker, RedisBroker
from onejob.celery.messages.payload import encode, loads, to_json
from onejob.celery.messages.publisher import DECLARE
from onejob.celery.messages.routing import PLAN_LIMIT
from onejob.celery.worker.request import message_of_job
from onejob.errors import BrokerUnavailableError
from onejob.jobs.handover import BrokerMessage
from onejob.jobs.model import JobRow, Submission
from tests.cases import for_each
from tests.celery.harness import Cluster, await_
from tests.stores.support import not_none
from tests.submissions import submission_of


class Pair:
    """An app that sends messages by Celery, and writes them for its broker."""

    kind: Any = RedisBroker
    left_out: Collection[str] = ()
    """The options that its broker does not take."""

    def __init__(self, cluster: Cluster, **settings: Any) -> None:
        self.cluster = cluster
        self.app = cluster.another_app(accept_content=["json", "yaml", "pickle"], **settings)
        self.broker = Broker(self.app, 2.0)
        cluster.at_close.callback(self.broker.close)
        routing = app_state_of(self.app).routing
        self.send: Any = app_state_of(self.app).publisher._send_by_celery
        self.writer: Any = self.kind(self.app, self.broker, routing)

    def submission(
        self, kwargs: dict[str, Any] | None = None, args: tuple[Any, ...] = (), **options: Any
    ) -> Submission:
        """Return a submission of `add`; `options` are those of the call."""
        task: Any = self.app.tasks["add"]
        own = {name: options.pop(name) for name in ("retries", "task_id") if name in options}
        new = submission_of(task, {"a": 1, "b": 2}, **options)
        limits = app_state_of(self.app).settings.limits
        payload = encode("add", args, kwargs or {}, limits)
        return replace(new, payload=payload, retries=own.get("retries", 0), id=own.get("task_id", new.id))

    def sent(self, submission: Submission) -> list[Any]:
        """Return what Celery pushes."""
        with self.broker.producer() as producer:
            self.send(submission, producer, DECLARE)
        return self.popped()

    def write(self, submission: Submission) -> BrokerMessage | None:
        message: BrokerMessage | None = self.writer.write(submission)
        return message

    def pushed(self, submission: Submission) -> list[Any]:
        """Return what is pushed of the written message."""
        self.writer.push([not_none(self.write(submission))])
        return self.popped()

    def popped(self) -> list[Any]:
        """Empty all lists; return their keys and elements, without what is random in these."""
        broker: Any = self.cluster.broker
        found = []
        for key in sorted(broker.keys("*")):
            while broker.type(key) == b"list" and (text := broker.rpop(key)):
                tag = json.loads(text)["properties"]["delivery_tag"]
                assert tag == str(UUID(tag))
                found.append((key.decode(), text.decode().replace(tag, "TAG")))
        return found

    def assert_equal(self, written: Submission, sent: Submission) -> None:
        """Assert that one message, written here, is read as another one that Celery sends."""
        ((where, text),), ((expected_where, expected),) = self.pushed(written), self.sent(sent)
        assert (where, json.loads(text)) == (expected_where, json.loads(expected))

    def assert_same(self, *submissions: Submission) -> None:
        """Assert that both ways agree on messages of one kind: the first one, and those after it."""
        for submission in submissions:
            expected = self.sent(submission)
            assert len(expected) == 1
            assert self.pushed(submission) == expected


class RabbitPair(Pair):
    """An app that sends messages to RabbitMQ by Celery, and as onejob writes them."""

    kind = AmqpBroker
    left_out = ("queue", "queue object", "routing key", "extra")  # other queues, and a user that is not there

    def __init__(self, cluster: Cluster, channel: Any, queue: str) -> None:
        super().__init__(cluster)
        self._channel, self._queue_name = channel, queue

    def assert_equal(self, written: Submission, sent: Submission) -> None:
        assert self.pushed(written) == self.sent(sent)

    def popped(self) -> list[Any]:
        """Empty the queue; return its messages."""
        await_(lambda: self._channel.queue_declare(self._queue_name, passive=True).message_count)
        found = []
        while (message := self._channel.basic_get(self._queue_name, no_ack=True)) is not None:
            info = {name: message.delivery_info[name] for name in ("exchange", "routing_key")}
            found.append((info, message.properties, message.body))
        return found


OF_A_BROKER = {"application_headers", "body_encoding", "content_encoding", "content_type", "delivery_tag"}
"""What brokers write among the properties besides those of the publication."""


def content(message: Any) -> dict[str, Any]:
    """Return what a worker reads of a message."""
    properties = {k: v for k, v in message.properties.items() if k not in OF_A_BROKER and v is not None}
    info = properties.pop("delivery_info", message.delivery_info)
    properties["priority"] = properties.get("priority", 0)  # RabbitMQ's default
    return {
        "headers": message.headers, "body": message.body, "payload": message.decode(), "properties": properties,
        "type": message.content_type, "encoding": message.content_encoding,
        "where": {name: info[name] for name in ("exchange", "routing_key")},
    }  # fmt: skip


class LedgerPair(Pair):
    """An app whose messages come from a broker, and from the ledger."""

    def delivered(self, submission: Submission) -> Any:
        """Return the message of a submission, published by Celery and received from the broker."""
        with self.broker.producer() as producer:
            self.send(submission, producer, DECLARE)
            broker: Any = self.cluster.broker
            (queue,) = [str(key, "utf-8").split("\x06")[0] for key in broker.keys("*") if broker.type(key) == b"list"]
            message = producer.channel.basic_get(queue, no_ack=True)
            message.accept = {"application/json", "application/x-yaml", "application/x-python-serialize"}
            return message

    def assert_equal(self, written: Submission, sent: Submission) -> None:
        assert content(message_of_job(self.app, written)) == content(self.delivered(sent))  # type: ignore[arg-type]

    def assert_same(self, *submissions: Submission) -> None:
        """Assert that a worker reads the same in both messages of each submission."""
        for submission in submissions:
            assert content(message_of_job(self.app, submission)) == content(self.delivered(submission))  # type: ignore[arg-type] # the fields of a job


@pytest.fixture
def pair(cluster: Cluster) -> Pair:
    """Return the two ways to a Redis."""
    return Pair(cluster)


@pytest.fixture(params=["redis", "rabbitmq", "ledger"])
def any_pair(request: pytest.FixtureRequest, cluster: Cluster) -> Pair:
    """Return the two ways to each broker."""
    if request.param == "rabbitmq":
        return RabbitPair(*map(request.getfixturevalue, ("rabbit", "channel", "queue")))
    return Pair(cluster) if request.param == "redis" else LedgerPair(cluster)


ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "args": ((1, "two"), {}),
    "kwargs": ((), {"a": 1, "b": None, "c": 2.5, "d": True}),
    "both": (("x",), {"y": "z"}),
    "quotes": (("it's", 'a "word"'), {"k'": 'v"'}),
    "escapes": (("a\nb\tc\\d",), {"e": "\x7f\x1f\x85"}),
    "formats": (("100%", "%s", "%(id)s"), {"%": "%%"}),
    "unicode": (("ü€", "\U0001f600"), {"名": "前"}),
    "nested": (([1, [2, [3, [4]]]],), {"a": {"b": {"c": {"d": {}}}}}),
    "long": (("x" * 3000,), {"y": "z" * 3000, "many": list(range(500))}),
    "json": (('", "kwargs": {}}', "]"), {"args": [], "kwargs": {}, "x": ', "kwargs": {'}),
    "types": ((datetime(2026, 1, 2, tzinfo=UTC), UUID(int=7)), {"b": b"bytes", "c": b"\xff"}),
    "numbers": ((1e300, -0.0, 10**40), {"f": 0.1}),
}


@for_each("arguments", ARGUMENTS)
def test_the_arguments_are_those_of_celery(any_pair: Pair, arguments: str) -> None:
    """Whatever the arguments, the body and the texts that show them are those of `send_task`, on each broker."""
    args, kwargs = ARGUMENTS[arguments]
    any_pair.assert_same(*[any_pair.submission(kwargs, args) for _ in range(3)])


def _link(app: Celery, value: str) -> Any:
    return app.tasks["add"].s(1, value)


OPTIONS: dict[str, Callable[[Celery], dict[str, Any]]] = {
    "priority": lambda _: {"priority": 3},
    "priority 0": lambda _: {"priority": 0},
    "queue": lambda _: {"queue": "other-queue"},
    "queue object": lambda _: {"queue": Queue("an-object", routing_key="an-object")},
    "routing key": lambda _: {"routing_key": "some.key"},
    "yaml": lambda _: {"serializer": "yaml"},
    "pickle": lambda _: {"serializer": "pickle"},
    "compression": lambda _: {"compression": "gzip"},
    "headers": lambda _: {"headers": {"trace": "100% 'x' \"y\" ü", "deep": {"a": [1]}}},
    "links": lambda app: {"link": [_link(app, "a"), _link(app, "b")], "link_error": [_link(app, "c")]},
    "chain": lambda app: {"chain": [_link(app, "last"), _link(app, "next")]},
    "chord": lambda app: {"chord": _link(app, "body"), "group_id": "group", "group_index": 2},
    "group": lambda _: {"group_id": "a-group", "group_index": 0},
    "ignore_result": lambda _: {"ignore_result": True},
    "time limits": lambda _: {"time_limit": 30, "soft_time_limit": 20.5},
    "shadow": lambda _: {"shadow": "another name"},
    "stamps": lambda _: {"stamped_headers": ["team", "on"], "team": ["a", "b"], "on": "x"},
    "argsrepr": lambda _: {"argsrepr": "(hidden)", "kwargsrepr": "{hidden}"},
    "nesting": lambda _: {"replaced_task_nesting": 2},
    "reply_to": lambda _: {"reply_to": "a-queue"},
    "parents": lambda _: {"root_id": "the-root", "parent_id": "the-parent"},
    "root": lambda _: {"root_id": "the-root"},
    "parent": lambda _: {"parent_id": "the-parent"},
    "periodic": lambda _: {"periodic_task_name": "every-minute"},
    "delivery mode": lambda _: {"delivery_mode": 1},
    "retries": lambda _: {"retries": 5},
    "expires": lambda _: {"expires": 60},
    "retry policy": lambda _: {"retry": True, "retry_policy": {"max_retries": 2}},
    "origin": lambda _: {"origin": "elsewhere"},
    "extra": lambda _: {"message_id": "m-1", "user_id": "u", "app_id": "100%"},
    "strange id": lambda _: {"task_id": "an 'id' with \"quotes\", 100%, ü and \\"},
}


TOGETHER = ("priority", "queue", "headers", "links", "chord", "time limits", "stamps", "parents", "retries")


@for_each("options", [*((name,) for name in OPTIONS), TOGETHER])
def test_every_option_has_its_place(any_pair: Pair, options: tuple[str, ...]) -> None:
    """For every option of a publication, and for many, the message is that of `send_task`, in its order."""
    taken = [OPTIONS[each](any_pair.app) for each in options if each not in any_pair.left_out]
    given = {name: value for each in taken for name, value in each.items()}
    any_pair.assert_same(*[any_pair.submission({"a": number, "b": "x"}, **given) for number in range(3)])


SETTINGS: dict[str, dict[str, Any]] = {
    "prefix": {"broker_transport_options": {"global_keyprefix": "{app}:"}},
    "separator": {"broker_transport_options": {"sep": ":", "priority_steps": list(range(10))}},
    "no base64": {"broker_transport_options": {"body_encoding": None}},
    "serializer": {"task_serializer": "yaml"},
    "compression": {"task_compression": "zlib"},
    "priority": {"task_default_priority": 6},
    "queue": {"task_default_queue": "standard"},
    "ignore_result": {"task_ignore_result": True},
    "no backend": {"result_backend": None},
    "transient": {"task_default_delivery_mode": 1},
}


@for_each("settings", SETTINGS)
def test_the_settings_of_the_app_apply(cluster: Cluster, settings: str) -> None:
    """The settings of the transport and of messages decide as they do for `send_task`."""
    pair = Pair(cluster, **SETTINGS[settings])
    pair.assert_same(*[pair.submission({"a": 1}) for _ in range(3)])
    pair.assert_same(*[pair.submission({"a": 1}, priority=4) for _ in range(3)])


def test_messages_of_tasks_are_kept_apart(pair: Pair) -> None:
    """Tasks with the same options, arguments and route have messages of their own, however often they are written."""
    for task in ("add", "add", "add", "echo", "echo", "echo", "add"):
        new = pair.submission({"a": 1})
        limits = app_state_of(pair.app).settings.limits
        pair.assert_same(replace(new, task=task, payload=encode(task, (), {"a": 1}, limits)))


@for_each("options", [*((name,) for name in OPTIONS), TOGETHER])
def test_a_message_that_is_not_written_is_that_of_celery(pair: Pair, options: tuple[str, ...]) -> None:
    """A message that kombu sends is the one that `send_task` sends, for every option of a publication."""
    given = {name: value for each in options for name, value in OPTIONS[each](pair.app).items()}
    submission = pair.submission({"a": 1, "b": "x"}, **given)
    expected = pair.sent(submission)
    with pair.broker.producer() as producer:
        app_state_of(pair.app).publisher._composer.send(cast("Any", submission), producer, DECLARE)
    assert pair.popped() == expected


CONTEXT_HEADERS: dict[str, Any] = {
    "tenant": "100% 'x' \"y\" ü", "headers": {"a": 1}, "shadow": "named", "argsrepr": "(hidden)", "own": 2,
}  # fmt: skip


def test_a_context_is_in_every_message(any_pair: Pair) -> None:
    """The headers that an app has added to a submission are in its message, and in no other's, on each broker."""
    for number in range(5):
        own = CONTEXT_HEADERS if number % 2 == 0 else {}
        submission = any_pair.submission({"a": number}, headers={"own": 1})
        with_context = replace(submission, payload=to_json(loads(submission.payload) | {"context": own}))
        expected = any_pair.submission({"a": number}, headers={"own": 1} | own)
        any_pair.assert_equal(with_context, replace(submission, options=expected.options))


# --- several at once --------------------------------------------------------------------------------------------------


QUEUES = 6
"""Three queues, each with two priorities."""


@pytest.fixture
def own_broker(own_cluster: Callable[..., Cluster]) -> Cluster:
    """Return a cluster with a broker of its own, whose commands are counted, and which may be set to refuse."""
    return own_cluster()


@pytest.fixture
def publisher(own_broker: Cluster) -> Any:
    return app_state_of(own_broker.app).publisher


def submitted(cluster: Cluster, count: int) -> list[JobRow]:
    """Submit jobs of different options, whose messages are not sent."""
    made = []
    for number in range(count):
        options: dict[str, Any] = {"queue": f"queue-{number % 3}", "priority": number % 2 * 9}
        new = submission_of(cluster.add, {"a": number}, **options)
        made.append(cluster.ledger.submit(new).job)
    return made


def messages(cluster: Cluster) -> dict[str, list[Any]]:
    """Return the messages in each queue, oldest first, without what each has for itself, and empty the queues."""
    found: dict[str, list[Any]] = {}
    for key in sorted(cast("list[bytes]", cluster.broker.keys("queue-*"))):
        found[key.decode()] = texts = [json.loads(text) for text in reversed(cluster.broker.lrange(key, 0, -1))]
        for text in texts:
            del text["properties"]["delivery_tag"], text["properties"]["delivery_info"]
        cluster.broker.delete(key)
    return found


def test_a_batch_is_what_celery_sends_one_by_one(
    own_broker: Cluster, publisher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one, in a batch of Celery, also a broken one, or pushed in one round trip: the messages are the same."""
    jobs = submitted(own_broker, 20)
    monkeypatch.setattr(publisher, "_direct_broker", lambda: None)  # for as long as Celery sends
    for job in jobs:
        publisher.publish(job)
    one_by_one = messages(own_broker)
    assert len(one_by_one) == QUEUES
    publisher.publish_all(jobs)
    assert messages(own_broker) == one_by_one
    with monkeypatch.context() as patch:
        error = getattr(kombu.exceptions, "BatchPublishError", kombu.exceptions.OperationalError)  # since kombu 5.7
        broken = error("the connection was closed")
        patch.setattr(Producer, "batch", Mock(side_effect=broken), raising=False)
        publisher.publish_all(jobs)
    assert messages(own_broker) == one_by_one
    monkeypatch.undo()
    for _ in range(3):  # the first messages of a kind are recorded, the others are filled in
        publisher.publish_all(jobs)
        assert messages(own_broker) == one_by_one
    before = own_broker.broker.info()["total_commands_processed"]
    publisher.publish_all(jobs)
    assert own_broker.broker.info()["total_commands_processed"] - before == 1 + QUEUES


def test_a_closed_connection_loses_no_message(own_broker: Cluster, publisher: Any) -> None:
    """When the broker has closed the idle connections, the next messages are sent once, on a new one."""
    jobs = submitted(own_broker, 3)
    publisher.publish_all(jobs)
    expected = messages(own_broker)
    for together in (jobs, *([job] for job in jobs)):
        own_broker.broker.client_kill_filter(_type="normal", skipme=True)
        publisher.publish_all(together)
        if len(together) > 1:
            assert messages(own_broker) == expected
    assert messages(own_broker) == expected


def test_a_broker_that_refuses_all_messages_is_away(own_broker: Cluster, publisher: Any) -> None:
    """A list that takes no message stops no other one; a broker without memory, or a replica, is away altogether."""
    jobs, broker = submitted(own_broker, 9), own_broker.broker
    publisher.publish_all(jobs)
    messages(own_broker)
    broker.set("queue-0", "no list")
    errors = publisher.publish_all(jobs)
    refused = {job.id for job in jobs if job.route == "queue-0" and not job.priority_rank}
    assert {job_id for job_id, error in errors.items() if "WRONGTYPE" in str(error)} == {*errors} == refused
    broker.delete("queue-0")
    sent = {text["headers"]["id"] for texts in messages(own_broker).values() for text in texts}
    assert sent == {job.id for job in jobs} - refused
    refusals: list[Callable[[], Any]] = [
        lambda: broker.config_set("maxmemory", 1),
        lambda: broker.config_set("maxmemory", 0) and broker.replicaof("127.0.0.1", "1"),
    ]
    for refuse in refusals:
        refuse()
        for some in (jobs, jobs[:1]):
            with pytest.raises(BrokerUnavailableError):
                publisher.publish_all(some)


# --- what is left to Celery -----------------------------------------------------------------------------------------


def test_a_forked_child_names_itself(cluster: Cluster) -> None:
    """After a fork, the origin in a message is the child, which has connections of its own."""
    publisher = app_state_of(cluster.app).publisher
    job = cluster.ledger.submit(submission_of(cluster.add, {"a": 1})).job
    for _ in range(3):
        publisher.publish(job)
    child = os.fork()
    if not child:
        try:
            publisher.publish(job)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    publisher.publish(job)
    origins = [json.loads(text)["headers"]["origin"] for text in cluster.broker.lrange("celery", 0, -1)]
    assert [origin.partition("@")[0] for origin in origins] == [f"gen{os.getpid()}", f"gen{child}"] + [
        f"gen{os.getpid()}"
    ] * 3


def test_a_given_producer_decides_on_the_broker(cluster: Cluster) -> None:
    """A message goes to the broker of the producer that the caller gives, whichever it is."""
    jobs, publisher, other = (
        submitted(cluster, 3),
        app_state_of(cluster.app).publisher,
        cluster.config["result_backend"],
    )
    for url, is_own in ((cluster.config["broker_url"], True), (other, False)):
        with cluster.app.connection_for_write(url) as connection:
            producer = connection.Producer()
            assert publisher.is_own(producer) == is_own
            publisher.publish_all(jobs, producer)
    assert sum(map(len, messages(cluster).values())) == 3
    with redis.Redis.from_url(other) as client:
        assert sum(client.llen(key) for key in cast("list[bytes]", client.keys("queue-*"))) == 3


EXPIRES = hasattr(Channel, "_maybe_update_queues_expire")
"""Whether this kombu lets the lists of a Redis expire."""


@for_each("route", [{"exchange": "topics", "routing_key": "a.b"}, *([{"queue": "short-lived"}] if EXPIRES else [])])
def test_what_is_not_one_push_is_not_written(cluster: Cluster, route: dict[str, Any]) -> None:
    """A message through a named exchange, or to a queue that expires, is sent by Celery."""
    queues = [Queue("celery"), Queue("short-lived", routing_key="short-lived", expires=60)]
    pair = Pair(cluster, task_queues=queues)
    assert [pair.write(pair.submission({"a": 1}, **route)) for _ in range(3)] == [None] * 3
    assert cluster.queued_messages() == 0
    assert pair.write(pair.submission({"a": 1})) is not None


def test_routes_of_single_calls_do_not_pile_up(pair: Pair) -> None:
    """A process that gives each call a routing key of its own remembers the latest routes only, not all of them."""
    for number in range(PLAN_LIMIT + 10):
        pair.write(pair.submission({"a": 1}, exchange="topics", routing_key=f"user.{number}"))
    routing = app_state_of(pair.app).routing
    assert [len(kept) < PLAN_LIMIT for kept in (routing._cache, pair.writer._declared)] == [True, True]


class Subclass(Celery):
    """An app with its own way to send."""

    def send_task(self, *args: Any, **options: Any) -> Any:
        return super().send_task(*args, **options)


UNWRITABLE: dict[str, dict[str, Any]] = {
    "another transport": {"broker_url": "memory://"},
    "rabbitmq": {"broker_url": "amqp://"},
    "sentinel": {"broker_url": "sentinel://127.0.0.1:1"},
    "alternates": {"broker_url": "redis://127.0.0.1:1;redis://127.0.0.1:2"},
    "events": {"task_send_sent_event": True},
    "protocol 1": {"task_protocol": 1},
    "rpc": {"result_backend": "rpc://"},
    "an unknown backend": {"result_backend": "typo://"},
}


@for_each("case", UNWRITABLE)
def test_an_app_that_does_more_than_push_is_left_to_celery(case: str) -> None:
    """Nothing is written for an app whose messages are not pushed to one Redis by Celery's own functions alone."""
    settings = {"broker_url": "redis://", **UNWRITABLE[case]}
    assert not RedisBroker.is_of(Celery(changes=settings))
    assert not RedisBroker.is_of(Subclass(broker="redis://"))
    assert RedisBroker.is_of(Celery(broker="redis://"))


@for_each("owner, name", [(Producer, "publish"), (Channel, "basic_publish"), (Celery, "send_task")])
def test_instrumentation_is_left_to_celery(owner: Any, name: str) -> None:
    """Nothing is written once a library has wrapped a function of Celery or kombu, even under its name."""
    original = getattr(owner, name)
    app = Celery(broker="redis://")
    assert RedisBroker.is_of(app)
    with pytest.MonkeyPatch.context() as patch:

        def wrapper(*args: Any, **options: Any) -> Any:
            return original(*args, **options)

        wrapper.__name__, wrapper.__module__ = original.__name__, original.__module__
        patch.setattr(owner, name, wrapper)
        assert not RedisBroker.is_of(app)
    assert RedisBroker.is_of(app)
