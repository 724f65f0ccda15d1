"""A crash of PostgreSQL forgets no submission and no end, and a claim that it forgets is a run that is refused."""

from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from onejob.jobs.lifecycle import RULES, State, Transition
from onejob.jobs.model import Cancel, JobRow
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger
from onejob.stores.postgres import PostgresStore
from onejob.stores.protocol import Store
from onejob.transactions.sessions import transaction_of
from tests.conftest import make_ledger
from tests.services import PostgresServer, start_postgres
from tests.stores.support import (
    LEASE,
    RUN_AGAIN,
    apply,
    change,
    claim,
    events,
    read,
    run,
    start,
    submission,
    submit,
    take_due,
)
from tests.tiers import deep

PROGRESS = RULES[Transition.UPDATE_PROGRESS].sources
UNFORGOTTEN: dict[str, Callable[[Ledger, JobRow], object]] = {
    "submit": lambda ledger, _: submit(ledger.store, "job-2"),
    "submit_many": lambda ledger, _: ledger.submit_many([submission(f"job-{number}") for number in (2, 3)]),
    "a key": lambda ledger, _: submit(ledger.store, "job-2", identity="same", key="a key"),
    "queued next": lambda ledger, _: submit(ledger.store, "job-2", identity="same", **RUN_AGAIN),
    "a mixed batch": lambda ledger, _: ledger.submit_many(
        [submission("job-2", identity="same"), submission("job-3", identity="same", **RUN_AGAIN), submission("job-4")]
    ),
    "follow": lambda ledger, job: ledger.follow(submission("job-2"), follows_id=job.id),
    "complete": lambda ledger, job: ledger.complete(job, "1"),
    "fail": lambda ledger, job: ledger.fail(job, "{}", "it failed"),
    "retry": lambda ledger, job: apply(ledger.store, job, Transition.RETRY, wake_after=0.0),
    "request cancel": lambda ledger, job: apply(ledger.store, job, Transition.REQUEST_CANCEL, cancel=Cancel.ASKED),
    "a step": lambda ledger, job: ledger.keep_step(job, "step", "1"),
    "a cost": lambda ledger, job: ledger.add_cost(job, {"usd": Decimal("0.031")}),
}
"""Operations that a crash right after their answers must not undo, on a running job with the identity `same`."""
FORGETTABLE: dict[str, Callable[[Ledger, JobRow], object]] = {
    "claim": lambda ledger, _: run(ledger.store, f"job-{new_nonce()}"),
    "renew": lambda ledger, job: ledger.renew([(job.id, job.claim)]),
    "report": lambda ledger, job: ledger.report(job, "1"),
    "attach": lambda ledger, _: submit(ledger.store, "again", identity="same"),
    "take_due": lambda ledger, _: take_due(ledger.store, limit=10, hold=LEASE),
    "increment": lambda ledger, _: ledger.store.increment({"a": 1.0}, recent={"a": 1.0}),
    "heartbeat": lambda ledger, _: ledger.store.heartbeat("node-1", lasts=60.0),
}
"""Operations that do not wait for the disk."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Return a server that writes an asynchronous commit with the next synchronous one, or after up to 10 s."""
    server = start_postgres("wal_writer_delay=10s", "autovacuum=off")
    make_ledger(server.url, "onejob")
    yield server
    server.remove()


@pytest.fixture
def ledger(server: PostgresServer) -> Iterator[Ledger]:
    """Return an empty ledger on that server."""
    with closing(Ledger(PostgresStore(server.url))) as ledger:
        yield ledger
    with psycopg.connect(server.url, autocommit=True) as session:
        session.execute("truncate onejob.jobs cascade")


def crash(server: PostgresServer) -> None:
    """Crash the server and start it again."""
    server.kill()
    server.start()


def forgotten_run(server: PostgresServer, store: Store) -> JobRow:
    """Claim jobs, each before a crash of the server, until one crash forgets the claim; return that run."""
    for number in range(5):
        claimed = run(store, f"job-{number}")
        crash(server)
        job = read(store, claimed.id)
        if job.state is State.QUEUED:
            return claimed
        assert job == claimed  # the server has just written it by itself
    pytest.fail("no claim was forgotten")


@deep
def test_a_claim_that_a_crash_forgets_is_a_run_whose_token_is_refused(server: PostgresServer, ledger: Ledger) -> None:
    """After a forgotten claim the next one has a larger token, the forgotten run is refused, and one run completes."""
    forgotten = forgotten_run(server, ledger.store)
    for event in (Transition.COMPLETE, Transition.FAIL, Transition.RETRY):
        assert not ledger.store.apply(change(forgotten, event, wake_after=30.0)).applied
    assert ledger.store.keep_step(forgotten.id, forgotten.token, "step", "1", sources=PROGRESS) is None
    assert [renewal.held for renewal in ledger.renew([(forgotten.id, forgotten.claim)])] == [False]
    assert submit(ledger.store, "again", identity=forgotten.identity).id == forgotten.id
    current = start(ledger.store, forgotten.id)
    assert current.token > forgotten.token
    assert not ledger.store.apply(change(forgotten, Transition.COMPLETE, wake_after=30.0, result="0")).applied
    ledger.complete(current, "1")
    crash(server)
    job = read(ledger.store, forgotten.id)
    assert (job.state, job.result, job.token) == (State.COMPLETED, "1", current.token)
    assert events(ledger.store, forgotten.id).count("complete") == 1


@deep
@pytest.mark.parametrize("name", UNFORGOTTEN)
def test_an_acknowledged_write_survives_a_crash(server: PostgresServer, ledger: Ledger, name: str) -> None:
    """A crash right after the answer undoes no submission, end, retry, cancellation or step, nor the claim before."""
    job = run(ledger.store, identity="same")
    UNFORGOTTEN[name](ledger, job)
    before = dump(server)
    crash(server)
    assert dump(server) == before


def dump(server: PostgresServer) -> list[Any]:
    """Return all jobs, entries, keys and steps."""
    tables = ("jobs", "history", "keys", "steps")
    with psycopg.connect(server.url, autocommit=True) as session:
        queries = [f"select * from onejob.{table} order by 1, 2" for table in tables]  # noqa: S608 - ours
        return [session.execute(query.encode()).fetchall() for query in queries]


@deep
@pytest.mark.parametrize("name", FORGETTABLE)
def test_what_may_be_forgotten_does_not_wait_for_the_disk(server: PostgresServer, ledger: Ledger, name: str) -> None:
    """Claims, renewals, progress, plain duplicates, sweeps, metrics and heartbeats leave their commits unwritten."""
    job = run(ledger.store, identity="same")
    submit(ledger.store, "waiting", wake_after=0.0)
    submit(ledger.store, "once", identity="same")
    for _ in range(5):  # the server writes by itself from time to time
        FORGETTABLE[name](ledger, job)
        if is_unwritten(server):
            return
    pytest.fail("each commit was written at once")


def is_unwritten(server: PostgresServer) -> bool:
    """Return whether a part of the write-ahead log exists in memory only."""
    with psycopg.connect(server.url, autocommit=True) as session:
        row = session.execute("select pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()").fetchone()
    return row == (True,)


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_transaction_of_a_user_stays_synchronous(
    postgres_server: PostgresServer, postgres_schema: str, *, autocommit: bool
) -> None:
    """No operation of the ledger changes how a user's transaction commits."""
    with closing(Ledger(PostgresStore(postgres_server.url, schema=postgres_schema))) as ledger:
        job = run(ledger.store)
        with psycopg.connect(postgres_server.url, autocommit=autocommit) as session, session.transaction():
            joined = ledger.in_transaction(transaction_of(session)).store
            joined.renew([(job.id, job.claim)], sources=PROGRESS)
            submit(joined, "waiting")
            claim(joined, "waiting")
            joined.take_due(tasks=frozenset({"app.add"}), limit=9, hold=0.0)
            joined.increment({"a": 1.0}, recent={"a": 1.0})
            joined.report(job.id, job.token, "1", sources=PROGRESS)
            assert session.execute("show synchronous_commit").fetchone() == ("on",)
