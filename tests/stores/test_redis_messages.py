"""Messages that the Redis store pushes to a broker on its own server, in the operation that makes a job due."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import redis

from onejob.errors import PartlySubmittedError, StoreRefusedError
from onejob.jobs.handover import BY_CALLER, BrokerMessage, Handover, pushed
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Admission, JobRow, Outcome, Submission
from onejob.jobs.query import Query
from onejob.ledger.ledger import Ledger
from onejob.stores.protocol import MessagePushingStore, Store
from onejob.stores.redis.client import Client
from onejob.stores.redis.rows import Keys, job_of
from tests.stores.support import (
    LEASE,
    ManualClock,
    StoreAddress,
    change,
    run,
    start,
    submission,
    submit,
    sweep,
)


class Broker:
    """The lists of a broker in the store's Redis."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    def message(self, text: str = "message", queue: str = "queue") -> BrokerMessage:
        """Return a message to a list of this test."""
        return BrokerMessage(f"{self._prefix}-{queue}", text)

    def handover_of(self, job: Submission) -> Handover:
        """Return the hand-over of a submission with its message: its id."""
        return pushed(self.message(job.id))

    def pushed(self, queue: str = "queue") -> list[str]:
        """Return the messages of a list, oldest first."""
        found: Any = self._client.lrange(f"{self._prefix}-{queue}", 0, -1)
        return [element.decode() for element in reversed(found)]


@pytest.fixture
def store(redis_url: str, redis_prefix: str, clock: ManualClock) -> Iterator[Store]:
    with StoreAddress(redis_url, redis_prefix).opened(clock) as opened:
        yield opened


@pytest.fixture
def broker(redis_url: str, redis_prefix: str) -> Iterator[Broker]:
    with redis.Redis.from_url(redis_url) as client:
        yield Broker(client, redis_prefix)
        client.delete(*(f"{redis_prefix}-{queue}" for queue in ("queue", "other")))


def sent(store: Store, broker: Broker, job_id: str = "job-1", **values: Any) -> Admission:
    """Submit a job with its message."""
    return store.submit_many([submission(job_id, **values)], handover_of=broker.handover_of)[0]


def test_a_message_is_pushed_as_it_is(store: Store, broker: Broker) -> None:
    """The text of a message arrives unchanged, and behind the messages that wait already."""
    texts = ["x" * 300_000, json.dumps({"body": "é\n\x00\U0001f600"}, ensure_ascii=False), "last"]
    for number, text in enumerate(texts):
        handover = pushed(broker.message(text))
        store.submit_many([submission(f"job-{number}")], handover_of=lambda _: handover)  # noqa: B023 - called now
    assert broker.pushed() == texts


def test_no_message_is_written_for_a_known_duplicate(store: Store, broker: Broker) -> None:
    """The message of a submission whose identity is known to be held is not even written."""
    sent(store, broker, identity="same")
    sent(store, broker, "other-1", identity="same")  # which finds the holder
    write = Mock()
    (again,) = store.submit_many([submission("other-2", identity="same")], handover_of=write)
    assert again.outcome is Outcome.ATTACHED
    write.assert_not_called()


def test_a_batch_pushes_the_messages_of_its_new_jobs(store: Store, broker: Broker) -> None:
    """A batch pushes the message of each new job that is due, in its order, and each to its own list."""
    submit(store, "held", identity="held")
    batch = [submission(f"job-{number}") for number in range(250)]
    batch[3] = replace(batch[3], identity="held")
    batch[5] = replace(batch[5], delay=5.0)
    batch[11] = replace(batch[11], identity=batch[10].identity)
    batch[13] = replace(batch[13], key="k")
    unsent = {3, 5, 7, 11}
    special = {"job-7": BY_CALLER, "job-9": pushed(broker.message("elsewhere", "other"))}

    def handover_of(job: Submission) -> Handover:
        return special[job.id] if job.id in special else broker.handover_of(job)

    for _ in range(2):
        answers = store.submit_many(batch, handover_of=handover_of)
        assert {number for number, answer in enumerate(answers) if not answer.handed_over} == unsent
    assert broker.pushed() == [f"job-{number}" for number in range(250) if number not in unsent | {9}]
    assert broker.pushed("other") == ["elsewhere"]


def test_a_key_of_another_type_concerns_its_own_job_only(
    store: Store, broker: Broker, redis_url: str, redis_prefix: str
) -> None:
    """Of a batch that is one call, a job is refused for a key of another type, and one that cannot be pushed is not."""
    batch = [submission(f"job-{number}", task="app.add") for number in range(6)]
    with redis.Redis.from_url(redis_url) as client:
        broken = Keys(redis_prefix).identity(batch[2].identity)
        client.hset(broken, "no", "text")
        client.set(broker.message("", "other").destination, "no list")
        special = {"job-4": pushed(broker.message("job-4", "other"))}
        handover_of = lambda job: special.get(job.id) or broker.handover_of(job)  # noqa: E731
        for expected in (["job-0", "job-1", "job-3", "job-5"],) * 2:
            with pytest.raises(PartlySubmittedError) as caught:
                store.submit_many(batch, handover_of=handover_of)
            refused = caught.value.results[2]
            assert isinstance(refused, StoreRefusedError)
            answers = [answer for answer in caught.value.results if isinstance(answer, Admission)]
            assert [(each.outcome, each.job.id) for each in answers] == [
                (Outcome.ADMITTED, f"job-{number}") for number in (0, 1, 3, 4, 5)
            ]
            assert broker.pushed() == expected
        assert sum(store.count_states(limit=99).values()) == len(store.find(Query())) == 5
        retry = change(
            run(store, "other"), Transition.RETRY, run_in=0.0, handover=pushed(broker.message("again", "other"))
        )
        assert [store.apply(retry).handed_over for _ in range(2)] == [False, False]
        client.delete(broken)


def test_an_id_that_a_batch_repeats_is_answered_by_the_first(store: Store, broker: Broker) -> None:
    """The second submission of an id in a batch gets the answer of the first, though that needs another script."""
    run(store, "first", identity="same")
    batch = [submission("again", identity=identity, follows=True) for identity in ("same", "other")]
    answers = store.submit_many(batch, handover_of=broker.handover_of)
    assert [(each.outcome, each.job.id, each.handed_over) for each in answers] == [
        (Outcome.ATTACHED, "first", False)
    ] * 2
    assert broker.pushed() == []


# --- changes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("was_running", [True, False])
def test_a_sweep_pushes_the_message_of_a_job(
    store: Store, broker: Broker, clock: ManualClock, was_running: bool
) -> None:
    """A sweep has the store push the message of a waiting or lost job with its change, and sends nothing itself."""
    job = submit(store)
    if was_running:
        start(store)
    clock.advance(LEASE)
    sent: list[JobRow] = []
    swept = sweep(Ledger(store), sent.append, by_store=lambda job: pushed(broker.message(job.id)))
    assert (swept.published, swept.lapsed, sent) == (1, int(was_running), [])
    assert broker.pushed() == [job.id]


def test_the_address_of_a_store_is_the_server_without_secrets(store: Store, broker: Broker, redis_url: str) -> None:
    """The address names the server, the database and the user, and no password."""
    assert isinstance(store, MessagePushingStore)
    assert store.address == redis_url.replace("redis://", "redis://default@")
    assert broker.pushed() == []


# --- sweeps ---------------------------------------------------------------------------------------------------------


def test_a_sweep_reads_what_it_has_taken_however_a_time_is_written(redis_url: str, redis_prefix: str) -> None:
    """A job that was taken is read by its time as a number: servers write a score with 17 digits, or with fewer."""
    client, keys = Client(redis_url), Keys(redis_prefix)
    with StoreAddress(redis_url, redis_prefix).opened() as store:
        submit(store, "due", wake_after=0.0)
    found_in = keys.wake("app.add")
    wake_at, ids, _ = client.call("take_due", (*keys.wake_sets, found_in), ("1", "100", ""))
    assert ids == ["due"]
    for text in (wake_at, f"{float(wake_at):.25g}"):
        (job,) = client.call("read_due", (*keys.wake_sets, found_in, keys.job("due")), (text, "due"))
        assert job_of("due", job).state is State.QUEUED, text
    client.close()
