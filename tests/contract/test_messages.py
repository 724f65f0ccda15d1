"""A store as a broker: messages that are no jobs wait in queues, are taken, acknowledged, and delivered again."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest

from onejob.jobs.records import Delivery, NewMessage
from onejob.stores.protocol import FORGOTTEN_AFTER, MessageStore
from onejob.stores.signals import JOB, MESSAGE, Channel
from tests.conftest import on_stores
from tests.contract.support import ManualClock, StoreAddress, submit

HOLD = 30.0
NOBODY = "nobody"
fresh_address = on_stores("sqlite", "postgresql")


def put(store: MessageStore, *ids: str, to: str = "q", exchange: str = "", **more: Any) -> list[str]:
    """Write messages, whose bodies are their ids, and return the queues that got them."""
    return store.put_messages([NewMessage(each, exchange, to, body=each, **more) for each in ids])


def take(store: MessageStore, *queues: str, limit: int = 10, consumer: str = "c", hold: float = HOLD) -> list[Delivery]:
    """Take messages."""
    return store.take_messages(queues or ["q"], limit=limit, consumer=consumer, hold=hold)


def bodies(deliveries: list[Delivery]) -> list[str]:
    """Return the bodies of deliveries."""
    return [each.body for each in deliveries]


def test_messages_are_taken_by_priority_then_by_age(store: MessageStore) -> None:
    """Of several queues, the messages with the highest priority come first, then the oldest, as many as wanted."""
    put(store, "old", "new")
    put(store, "other", to="r")
    put(store, "urgent", to="r", priority=9)
    assert bodies(take(store, "q", "r", limit=2)) == ["urgent", "old"]
    assert bodies(take(store, "q", "r")) == ["new", "other"]
    assert take(store, "q", "r") == []


def test_a_repeated_message_is_written_once(store: MessageStore) -> None:
    """A message that is written again, as after a lost reply, has one copy in a queue."""
    put(store, "a")
    put(store, "a", "b")
    assert bodies(take(store)) == ["a", "b"]


def test_only_its_consumer_ends_a_message(store: MessageStore, clock: ManualClock) -> None:
    """Another consumer, or one whose message was taken by another since, neither deletes nor releases it."""
    put(store, "a")
    (first,) = take(store)
    store.delete_messages([first.id], consumer=NOBODY)
    clock.advance(HOLD)
    store.renew_messages([], [], consumer=NOBODY, hold=HOLD)
    assert bodies(take(store, consumer="d")) == ["a"]
    store.delete_messages([first.id], consumer="c")
    store.release_messages([first.id], consumer="c")
    assert take(store) == []
    store.release_messages([first.id], consumer="d")
    assert bodies(take(store)) == ["a"]


def test_a_released_message_returns_to_its_place(store: MessageStore) -> None:
    """A message that is returned is the first of its queue again, marked as redelivered."""
    put(store, "a", "b")
    (first,) = take(store, limit=1)
    store.release_messages([first.id], consumer="c")
    assert [(each.body, each.redelivered) for each in take(store)] == [("a", True), ("b", False)]


def test_a_message_without_acknowledgement_is_deleted_at_once(store: MessageStore, clock: ManualClock) -> None:
    """A message that is taken without a deadline never comes again."""
    put(store, "a")
    assert bodies(take(store, hold=0)) == ["a"]
    clock.advance(10 * HOLD)
    store.renew_messages([], [], consumer=NOBODY, hold=HOLD)
    assert take(store) == []


def test_a_dead_consumers_messages_are_delivered_again(store: MessageStore, clock: ManualClock) -> None:
    """The messages of a consumer that renews no deadline return to their queue; those of another one do not."""
    put(store, "a", "b")
    take(store, limit=1, consumer="dead")
    (mine,) = take(store, limit=1, consumer="alive")
    clock.advance(HOLD / 2)
    store.renew_messages([mine.id], [], consumer="alive", hold=HOLD)
    clock.advance(HOLD / 2)
    store.renew_messages([mine.id], [], consumer="alive", hold=HOLD)
    assert [(each.body, each.redelivered) for each in take(store)] == [("a", True)]


def test_concurrent_consumers_share_messages(store_factory: Callable[[], MessageStore]) -> None:
    """Of many consumers at the same time, each message goes to one."""
    stores = [store_factory() for _ in range(4)]
    put(stores[0], *map(str, range(40)))

    def drain(number: int) -> list[str]:
        found: list[str] = []
        while some := take(stores[number], limit=3, consumer=str(number)):
            found += bodies(some)
        return found

    with ThreadPoolExecutor(len(stores)) as pool:
        taken = [body for found in pool.map(drain, range(len(stores))) for body in found]
    taken += bodies(take(stores[0], limit=100))
    assert sorted(taken, key=int) == [str(number) for number in range(40)]


@pytest.mark.parametrize(
    ("pattern", "key", "gets"),
    [
        (None, "a.b", ["direct"]),
        (r"^a\.[^\.]+$", "a.b", ["direct", "matching"]),
        (r"^a\.[^\.]+$", "a.b.c", []),
        ("", "anything", ["matching"]),
    ],
)
def test_bindings_decide_who_gets_a_message(
    store: MessageStore, pattern: str | None, key: str, gets: list[str]
) -> None:
    """A queue gets the messages of an exchange with its routing key, or with one that its pattern matches."""
    store.bind_queue("direct", "x", "a.b", None)
    if pattern is not None:
        store.bind_queue("matching", "x", "pattern", pattern)
    store.bind_queue("other", "y", key, "")
    assert sorted(put(store, "m", to=key, exchange="x")) == gets
    assert bodies(take(store, "direct", "matching", "other")) == ["m"] * len(gets)
    store.unbind_queue("direct", "x", "a.b")
    assert "direct" not in put(store, "n", to=key, exchange="x")


def test_a_message_expires(store: MessageStore, clock: ManualClock) -> None:
    """A message is not delivered after its own expiry, or the longest wait of its queue, whichever comes first."""
    store.declare_queue("q", expires_after=None, message_ttl=10)
    put(store, "brief", expires_in=5)
    put(store, "long", expires_in=50)
    assert store.queue_size("q") == 2
    clock.advance(6)
    assert store.queue_size("q") == 1
    (long,) = take(store)
    assert long.body == "long"
    clock.advance(6)
    store.release_messages([long.id], consumer="c")
    assert take(store) == []
    store.renew_messages([], [], consumer="c", hold=HOLD)
    assert store.purge_queue("q") == 0


def test_a_temporary_queue_ends_without_a_consumer(store: MessageStore, clock: ManualClock) -> None:
    """A temporary queue whose consumer is gone gets nothing more, and is deleted with its bindings and messages."""
    for name in ("mine", "dead"):
        store.declare_queue(name, expires_after=10, message_ttl=None)
        store.bind_queue(name, "x", "", "")
    clock.advance(8)
    store.renew_messages([], ["mine"], consumer="c", hold=HOLD)
    clock.advance(8)
    assert put(store, "m", exchange="x") == ["mine"]
    assert store.queue_size("dead") is None
    assert store.bindings() == [("x", "", "mine")]
    store.renew_messages([], ["mine"], consumer="c", hold=HOLD)
    store.declare_queue("dead", expires_after=10, message_ttl=None)
    assert (store.queue_size("dead"), store.bindings("x")) == (0, [("x", "", "mine")])


@pytest.mark.parametrize(("away", "found"), [(2 * HOLD, [("x", "", "q")]), (2 * FORGOTTEN_AFTER, [])])
def test_a_suspended_consumer_keeps_its_queue(
    store: MessageStore, clock: ManualClock, away: float, found: list[Any]
) -> None:
    """A consumer that renews its temporary queue late has it again, empty and bound, unless it was away for long."""
    store.declare_queue("q", expires_after=10, message_ttl=None)
    store.bind_queue("q", "x", "", "")
    put(store, "old")
    clock.advance(away)
    store.renew_messages([], [], consumer=NOBODY, hold=HOLD)
    assert (put(store, "lost", exchange="x", to=""), store.queue_size("q"), store.bindings()) == ([], None, [])
    store.renew_messages([], ["q"], consumer="c", hold=HOLD)
    assert store.bindings() == found
    assert put(store, "new", exchange="x", to="") == [queue for _exchange, _key, queue in found]
    assert bodies(take(store)) == ["new"] * len(found)


def test_a_late_consumer_keeps_its_messages(store: MessageStore, clock: ManualClock) -> None:
    """A consumer that renews after the deadline of its messages still has those which nobody else got."""
    put(store, "a")
    (mine,) = take(store)
    clock.advance(2 * HOLD)
    store.renew_messages([mine.id], [], consumer="c", hold=HOLD)
    assert take(store, consumer="d") == []


def test_a_declared_queue_exists(store: MessageStore) -> None:
    """A queue exists from its declaration, or its first message, to its deletion; a purge keeps what is taken."""
    assert store.queue_size("q") is None
    store.declare_queue("q", expires_after=None, message_ttl=None)
    store.declare_queue("q", expires_after=None, message_ttl=None)
    assert store.queue_size("q") == 0
    put(store, "a", "b", "c")
    (taken,) = take(store, limit=1)
    assert (store.queue_size("q"), store.purge_queue("q"), store.queue_size("q")) == (2, 2, 0)
    store.bind_queue("q", "x", "key", None)
    store.delete_queue("q")
    assert (store.queue_size("q"), store.bindings()) == (None, [])
    store.release_messages([taken.id], consumer="c")
    assert bodies(take(store)) == ["a"]


def test_what_can_be_taken_wakes_the_consumers_of_its_queue(store: Any) -> None:
    """A message that can be taken, written or returned, and a job, are signals for the queue, which say what it is."""
    wakes: SimpleQueue[str] = SimpleQueue()
    store.signals.subscribe(Channel.DUE, "q", wakes.put)
    assert not wakes.get(timeout=20)  # it listens from now on
    put(store, "a")
    assert wakes.get(timeout=20) in {"", MESSAGE}
    (mine,) = take(store)
    store.release_messages([mine.id], consumer="c")
    assert wakes.get(timeout=20) in {"", MESSAGE}
    submit(store, route="q", delay=1.0)
    assert wakes.get(timeout=20) in {"", JOB}


def test_expired_jobs_hide_no_other(store: Any, clock: ManualClock) -> None:
    """However many jobs have expired in a queue, and were not swept yet, the next one is delivered."""
    for number in range(9):
        submit(store, f"expired-{number}", route="q", delay=1.0, expires_in=2.0)
    submit(store, "fresh", route="q", delay=1.5)
    clock.advance(3.0)
    assert [job.id for job in store.deliver(["q"], limit=1)] == ["fresh"]
    assert store.next_delivery(["q"]) is None


def test_only_stores_with_tables_are_brokers(redis_url: str, redis_prefix: str) -> None:
    """A store in Redis has no messages of its own: there, Redis is the broker."""
    with StoreAddress(redis_url, redis_prefix).opened() as store:
        assert not isinstance(store, MessageStore)
