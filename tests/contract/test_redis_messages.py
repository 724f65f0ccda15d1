"""Messages that the Redis store pushes to a broker on its own server, in the operation that makes a job due."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
import redis

from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import BrokerMessage, Outcome
from onejob.ledger.ledger import Ledger
from onejob.stores.protocol import MessagePushingStore
from tests.cases import for_each
from tests.contract.support import (
    CONFLICT_POLICIES,
    LEASE,
    RUN_AGAIN,
    ManualClock,
    StoreAddress,
    change,
    end,
    read,
    run,
    start,
    submission,
    submit,
    submit_one,
    sweep,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onejob.jobs.model import Admission, Job, Submission
    from onejob.stores.protocol import Store


class Broker:
    """The lists of a broker in the store's Redis."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    def message(self, text: str = "message", queue: str = "queue") -> BrokerMessage:
        """Return a message to a list of this test."""
        return BrokerMessage(f"{self._prefix}-{queue}", text)

    def message_of(self, job: Submission) -> BrokerMessage:
        """Return the message of a submission: its id."""
        return self.message(job.id)

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
    return submit_one(store, submission(job_id, **values), wake_after=LEASE, message_of=broker.message_of)


def test_the_message_of_a_new_job_is_pushed_once(store: Store, broker: Broker, clock: ManualClock) -> None:
    """A new job that is due has its message pushed; the repeated submission pushes nothing and returns the same."""
    first = sent(store, broker)
    assert (first.outcome, first.sent) == (Outcome.ADMITTED, True)
    assert first.job == read(store)
    clock.advance(1.0)
    assert sent(store, broker) == first
    assert broker.pushed() == ["job-1"]


def test_a_message_is_pushed_as_it_is(store: Store, broker: Broker) -> None:
    """The text of a message arrives unchanged, and behind the messages that wait already."""
    texts = ["x" * 300_000, json.dumps({"body": "é\n\x00\U0001f600"}, ensure_ascii=False), "last"]
    for number, text in enumerate(texts):
        submit_one(store, submission(f"job-{number}"), wake_after=LEASE, message_of=lambda _: broker.message(text))  # noqa: B023 - called now
    assert broker.pushed() == texts


@for_each("values", [{"delay": 5.0}, {"expires_in": 0.0}])
def test_no_message_is_pushed_for_a_job_that_is_not_due(store: Store, broker: Broker, values: dict[str, Any]) -> None:
    """A delayed job, and one that has expired, is written without its message, also by a repeated submission."""
    for _ in range(2):
        answer = sent(store, broker, str(values), **values)
        assert (answer.outcome, answer.sent) == (Outcome.ADMITTED, False)
    assert broker.pushed() == []


@for_each("policy, begun", product(CONFLICT_POLICIES, (False, True)))
def test_no_message_is_pushed_for_a_duplicate(store: Store, broker: Broker, policy: str, begun: bool) -> None:
    """A duplicate pushes nothing, whatever its outcome, and neither does its follower, or one that a key answers."""
    name = f"{policy}-{begun}"
    submit(store, name, identity=name, key=name)
    if begun:
        start(store, name)
    more: list[dict[str, Any]] = [{}, {}, {"follows": True}, {"key": name}]
    for number, values in enumerate(more):
        given: dict[str, Any] = {"identity": name, "fingerprint": "x"} | CONFLICT_POLICIES[policy] | values
        assert not sent(store, broker, f"{name}-{number}", **given).sent
    assert broker.pushed() == []


@for_each("values", [RUN_AGAIN, {"follows": True}])
def test_a_repeated_submission_says_what_was_pushed(store: Store, broker: Broker, values: dict[str, Any]) -> None:
    """The repeated submission of a job that is queued next, or that follows another, says that nothing was pushed."""
    name = str(values)
    run(store, name, identity=name)
    answers = [sent(store, broker, f"next-{name}", identity=name, **values) for _ in range(2)]
    assert [(each.outcome, each.sent) for each in answers] == [(answers[0].outcome, False)] * 2
    assert broker.pushed() == []


def test_no_message_is_written_for_a_known_duplicate(store: Store, broker: Broker) -> None:
    """The message of a submission whose identity is known to be held is not even written."""
    sent(store, broker, identity="same")
    sent(store, broker, "other-1", identity="same")  # which finds the holder
    written: list[Submission] = []
    again = submit_one(store, submission("other-2", identity="same"), wake_after=LEASE, message_of=written.append)
    assert (again.outcome, written) == (Outcome.ATTACHED, [])


def test_a_batch_pushes_the_messages_of_its_new_jobs(store: Store, broker: Broker) -> None:
    """A batch pushes the message of each new job that is due, in its order, and each to its own list."""
    submit(store, "held", identity="held")
    batch = [submission(f"job-{number}") for number in range(250)]
    batch[3] = replace(batch[3], identity="held")
    batch[5] = replace(batch[5], delay=5.0)
    batch[11] = replace(batch[11], identity=batch[10].identity)
    batch[13] = replace(batch[13], key="k")
    unsent = {3, 5, 7, 11}
    special = {"job-7": None, "job-9": broker.message("elsewhere", "other")}

    def message_of(job: Submission) -> BrokerMessage | None:
        return special[job.id] if job.id in special else broker.message_of(job)

    for _ in range(2):
        answers = store.submit_many(batch, wake_after=LEASE, message_of=message_of)
        assert {number for number, answer in enumerate(answers) if not answer.sent} == unsent
    assert broker.pushed() == [f"job-{number}" for number in range(250) if number not in unsent | {9}]
    assert broker.pushed("other") == ["elsewhere"]


def test_an_id_that_a_batch_repeats_is_answered_by_the_first(store: Store, broker: Broker) -> None:
    """The second submission of an id in a batch gets the answer of the first, though that needs another script."""
    run(store, "first", identity="same")
    batch = [submission("again", identity=identity, follows=True) for identity in ("same", "other")]
    answers = store.submit_many(batch, wake_after=LEASE, message_of=broker.message_of)
    assert [(each.outcome, each.job.id, each.sent) for each in answers] == [(Outcome.ATTACHED, "first", False)] * 2
    assert broker.pushed() == []


# --- changes --------------------------------------------------------------------------------------------------------


def test_the_message_of_a_change_is_pushed_once(store: Store, broker: Broker) -> None:
    """A run that is retried at once has its message pushed; the repeated change pushes nothing and returns the same."""
    retry = change(run(store), Transition.RETRY, run_in=0.0, message=broker.message("again"))
    applied = store.apply(retry)
    assert (applied.applied, applied.sent) == (True, True)
    start(store)
    repeated = store.apply(retry)
    assert (repeated.applied, repeated.sent, repeated.job) == (True, True, read(store))
    assert broker.pushed() == ["again"]


@pytest.mark.parametrize("was_running", [True, False])
def test_a_sweep_pushes_the_message_of_a_job(
    store: Store, broker: Broker, clock: ManualClock, was_running: bool
) -> None:
    """A sweep has the store push the message of a waiting or lost job with its change, and sends nothing itself."""
    job = submit(store)
    if was_running:
        start(store)
    clock.advance(LEASE)
    sent: list[Job] = []
    swept = sweep(Ledger(store), sent.append, message_of=lambda job: broker.message(job.id))
    assert (swept.published, swept.lapsed, sent) == (1, int(was_running), [])
    assert broker.pushed() == [job.id]


def test_changes_push_for_jobs_that_wait_for_a_run(store: Store, broker: Broker) -> None:
    """A redrive pushes its message; a change that ends, delays or keeps a run, or is refused, pushes none, twice."""
    failed = end(store, run(store), Transition.FAIL)
    assert store.apply(change(failed, Transition.REDRIVE, reopens=True, run_in=0.0, message=broker.message())).sent
    message = broker.message("none")
    stale = run(store, "job-5")
    accepted = [
        change(run(store, "job-2"), Transition.RETRY, run_in=5.0, message=message),
        change(run(store, "job-3"), Transition.COMPLETE, message=message),
        change(run(store, "job-4"), Transition.REQUEST_CANCEL, message=message),
    ]
    refused = change(stale, Transition.RETRY, token=stale.token - 1, message=message)
    for request in (*accepted, refused, replace(refused, job_id="unknown")) * 2:
        applied = store.apply(request)
        assert (applied.applied, applied.sent) == (request in accepted, False)
    assert broker.pushed() == ["message"]


def test_the_address_of_a_store_is_the_server_without_secrets(store: Store, broker: Broker, redis_url: str) -> None:
    """The address names the server, the database and the user, and no password."""
    assert isinstance(store, MessagePushingStore)
    assert store.address == redis_url.replace("redis://", "redis://default@")
    assert broker.pushed() == []
