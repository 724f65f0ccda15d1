"""Each operation on PostgreSQL is one round trip: a proxy counts how often a client waits."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import pytest

from onejob.errors import QuotaExceededError
from onejob.jobs.quota import Charge, Quota
from onejob.jobs.records import Period
from onejob.ledger.ledger import Ledger
from onejob.stores.postgres import PostgresStore
from onejob.transactions.sessions import transaction_of
from tests.contract.support import CONFLICT_POLICIES, claim, run, start, submission, submit, sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onejob.jobs.model import Job
    from tests.services import PostgresServer

QUERY, SYNC, FLUSH = b"QSH"
"""The messages after which a client waits for the server; a Flush right after one of the others asks for nothing."""
WARM_UP = 8
"""psycopg prepares a statement when it is used for the sixth time, which takes one more round trip."""


class CountingProxy:
    """A proxy between PostgreSQL and its clients that counts the messages after which a client waits."""

    def __init__(self, port: int) -> None:
        self.waits = 0
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        port = self._listener.getsockname()[1]
        return f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable&gssencmode=disable"

    def close(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._port))
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += [client, server]
                ways = (client, server, self._counted()), (server, client, lambda _: None)
                started = [threading.Thread(target=_carry, args=way, daemon=True) for way in ways]
                self._threads += started
                for thread in started:
                    thread.start()

    def _counted(self) -> Callable[[bytes], None]:
        """Return what reads a client's messages: the first has no kind, each other a kind and its length."""
        buffer = bytearray()
        before: int | None = None

        def read(data: bytes) -> None:
            nonlocal before
            buffer.extend(data)
            while len(buffer) >= (head := int(before is not None)) + 4:
                length = head + int.from_bytes(buffer[head : head + 4], "big")
                if len(buffer) < length:
                    return
                kind = buffer[0] if head else 0
                self.waits += kind in {QUERY, SYNC} or (kind == FLUSH and before not in {QUERY, SYNC})
                before = kind
                del buffer[:length]

        return read


def _carry(source: socket.socket, target: socket.socket, look: Callable[[bytes], None]) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            look(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


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


class Trips:
    """Counts the round trips of one use of an operation that has been used before."""

    def __init__(self, proxy: CountingProxy) -> None:
        self._proxy = proxy

    def of(self, use: Callable[[int], object]) -> int:
        """Return the round trips of the last use; the ones before are numbered, too."""
        for number in range(WARM_UP):
            use(number)
        before = self._proxy.waits
        use(WARM_UP)
        return self._proxy.waits - before


@pytest.fixture
def trips(proxy: CountingProxy) -> Trips:
    return Trips(proxy)


def runs(ledger: Ledger, count: int = WARM_UP + 1) -> list[Job]:
    return [run(ledger.store, f"run-{number}") for number in range(count)]


def test_a_query_is_one_round_trip(proxy: CountingProxy) -> None:
    """The proxy counts one for a statement, prepared or not, and two for two."""
    with psycopg.connect(proxy.url, autocommit=True) as connection:
        counts = []
        for prepare in (False, True, True):
            before = proxy.waits
            connection.execute("select %s::text", ["x" * 100_000], prepare=prepare)
            counts.append(proxy.waits - before)
    assert counts == [1, 2, 1]


def test_submit_claim_and_complete_are_three_round_trips(ledger: Ledger, proxy: CountingProxy) -> None:
    """Submission, claim and completion of a job are one round trip each."""
    counts: list[int] = []
    for number in range(WARM_UP + 1):
        before = proxy.waits
        ledger.submit(submission(f"job-{number}"))
        submitted = proxy.waits
        job = claim(ledger.store, f"job-{number}").job
        assert job is not None
        claimed = proxy.waits
        ledger.complete(job, "1")
        counts = [submitted - before, claimed - submitted, proxy.waits - claimed]
    assert counts == [1, 1, 1]


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize(("known", "expected"), [(False, 2), (True, 1)])
def test_a_duplicate_is_two_round_trips_once(
    ledger: Ledger, trips: Trips, *, follows: bool, known: bool, expected: int
) -> None:
    """The first duplicate of a job is two round trips, and each further one is one."""
    firsts = ["same" if known else str(number) for number in range(WARM_UP + 1)]
    for identity in dict.fromkeys(firsts):
        submit(ledger.store, f"first-{identity}", identity=identity)
    again = [submission(f"again-{n}", identity=identity, follows=follows) for n, identity in enumerate(firsts)]
    assert trips.of(lambda number: ledger.submit(again[number])) == expected


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("conflict_policy", CONFLICT_POLICIES)
def test_a_submission_with_a_key_is_one_round_trip(
    ledger: Ledger, trips: Trips, conflict_policy: str, *, begun: bool
) -> None:
    """A submission with an idempotency key that is a duplicate is one round trip, whatever its outcome."""
    submit(ledger.store, "first", identity="same")
    if begun:
        start(ledger.store, "first")
    again = [
        submission(
            f"again-{number}",
            identity="same",
            fingerprint=str(number),
            key=f"{number}",
            **CONFLICT_POLICIES[conflict_policy],
        )
        for number in range(WARM_UP + 1)
    ]
    assert trips.of(lambda number: ledger.submit(again[number])) == 1


@pytest.mark.parametrize("keyed", [False, True])
def test_a_batch_takes_the_round_trips_of_one_submission(ledger: Ledger, trips: Trips, *, keyed: bool) -> None:
    """A batch of any size takes one round trip if all are new, and as many as one submission if all are duplicates."""
    batches = [
        [submission(f"job-{number}-{each}", key=f"{number}-{each}" if keyed else None) for each in range(200)]
        for number in range(WARM_UP + 1)
    ]
    assert trips.of(lambda number: ledger.submit_many(batches[number])) == 1
    again = [[replace(new, id=f"{new.id}-again", nonce=f"{new.nonce}-again") for new in batch] for batch in batches]
    assert trips.of(lambda number: ledger.submit_many(again[number])) == (1 if keyed else 2)


def test_quotas_take_no_round_trip(ledger: Ledger, trips: Trips) -> None:
    """With quotas a new job, a batch, a known duplicate and a refused submission are one round trip each."""
    both = Charge("quota", Quota(999, 60), "quota"), Charge("quota", Quota(9999, 60), "all")
    charges = [both, (both[0]._replace(quota=Quota(1, 60)),)]
    given = [submission(f"job-{n}", charges=charges[0]) for n in range(3 * WARM_UP)]
    assert trips.of(lambda n: ledger.submit(given[n])) == 1
    again = replace(given[0], nonce="again-0123456789", id="again")
    assert trips.of(lambda n: ledger.submit(replace(again, id=f"again-{n}", nonce=f"again-{n}"))) == 1
    batches = [[submission(f"job-{n}-{each}", charges=charges[0]) for each in range(20)] for n in range(WARM_UP + 1)]
    assert trips.of(lambda n: ledger.submit_many(batches[n])) == 1

    def exceed(number: int) -> None:
        with pytest.raises(QuotaExceededError):
            ledger.submit(submission(f"over-{number}", charges=charges[1]))

    assert trips.of(exceed) == 1


def test_recording_a_duplicate_is_one_round_trip(ledger: Ledger, trips: Trips) -> None:
    """`record` is one round trip."""
    submit(ledger.store, "first", identity="same")
    submit(ledger.store, "again", identity="same")
    (duplicate,) = ledger.duplicates("first")
    assert trips.of(lambda _: ledger.record(duplicate)) == 1


def test_a_refused_claim_is_one_round_trip(ledger: Ledger, trips: Trips) -> None:
    """The claim of a redelivered message is refused in one round trip."""
    job = run(ledger.store)
    assert trips.of(lambda _: ledger.claim(job.id, nonce="another", node="node-2")) == 1
    assert not ledger.claim(job.id, nonce="another", node="node-2").applied


def test_a_heartbeat_is_one_round_trip(ledger: Ledger, trips: Trips) -> None:
    """A heartbeat is one round trip, however many leases it renews."""
    claims = [(job.id, job.claim) for job in runs(ledger, 20)]
    assert trips.of(lambda _: ledger.renew(claims)) == 1
    assert all(renewal.held for renewal in ledger.renew(claims))


def test_totals_and_node_heartbeats_are_one_round_trip(ledger: Ledger, trips: Trips) -> None:
    """Adding any number of amounts is one round trip, and so are reading a series and the heartbeat of a node."""
    amounts = {f"name-{number}": 1.0 for number in range(200)}
    assert trips.of(lambda _: ledger.store.increment(amounts, recent=amounts)) == 1
    assert trips.of(lambda _: ledger.series(Period.HOUR, since=0.0)) == 1
    assert trips.of(lambda _: ledger.store.heartbeat("node-1", lasts=60.0)) == 1


def test_an_idle_sweep_is_one_round_trip(ledger: Ledger, trips: Trips) -> None:
    """A sweep without due jobs is one round trip."""
    run(ledger.store)
    assert trips.of(lambda _: sweep(ledger, print)) == 1


def test_progress_and_a_step_are_one_round_trip(ledger: Ledger, trips: Trips) -> None:
    """Progress and a step are one round trip each."""
    job = run(ledger.store)
    assert trips.of(lambda number: ledger.report(job, f"{number}")) == 1
    assert trips.of(lambda number: ledger.keep_step(job, f"step {number}", "1")) == 1


def test_a_completion_in_a_transaction_is_two_statements(ledger: Ledger, trips: Trips, proxy: CountingProxy) -> None:
    """In a user's transaction a completion is two statements, besides the user's own begin and commit."""
    jobs = runs(ledger)
    with psycopg.connect(proxy.url) as session:

        def complete(number: int) -> None:
            ledger.in_transaction(transaction_of(session)).complete(jobs[number], "1")
            session.commit()

        assert trips.of(complete) == 4
    assert ledger.get(jobs[-1].id).state.final


@pytest.mark.parametrize("identity", [None, "same"])
@pytest.mark.parametrize("conflict_policy", CONFLICT_POLICIES)
def test_a_submission_in_a_transaction_is_one_statement(
    ledger: Ledger, trips: Trips, proxy: CountingProxy, conflict_policy: str, identity: str | None
) -> None:
    """In a user's transaction a submission is one statement, besides the user's own begin and commit."""
    run(ledger.store, "first", identity="same")
    with psycopg.connect(proxy.url) as session:

        def submit_and_commit(number: int) -> None:
            new = submission(f"job-{number}", identity=identity or f"{number}", **CONFLICT_POLICIES[conflict_policy])
            ledger.in_transaction(transaction_of(session)).submit(new)
            session.commit()

        assert trips.of(submit_and_commit) == 3
