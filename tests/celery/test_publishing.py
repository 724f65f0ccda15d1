"""What is sent to the broker together is what would be sent one by one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest
from celery import signals
from kombu.exceptions import BatchPublishError  # type: ignore[attr-defined] # the published types lack it
from kombu.messaging import Producer

from onejob.celery.app_state import app_state_of
from onejob.celery.submission import prepare_submission

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onejob.jobs.model import Job
    from tests.celery.harness import House

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


@pytest.fixture
def sent() -> Iterator[list[str]]:
    """Return the ids in Celery's signals of sent messages."""
    ids: list[str] = []

    def note(headers: Any = None, **_: Any) -> None:
        ids.append(headers["id"])

    signals.before_task_publish.connect(note)
    yield ids
    signals.before_task_publish.disconnect(note)


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


def test_a_batch_that_fails_is_sent_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the connection breaks while a batch is sent, its messages are sent one by one."""
    jobs, publisher = _jobs(house, 5), app_state_of(house.app).publisher
    publisher.publish_all(jobs)
    expected = _messages(house)

    def broken(_self: Producer, **_: Any) -> Any:
        raise BatchPublishError("the connection was closed")

    monkeypatch.setattr(Producer, "batch", broken)
    publisher.publish_all(jobs)
    assert _messages(house) == expected


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
