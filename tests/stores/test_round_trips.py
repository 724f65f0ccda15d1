"""Each operation on PostgreSQL is one round trip: a proxy counts how often a client waits."""

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from itertools import count, product
from typing import TypeAlias

import psycopg
import pytest

from onejob.errors import QuotaExceededError
from onejob.jobs.costs import CostKey, JobCosts, Label
from onejob.jobs.limits import KeyUse, LimitValue, write_uses
from onejob.jobs.metric_buckets import Period
from onejob.jobs.submitter import Charge, Quota
from onejob.ledger.ledger import Ledger
from onejob.stores.postgres import PostgresStore
from onejob.stores.postgres.connection import Connections
from onejob.transactions.sessions import transaction_of
from tests.cases import for_each
from tests.proxies import Carry, Proxy, carry
from tests.services import PostgresServer
from tests.stores.support import CONFLICT_POLICIES, RUNNING, claim, duplicate, run, start, submission, submit, sweep

QUERY, SYNC, FLUSH = b"QSH"
"""The messages after which a client waits for the server; a Flush right after one of the others asks for nothing."""
WARM_UP = 8
"""psycopg prepares a statement when it is used for the sixth time, which takes one more round trip."""


class CountingProxy(Proxy):
    """A proxy between PostgreSQL and its clients that counts the messages after which a client waits."""

    waits = 0

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres?sslmode=disable&gssencmode=disable"

    def carries(self) -> tuple[Carry, Carry]:
        """Return what reads a client's messages: the first has no kind, each other a kind and its length."""
        buffer = bytearray()
        before: int | None = None

        def read(data: bytes, server: socket.socket) -> None:
            nonlocal before
            buffer.extend(data)
            while len(buffer) >= (head := int(before is not None)) + 4:
                length = head + int.from_bytes(buffer[head : head + 4], "big")
                if len(buffer) < length:
                    break
                kind = buffer[0] if head else 0
                self.waits += kind in {QUERY, SYNC} or (kind == FLUSH and before not in {QUERY, SYNC})
                before = kind
                del buffer[:length]
            carry(data, server)

        return read, carry


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[CountingProxy]:
    made = CountingProxy(postgres_server.port)
    yield made
    made.close()


@pytest.fixture
def ledger(proxy: CountingProxy, postgres_schema: str) -> Iterator[Ledger]:
    made = Ledger(PostgresStore(proxy.url, schema=postgres_schema))
    yield made
    made.close()


@pytest.fixture
def trips(proxy: CountingProxy) -> Callable[[Callable[[int], object]], int]:
    """Return a function that counts the round trips of the last of some uses, which are numbered."""

    def of(use: Callable[[int], object]) -> int:
        for number in range(WARM_UP):
            use(number)
        before = proxy.waits
        use(WARM_UP)
        return proxy.waits - before

    return of


Trips: TypeAlias = "Callable[[Callable[[int], object]], int]"
USES = range(WARM_UP + 1)
BOTH = Charge("quota", Quota(999, 60), "quota"), Charge("quota", Quota(9999, 60), "all")
MANY = {f"name-{number}": 1.0 for number in range(200)}


COST = CostKey(task="app.add", label=Label.SUBMITTER, name="anna", unit="usd")


def exceed(ledger: Ledger, number: int) -> None:
    """Submit a job whose quota is used up by another."""
    with suppress(QuotaExceededError):
        ledger.submit(submission(f"over-{number}", charges=(Charge("quota", Quota(1, 60), "one"),)))


ONE_TRIP: dict[str, Callable[[Ledger, int], object]] = {
    "a submission": lambda ledger, n: ledger.submit(submission(f"job-{n}")),
    "a duplicate of a known job": lambda ledger, n: ledger.submit(submission(f"job-{n}", identity="same")),
    "a follower of a known job": lambda ledger, n: ledger.submit(submission(f"job-{n}", identity="same", follows=True)),
    "a claim": lambda ledger, n: claim(ledger.store, f"waits-{n % 100}"),
    "a claim that is refused": lambda ledger, n: ledger.claim("run-0", nonce=f"another-{n}", node="node-2"),
    "a heartbeat of many runs": lambda ledger, n: ledger.renew([(f"run-{each}", "nonce") for each in range(20)]),
    "progress": lambda ledger, n: ledger.store.report("run-0", 1, f"{n}", sources=RUNNING),
    "a step": lambda ledger, n: ledger.store.keep_step("run-0", 1, f"{n}", "1", sources=RUNNING),
    "saved costs": lambda ledger, n: ledger.store.add_saved({COST: Decimal(n)}),
    "sums of costs": lambda ledger, n: ledger.store.cost_sums(first=n, last=n + 40, label=Label.TAG),
    "a sweep with nothing to do": lambda ledger, n: sweep(ledger, print),
    "amounts": lambda ledger, n: ledger.store.increment(MANY, recent=MANY),
    "a series": lambda ledger, n: ledger.store.series(Period.HOUR, since=0.0),
    "a heartbeat of a node": lambda ledger, n: ledger.store.heartbeat("node-1", lasts=60.0),
    "a record": lambda ledger, n: ledger.record(duplicate("first", submission_nonce=f"nonce-{n}")),
    "a batch": lambda ledger, n: ledger.submit_many([submission(f"job-{n}-{each}") for each in range(200)]),
    "a batch with keys": lambda ledger, n: ledger.submit_many(
        [submission(f"job-{n}-{each}", key=f"{n}-{each}") for each in range(200)]
    ),
    "a batch of keys that are known": lambda ledger, n: ledger.submit_many(
        [submission(f"job-{n}-{each}", key="known", identity="same") for each in range(20)]
    ),
    "a job with quotas": lambda ledger, n: ledger.submit(submission(f"job-{n}", charges=BOTH)),
    "a known duplicate with quotas": lambda ledger, n: ledger.submit(
        submission(f"job-{n}", identity="same", charges=BOTH)
    ),
    "a batch with quotas": lambda ledger, n: ledger.submit_many(
        [submission(f"job-{n}-{each}", charges=BOTH) for each in range(20)]
    ),
    "a submission over a quota": exceed,
}


def test_a_query_is_one_round_trip(proxy: CountingProxy) -> None:
    """The proxy counts one for a statement, prepared or not, and two for two."""
    with psycopg.connect(proxy.url, autocommit=True) as connection:
        counts = []
        for prepare in (False, True, True):
            before = proxy.waits
            connection.execute("select %s::text", ["x" * 100_000], prepare=prepare)
            counts.append(proxy.waits - before)
    assert counts == [1, 2, 1]


def test_operations_are_one_round_trip(ledger: Ledger, trips: Trips) -> None:
    """Each operation of a worker or a submitter is one round trip, whatever its outcome, and however large it is."""
    submit(ledger.store, "first", identity="same", key="known")
    for number in USES:
        submit(ledger.store, f"waits-{number}")
    for number in range(20):
        run(ledger.store, f"run-{number}")
    ledger.submit(submission("known", identity="same"))
    numbers = dict(zip(ONE_TRIP, count(0, 100), strict=False))
    counts = {name: trips(lambda n, name=name: ONE_TRIP[name](ledger, numbers[name] + n)) for name in ONE_TRIP}  # type: ignore[misc]
    assert counts == dict.fromkeys(ONE_TRIP, 1)


def test_a_cost_is_one_round_trip(ledger: Ledger, trips: Trips) -> None:
    """A cost of a run, with the sums that it is added to, is one round trip."""
    costs = [run(ledger.store, "run", tag_lines="a\nb\nc")]
    assert trips(lambda number: costs.append(ledger.add_cost(costs[-1], {"usd": Decimal(number)}))) == 1
    assert JobCosts.of(ledger.get("run").costs).total == {"usd": Decimal(sum(USES))}


def test_a_completion_is_one_round_trip(ledger: Ledger, trips: Trips) -> None:
    """The end of a run is one round trip."""
    jobs = [run(ledger.store, f"run-{number}") for number in USES]
    assert trips(lambda number: ledger.complete(jobs[number], "1")) == 1
    assert ledger.get(jobs[-1].id).state.final


def test_a_look_at_a_full_key_is_one_round_trip(ledger: Ledger, trips: Trips) -> None:
    """A key whose slots are all taken is looked at without its lock, for which others may wait, in one round trip."""
    ledger.store.put_limits([LimitValue(key="gpu", running=1, is_default=True)])
    keys = write_uses([KeyUse("gpu")])
    for number in range(2):
        submit(ledger.store, f"limited-{number}", limit_keys=keys)
    assert claim(ledger.store, "limited-0").applied
    assert not claim(ledger.store, "limited-1").applied
    assert trips(lambda _: ledger.free_slots(["gpu"])) == 1
    assert ledger.get("limited-1").parked_on


def test_the_first_duplicate_is_two_round_trips(ledger: Ledger, trips: Trips) -> None:
    """The first duplicate of a job that a process meets is two round trips, and so is a batch of such."""
    ledger.submit_many([submission(f"{n}-{each}", identity=f"{n}-{each}") for n in USES for each in range(50)])
    again = [[submission(f"again-{n}-{each}", identity=f"{n}-{each}") for each in range(50)] for n in USES]
    assert trips(lambda number: ledger.submit(again[number][0])) == 2
    assert trips(lambda number: ledger.submit_many(again[number][1:])) == 2


@for_each("conflict_policy", CONFLICT_POLICIES)
def test_a_submission_with_a_key_is_one_round_trip(ledger: Ledger, trips: Trips, conflict_policy: str) -> None:
    """A submission with an idempotency key that is a duplicate is one round trip, whatever its outcome."""
    submit(ledger.store, conflict_policy, identity=conflict_policy)
    for begun in (False, True):
        if begun:
            start(ledger.store, conflict_policy)
        values = {"identity": conflict_policy} | CONFLICT_POLICIES[conflict_policy]
        names = [f"{conflict_policy}-{begun}-{number}" for number in USES]
        again = [submission(name, fingerprint=name, key=name, **values) for name in names]
        assert trips(lambda number, again=again: ledger.submit(again[number])) == 1  # type: ignore[misc]


def test_a_transaction_adds_one_statement_to_a_submission_and_two_to_an_end(
    ledger: Ledger, trips: Trips, proxy: CountingProxy
) -> None:
    """In a user's transaction, besides its begin and commit, a submission is one statement, and a completion two."""
    jobs = [run(ledger.store, f"run-{number}", identity=f"run-{number}") for number in USES]
    run(ledger.store, "first", identity="same")
    with psycopg.connect(proxy.url) as session:

        def complete_and_commit(number: int) -> None:
            ledger.in_transaction(transaction_of(session)).complete(jobs[number], "1")
            session.commit()

        assert trips(complete_and_commit) == 4
        for policy, identity in product(CONFLICT_POLICIES, (None, "same")):

            def submit_and_commit(number: int, policy: str = policy, identity: str | None = identity) -> None:
                name = f"{policy}-{identity}-{number}"
                new = submission(name, identity=identity or name, **CONFLICT_POLICIES[policy])
                ledger.in_transaction(transaction_of(session)).submit(new)
                session.commit()

            assert trips(submit_and_commit) == 3, (policy, identity)


class LateValues(dict[str, object]):
    """The values of a statement, which are read as late as the process gets to it; `meanwhile` runs before."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__(late=1)
        self._meanwhile = meanwhile

    def __getitem__(self, name: str) -> object:
        self._meanwhile()
        return super().__getitem__(name)


def test_no_lock_waits_for_the_process(postgres_server: PostgresServer) -> None:
    """The statements of an operation are sent together: a process that is frozen before the last one holds no lock."""
    connections = Connections(postgres_server.url, lambda _: None)
    with psycopg.connect(postgres_server.url, autocommit=True) as other:

        def is_free() -> bool:
            row = other.execute("select pg_try_advisory_lock(7), pg_advisory_unlock(7)").fetchone()
            return row is not None and row[0]

        free: list[bool] = []
        meanwhile = LateValues(lambda: free.extend(is_free() for _ in range(50)))
        connections.run([("select pg_advisory_xact_lock(7)", {}), ("select cast(:late as integer) as late", meanwhile)])
    connections.close()
    assert free == [True] * 50
