"""What is sent to the broker together is what would be sent one by one."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest
import redis
from celery import signals
from kombu.exceptions import BatchPublishError  # type: ignore[attr-defined] # the published types lack it
from kombu.messaging import Producer

from onejob.celery.app_state import app_state_of
from onejob.celery.submission import prepare_submission
from onejob.errors import BrokerUnavailableError
from tests.celery.harness import DATABASES, House
from tests.services import start_redis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from onejob.jobs.model import Job

OWN = {"delivery_tag", "delivery_info"}
"""What a message has for itself alone."""


def _jobs(house: House, count: int) -> list[Job]:
    """Submit jobs of different options, whose messages are not sent."""
    made = []
    for number in range(count):
        new = prepare_submission(
            house.add, {"a": number, "b": 1}, source="test", queue=f"queue-{number % 3}", priority=number % 2 * 9
        )
        made.append(house.ledger.submit(new).job)
    return made


def _messages(house: House) -> dict[str, list[Any]]:
    """Return the messages in each queue, oldest first, without what each has for itself, and empty the queues."""
    found: dict[str, list[Any]] = {}
    for key in sorted(cast("list[bytes]", house.broker.keys("queue-*"))):
        texts = [json.loads(text) for text in reversed(house.broker.lrange(key, 0, -1))]
        for text in texts:
            text["properties"] = {name: value for name, value in text["properties"].items() if name not in OWN}
        found[key.decode()] = texts
        house.broker.delete(key)
    return found


@contextmanager
def _listening() -> Iterator[list[str]]:
    """Yield the ids in Celery's signals of sent messages, for which Celery has to send them."""
    ids: list[str] = []

    def note(headers: Any = None, **_: Any) -> None:
        ids.append(headers["id"])

    signals.before_task_publish.connect(note)
    yield ids
    signals.before_task_publish.disconnect(note)


@pytest.fixture
def sent() -> Iterator[list[str]]:
    """Return the ids in Celery's signals of sent messages."""
    with _listening() as ids:
        yield ids


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[House]:
    """Return a house with a broker of its own."""
    server = start_redis(tmp_path, "--databases", str(DATABASES))
    house = House(tmp_path, server, "sqlite")
    yield house
    house.close()
    server.stop()


def test_messages_sent_together_are_those_sent_one_by_one(house: House, sent: list[str]) -> None:
    """A batch of messages is in the same queues, in the same order, with the same content, and each is announced."""
    jobs, publisher = _jobs(house, 20), app_state_of(house.app).publisher
    for job in jobs:
        publisher.publish(job)
    one_by_one = _messages(house)
    publisher.publish_all(jobs)
    assert _messages(house) == one_by_one
    assert len(one_by_one) == 6  # three queues, each with two priorities
    assert sent == [job.id for job in jobs] * 2


def test_a_batch_that_fails_is_sent_again(house: House, sent: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """When the connection breaks while Celery sends a batch, its messages are sent one by one."""
    jobs, publisher = _jobs(house, 5), app_state_of(house.app).publisher
    publisher.publish_all(jobs)
    expected = _messages(house)

    def broken(_self: Producer, **_: Any) -> Any:
        raise BatchPublishError("the connection was closed")

    monkeypatch.setattr(Producer, "batch", broken)
    publisher.publish_all(jobs)
    assert _messages(house) == expected
    assert sent == [job.id for job in jobs] * 2


def test_celery_and_onejob_send_the_same(own_broker: House) -> None:
    """What onejob pushes itself, in one round trip, is in the same queues, with the same content, as Celery's."""
    house = own_broker  # whose commands are counted
    jobs, publisher = _jobs(house, 20), app_state_of(house.app).publisher
    with _listening():
        publisher.publish_all(jobs)
    by_celery = _messages(house)
    for _ in range(3):  # the first messages of a kind are recorded, the others are filled in
        publisher.publish_all(jobs)
        assert _messages(house) == by_celery
    before = house.broker.info()["total_commands_processed"]
    publisher.publish_all(jobs)
    after = house.broker.info()["total_commands_processed"]
    assert after - before == 1 + 6  # a list for each queue and priority


def test_a_given_producer_decides_on_the_broker(house: House) -> None:
    """A message goes to the broker of the producer that the caller gives, whichever it is."""
    jobs, publisher = _jobs(house, 3), app_state_of(house.app).publisher
    other = house.config["result_backend"]
    for url, is_own in ((house.config["broker_url"], True), (other, False)):
        with house.app.connection_for_write(url) as connection:
            producer = connection.Producer()
            assert publisher.is_own(producer) == is_own
            publisher.publish_all(jobs, producer)
    assert sum(map(len, _messages(house).values())) == 3
    with redis.Redis.from_url(other) as client:
        assert sum(client.llen(key) for key in cast("list[bytes]", client.keys("queue-*"))) == 3


def test_a_closed_connection_loses_no_message(own_broker: House) -> None:
    """When the broker has closed the idle connections, the next messages are sent once, on a new one."""
    house = own_broker
    jobs, publisher = _jobs(house, 3), app_state_of(house.app).publisher
    publisher.publish_all(jobs)
    expected = _messages(house)
    ways: list[Callable[[], Any]] = [
        lambda: publisher.publish_all(jobs),
        lambda: [publisher.publish_all([job]) for job in jobs],
    ]
    for send in ways:
        house.broker.client_kill_filter(_type="normal", skipme=True)
        send()
        assert _messages(house) == expected


def test_a_list_that_takes_no_message_stops_no_other(house: House) -> None:
    """A message that the broker refuses is an error of its job; the messages for other queues are sent."""
    jobs, publisher = _jobs(house, 9), app_state_of(house.app).publisher
    publisher.publish_all(jobs)
    _messages(house)
    house.broker.set("queue-0", "no list")
    errors = publisher.publish_all(jobs)
    refused = [job.id for job in jobs if job.route == "queue-0" and not job.priority_rank]
    assert sorted(errors) == sorted(refused)
    assert all("WRONGTYPE" in str(error) for error in errors.values())
    house.broker.delete("queue-0")
    sent = {text["headers"]["id"] for texts in _messages(house).values() for text in texts}
    assert sent == {job.id for job in jobs} - set(refused)


def test_a_broker_that_refuses_all_messages_is_away(own_broker: House) -> None:
    """A broker that takes no writes, or has no memory left, is unavailable, whatever the message."""
    house = own_broker
    jobs, publisher = _jobs(house, 2), app_state_of(house.app).publisher
    publisher.publish_all(jobs)
    refusals: list[Callable[[], Any]] = [
        lambda: house.broker.config_set("maxmemory", 1),
        lambda: house.broker.config_set("maxmemory", 0) and house.broker.replicaof("127.0.0.1", "1"),
    ]
    for refuse in refusals:
        refuse()
        for some in (jobs, jobs[:1]):
            with pytest.raises(BrokerUnavailableError):
                publisher.publish_all(some)


def test_long_arguments_are_shown_as_celery_shows_them(house: House) -> None:
    """The texts that a message shows of its arguments are whole when these are short, and cut by Celery otherwise."""
    publisher = app_state_of(house.app).publisher
    for value in ("short", "long" * 1000):
        new = prepare_submission(house.add, {"a": value, "b": 1}, source="test", queue="queue-0")
        publisher.publish(house.ledger.submit(new).job)
    short, long = (each["headers"]["kwargsrepr"] for each in _messages(house)["queue-0"])
    assert short == "{'a': 'short', 'b': 1}"
    assert len(long) < 1100
    assert "..." in long
