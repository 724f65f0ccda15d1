"""A store as a broker: messages that are no jobs wait in queues, are taken, acknowledged, and delivered again.

A script has commands, separated by `;`, each with the answer that it asserts behind `->`. A message is called by its
body, one that was delivered before has a `!`, and a binding is exchange/routing key/queue.
"""

import shlex
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from queue import SimpleQueue
from typing import Any

from onejob.jobs.broker_messages import Delivery, NewMessage
from onejob.stores.protocol import FORGOTTEN_AFTER, JOB, MESSAGE, Channel, MessageStore
from tests.cases import for_each
from tests.conftest import on_stores
from tests.stores.support import ManualClock, StoreAddress, submit

HOLD = 30.0
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


MATCHING = r"bind matching x p pattern='^a\.[^\.]+$'; "
LAWS: dict[str, Any] = {
    "Of several queues, the messages with the highest priority come first, then the oldest, as many as wanted.":
        "put old new; put other to=r; put urgent to=r priority=9; take q r limit=2 -> urgent old; "
        "take q r -> new other; take q r ->; put a; put b priority=9; take q limit=1 -> b",
    "A message that is written again, as after a lost reply, has one copy in a queue.": "put a; put a b; take q -> a b",
    "Another consumer, or one whose message was taken by another since, neither deletes nor releases it.":
        "put a; take q -> a; delete a by=nobody; pass 30; renew by=nobody; take q by=d -> a!; delete a; release a; "
        "take q ->; release a by=d; take q -> a!",
    "A message that is returned is the first of its queue again, marked as redelivered.":
        "put a b; take q limit=1 -> a; release a; take q -> a! b",
    "A message that is taken without a deadline never comes again.":
        "put a; take q hold=0 -> a; pass 300; renew by=nobody; take q ->",
    "The messages of a consumer that renews no deadline return to their queue; those of another one do not.":
        "put a b; take q limit=1 by=dead -> a; take q limit=1 by=alive -> b; pass 15; renew b by=alive; pass 15; "
        "renew b by=alive; take q -> a!",
    "A queue gets the messages of an exchange with its routing key, or with one that its pattern matches.": [
        f"bind direct x a.b; {matching}bind other y {key} pattern=; put m x=x to={key} -> {gets}; "
        f"take direct matching other ->{' m' * len(gets.split())}; unbind direct x a.b; "
        f"put n x=x to={key} -> {gets.replace('direct', '')}"
        for matching, key, gets in (
            ("", "a.b", "direct"), (MATCHING, "a.b", "direct matching"), (MATCHING, "a.b.c", ""),
            ("bind matching x p pattern=; ", "any", "matching"),
        )
    ],
    "A message is not delivered after its own expiry, or the longest wait of its queue, whichever comes first.":
        "declare q ttl=10; put brief expires_in=5; put long expires_in=50; size q -> 2; pass 6; size q -> 1; "
        "take q -> long; pass 6; release long; take q ->; renew; purge q -> 0",
    "A temporary queue whose consumer is gone gets nothing more, and is deleted with its bindings and messages.":
        "declare mine lasts=10; bind mine x '' pattern=; declare dead lasts=10; bind dead x '' pattern=; pass 8; "
        "renew of=mine; pass 8; put m x=x -> mine; size dead -> None; bindings -> x//mine; renew of=mine; "
        "declare dead lasts=10; size dead -> 0; bindings x -> x//mine; bindings y ->",
    "A consumer that renews its temporary queue late has it again, empty and bound, unless it was away for long.": [
        f"declare q lasts=10; bind q x '' pattern=; put old; pass {away}; renew by=nobody; put lost x=x to= ->; "
        f"size q -> None; bindings ->; renew of=q; bindings ->{found}; put new x=x to= ->{' q' * bool(found)}; "
        f"take q ->{' new' * bool(found)}"
        for away, found in ((2 * HOLD, " x//q"), (2 * FORGOTTEN_AFTER, ""))
    ],
    "A consumer that renews after the deadline of its messages still has those which nobody else got.":
        "put a; take q -> a; pass 60; renew a; take q by=d ->",
    "A queue exists from its declaration, or its first message, to its deletion; a purge keeps what is taken.":
        "size q -> None; declare q; declare q; size q -> 0; put a b c; take q limit=1 -> a; size q -> 2; purge q -> 2; "
        "size q -> 0; bind q x key; drop q; size q -> None; bindings ->; release a; take q -> a!",
}  # fmt: skip


class Script:
    """Plays commands on one store."""

    def __init__(self, store: MessageStore, clock: ManualClock) -> None:
        self.store, self.clock, self.ids = store, clock, dict[str, int]()

    def play(self, text: str) -> None:
        """Run each command, and compare its answer, if one is given."""
        for command in text.split(";"):
            call, arrow, expected = command.partition("->")
            name, *words = shlex.split(call)
            values = dict(word.split("=", 1) for word in words if "=" in word)
            answer = getattr(self, f"do_{name}")(*[word for word in words if "=" not in word], **values)
            assert not arrow or answer == expected.split(), (command, answer)

    def do_put(self, *ids: str, to: str = "q", x: str = "", priority: str = "0", **more: str) -> list[str]:
        options: Any = {"priority": int(priority)} | {name: float(value) for name, value in more.items()}
        return sorted(put(self.store, *ids, to=to, exchange=x, **options))

    def do_take(self, *queues: str, limit: str = "10", by: str = "c", hold: str = str(HOLD)) -> list[str]:
        taken = take(self.store, *queues, limit=int(limit), consumer=by, hold=float(hold))
        self.ids |= {each.body: each.id for each in taken}
        return [each.body + "!" * each.redelivered for each in taken]

    def do_delete(self, body: str, by: str = "c") -> None:
        self.store.delete_messages([self.ids[body]], consumer=by)

    def do_release(self, body: str, by: str = "c") -> None:
        self.store.release_messages([self.ids[body]], consumer=by)

    def do_renew(self, *held: str, by: str = "c", of: str = "") -> None:
        self.store.renew_messages([self.ids[each] for each in held], of.split(), consumer=by, hold=HOLD)

    def do_declare(self, queue: str, lasts: str = "", ttl: str = "") -> None:
        self.store.declare_queue(queue, expires_after=float(lasts or 0) or None, message_ttl=float(ttl or 0) or None)

    def do_bind(self, queue: str, exchange: str, key: str, pattern: str | None = None) -> None:
        self.store.bind_queue(queue, exchange, key, pattern)

    def do_unbind(self, queue: str, exchange: str, key: str) -> None:
        self.store.unbind_queue(queue, exchange, key)

    def do_bindings(self, exchange: str | None = None) -> list[str]:
        return ["/".join(each) for each in self.store.bindings(exchange)]

    def do_size(self, queue: str) -> list[str]:
        return [str(self.store.queue_size(queue))]

    def do_purge(self, queue: str) -> list[str]:
        return [str(self.store.purge_queue(queue))]

    def do_drop(self, queue: str) -> None:
        self.store.delete_queue(queue)

    def do_pass(self, seconds: str) -> None:
        self.clock.advance(float(seconds))


@for_each("law", LAWS)
def test_a_law_of_messages_holds(fresh_stores: Callable[..., dict[str, Any]], clock: ManualClock, law: str) -> None:
    """Each script of a law plays as it is written, on every store that is a broker."""
    for kind, text in product(("sqlite", "postgresql"), [LAWS[law]] if isinstance(LAWS[law], str) else LAWS[law]):
        Script(fresh_stores(kind)[kind], clock).play(text)


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
