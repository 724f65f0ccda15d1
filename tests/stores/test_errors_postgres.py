"""Errors of PostgreSQL: the effect of a restart, a lock, a missing table or a wrong address."""

import os
import random
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import psycopg
import pytest

from onejob.errors import ConfigurationError, StoreBusyError, StoreError, StoreRefusedError, StoreUnavailableError
from onejob.jobs.broker_messages import NewMessage
from onejob.jobs.handover import by_caller
from onejob.jobs.history import COMPLETED
from onejob.jobs.lifecycle import FINAL, State, Transition
from onejob.jobs.model import Admission, Duplicate, Outcome
from onejob.jobs.query import Query
from onejob.ledger.ledger import Ledger
from onejob.stores.postgres import PostgresStore, connection, statements
from onejob.stores.protocol import GroupBy
from onejob.transactions.sessions import transaction_of
from tests.conftest import make_ledger
from tests.proxies import HalfOpen
from tests.services import PostgresServer, eventually, start_pgbouncer, start_postgres
from tests.stores.races import together
from tests.stores.support import (
    CONFLICT_POLICIES,
    LEASE,
    RUN_AGAIN,
    RUNNING,
    admission,
    apply,
    change,
    claim,
    end,
    get,
    not_none,
    read,
    run,
    start,
    submission,
    submit,
    submit_one,
    take_due,
    untouched,
)
from tests.stores.test_errors import OPERATIONS
from tests.tiers import deep

LOCKING = ("claim", "apply", "report", "keep_step")
"""The operations that need the row of a job."""
SOME = ("find", "submit_many", "apply")
"""Of each kind one: a read, a batch and a write."""


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """Return a server that the tests of this module may stop, with an empty ledger."""
    server = start_postgres()
    make_ledger(server.url, "onejob")
    yield server
    server.remove()


@pytest.fixture
def own(own_server: PostgresServer) -> Iterator[PostgresStore]:
    """Return a store on that server."""
    with closing(PostgresStore(own_server.url)) as store:
        yield store
    with psycopg.connect(own_server.url, autocommit=True) as session:
        session.execute("truncate onejob.jobs cascade")


class Database(NamedTuple):
    """The server and the schema of an empty ledger."""

    server: PostgresServer
    schema: str


@pytest.fixture
def database(postgres_server: PostgresServer, postgres_schema: str) -> Database:
    """Return where the ledger of a test is."""
    return Database(postgres_server, postgres_schema)


@pytest.fixture
def store(database: Database) -> Iterator[PostgresStore]:
    """Return an empty store in PostgreSQL."""
    with closing(PostgresStore(database.server.url, schema=database.schema)) as store:
        yield store


def warm(store: PostgresStore, threads: int = 4) -> None:
    """Open several connections of the pool."""
    together(*[partial(store.find, Query())] * threads)


# --- a server that is restarted -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "crash"),
    [
        *product(SOME, (False, True)),
        *(pytest.param(each, bool(n % 2), marks=deep) for n, each in enumerate(OPERATIONS) if each not in SOME),
    ],
)
def test_an_operation_succeeds_after_a_restart(
    own: PostgresStore, own_server: PostgresServer, name: str, crash: bool
) -> None:
    """If the server was restarted since the last operation, the next one succeeds, on any connection."""
    job = run(own)
    submit(own, "later")  # which waits for the disk, so that the claim before it is not forgotten
    warm(own)
    if crash:
        own_server.kill()
    own_server.restart()
    OPERATIONS[name](own, job)
    assert read(own).id == job.id


def test_a_store_works_again_when_the_server_is_back(own: PostgresStore, own_server: PostgresServer) -> None:
    """A store whose server is down raises errors, and works again with the server, without being opened anew."""
    job = run(own)
    own_server.stop()
    try:
        for name in ("get", "apply"):
            with pytest.raises(StoreUnavailableError):
                OPERATIONS[name](own, job)
    finally:
        own_server.start()
    assert read(own) == job
    assert end(own, job).state is State.COMPLETED


def test_an_acknowledged_end_survives_a_crash(own: PostgresStore, own_server: PostgresServer) -> None:
    """A crash of the server right after an acknowledged completion does not undo it, also with asynchronous commits."""
    with psycopg.connect(own_server.url, autocommit=True) as session:
        session.execute("alter database postgres set synchronous_commit = off")
    own.close()
    try:
        job = end(own, run(own))
        own_server.kill()
        own_server.start()
        assert read(own) == job
    finally:
        with psycopg.connect(own_server.url, autocommit=True) as session:
            session.execute("alter database postgres reset synchronous_commit")


@pytest.mark.parametrize("pooler", ["", "&pooler=transaction"])
def test_no_statement_is_compiled(own_server: PostgresServer, pooler: str) -> None:
    """Statements run without JIT, where the server has it: compiling one takes longer than all of its work."""
    with closing(PostgresStore(f"{own_server.url}?options=-c%20jit%3Don{pooler}")) as store:
        (inside,) = store._sql.runner.run([("select current_setting('jit') as jit", {})])[0]
    assert inside == {"jit": "off"}


@pytest.mark.parametrize(
    ("limit", "use"),
    [("SILENCE", read), ("HEARTBEAT_SILENCE", lambda store: store.renew([("job-1", "")], sources=RUNNING))],
)
def test_an_operation_survives_a_silent_connection(
    database: Database, monkeypatch: pytest.MonkeyPatch, limit: str, use: Callable[[PostgresStore], object]
) -> None:
    """An operation on a connection that is open and answers no more goes on with another one, a heartbeat soon."""
    with ExitStack() as stack:
        proxy = stack.enter_context(closing(HalfOpen(database.server.port)))
        url = database.server.url.replace(f":{database.server.port}", f":{proxy.port}")
        store = stack.enter_context(closing(PostgresStore(url, schema=database.schema)))
        run(store)
        warm(store)
        monkeypatch.setattr(connection, limit, 1.0)
        proxy.cut()
        assert use(store)


# --- rows that are locked -------------------------------------------------------------------------------------------


@contextmanager
def holding(database: Database, job_id: str) -> Iterator[None]:
    """Hold the row of a job in an open transaction."""
    with psycopg.connect(database.server.url) as session:
        session.execute(f"select from {database.schema}.jobs where id = %s for update", [job_id])
        yield


@pytest.mark.parametrize("name", LOCKING)
def test_a_row_that_stays_locked_is_unavailable(
    database: Database, store: PostgresStore, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operation waits a limited time for a locked row, raises an error, changes nothing, and works afterwards."""
    monkeypatch.setattr(connection, "SESSION", ("set lock_timeout = '50ms'",))
    job = run(store)
    refused = pytest.raises(StoreUnavailableError, match="lock timeout")
    with untouched(store), holding(database, "job-1"), refused:
        OPERATIONS[name](store, job)
    OPERATIONS[name](store, job)


def test_a_heartbeat_does_not_wait(database: Database, store: PostgresStore) -> None:
    """A locked row delays no lease: the others are extended at once, and the run of the locked one counts as held."""
    jobs = [run(store, f"job-{number}") for number in range(4)]
    with holding(database, "job-2"):
        renewals = Ledger(store).renew([(job.id, job.claim) for job in jobs])
        after = [read(store, job.id).lease_until or 0.0 for job in jobs]
    assert [renewal.held for renewal in renewals] == [True] * 4
    before = [job.lease_until or 0.0 for job in jobs]
    assert [now > then for now, then in zip(after, before, strict=True)] == [True, True, False, True]


def test_a_sweep_does_not_wait(database: Database, store: PostgresStore) -> None:
    """A sweep skips a locked row, and a purge skips an old job whose row is locked, until a later one."""
    for number in range(3):
        submit(store, f"job-{number}", wake_after=0.0)
    ended = [apply(store, start(store, f"job-{number}"), Transition.COMPLETE, wake_after=0.0) for number in range(2)]
    with holding(database, "job-1"):
        assert {job.id for job in take_due(store, limit=10, hold=0.0)} == {"job-0", "job-2"}
        assert store.delete([job.id for job in ended], sources=FINAL, skip_referenced=True) == ["job-0"]
    assert {job.id for job in take_due(store, limit=10, hold=0.0)} == {"job-1", "job-2"}
    assert store.delete(["job-1"], sources=FINAL, skip_referenced=True) == ["job-1"]


def when_free(database: Database, *calls: Callable[[], Any]) -> list[Any]:
    """Return the answers of calls that all wait for the row of job-1."""
    with ThreadPoolExecutor(len(calls)) as aside:
        with holding(database, "job-1"):
            pending = [aside.submit(call) for call in calls]
            eventually(lambda: lock_waiters(database.server) == len(calls))
        return [each.result(10.0) for each in pending]


def counted(store: PostgresStore) -> set[int]:
    """Return how often duplicates of job-1 were counted: in its row, as records and in the statistics."""
    statistics = sum(each.count for each in store.duplicate_counts(GroupBy.TASK, limit=9))
    return {read(store).duplicate_count, len(store.duplicates("job-1")), statistics}


def test_a_drop_waits(database: Database, store: PostgresStore) -> None:
    """A deletion that does not skip rows waits for the lock of an old job, and then deletes the job."""
    ended = end(store, run(store))
    assert when_free(database, partial(store.delete, [ended.id], sources=FINAL)) == [[ended.id]]


def test_a_duplicate_does_not_wait(database: Database, store: PostgresStore) -> None:
    """A duplicate of a job whose row is locked is kept and counted in the statistics, and not in that row."""
    job = run(store, identity="same")
    submit(store, "job-2", identity="same")
    (duplicate,) = store.duplicates(job.id)
    with psycopg.connect(database.server.url) as session:
        session.execute(f"update {database.schema}.jobs set progress = '1' where id = %s", [job.id])  # noqa: S608
        store.record(replace(duplicate, submission_nonce="while it is written", submitter="another submitter"))
    assert "while it is written" in {each.submission_nonce for each in store.duplicates(job.id)}
    assert {(each.name, each.count) for each in store.duplicate_counts(GroupBy.SUBMITTER, limit=9)} == {
        ("", 1),
        ("another submitter", 1),
    }
    assert read(store).duplicate_count == 1


@pytest.mark.parametrize("detail", ["", COMPLETED])
def test_a_follower_that_was_inserted_while_the_end_waited_is_woken(
    database: Database, store: PostgresStore, detail: str
) -> None:
    """If a follower is inserted while the end of its followed job waits for a lock, that end makes the follower due."""
    followed = run(store)
    ending = change(followed, Transition.COMPLETE, wake_after=30.0, detail=detail)
    ends = threading.Thread(target=lambda: store.apply(ending))
    with psycopg.connect(database.server.url) as session:
        session.execute(f"update {database.schema}.jobs set entries = entries where id = 'job-1'")  # noqa: S608
        ends.start()
        eventually(lambda: lock_waiters(database.server))
        store.in_transaction(transaction_of(session)).follow(submission("job-2"), follows_id="job-1")
        session.execute(f"update {database.schema}.jobs set wake_at = null where id = 'job-2'")  # noqa: S608
    ends.join(10.0)
    assert read(store, "job-2").wake_at is not None


def lock_waiters(server: PostgresServer, application: str = "onejob") -> int:
    """Return how many operations of stores wait for a lock."""
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and application_name = %s"
    with psycopg.connect(server.url, autocommit=True) as session:
        return int(session.execute(waiting, [application]).fetchone()[0])  # type: ignore[index]


@pytest.mark.parametrize(
    ("values", "ids", "nonces"),
    [
        (RUN_AGAIN, ("job-2", "job-2"), ("one", "one")),
        (RUN_AGAIN, ("job-2", "job-2"), ("one", "another")),
        ({}, ("job-2", "job-2"), ("one", "one")),
        ({}, ("job-2", "job-3"), ("one", "one")),
        ({"key": "key"}, ("job-2", "job-2"), ("one", "one")),
    ],
)
def test_submissions_that_wait_for_one_row_are_counted_once(
    database: Database, store: PostgresStore, values: dict[str, Any], ids: tuple[str, str], nonces: tuple[str, str]
) -> None:
    """A submission that is repeated while its first try waits for the row is counted and recorded once, everywhere."""
    run(store, identity="same", key=values.get("key"))
    news = [submission(each, identity="same", nonce=nonce, **values) for each, nonce in zip(ids, nonces, strict=True)]
    answers = when_free(database, *[partial(submit_one, store, new, wake_after=LEASE) for new in news])
    expected = (Outcome.QUEUED_NEXT, "job-2") if values == RUN_AGAIN else (Outcome.ATTACHED, "job-1")
    assert [(each.outcome, each.job.id) for each in answers] == [expected] * 2
    assert counted(store) == {1}


def test_a_record_that_is_repeated_while_it_waits_is_counted_once(database: Database, store: PostgresStore) -> None:
    """The duplicates of a batch that are recorded twice while the row is locked are counted once, everywhere."""
    run(store, identity="same")
    record = Duplicate.of(submission("job-2", identity="same"), Admission(read(store), Outcome.ATTACHED))
    when_free(database, *[partial(store.record, record, also=["m"])] * 2)
    assert counted(store) == {2}


@pytest.mark.parametrize(("nonce", "count"), [("nonce-of-job-2", 1), ("another", 2)])
def test_a_submission_of_an_id_that_another_transaction_writes_is_counted(
    database: Database, store: PostgresStore, nonce: str, count: int
) -> None:
    """In a user's transaction a submission whose id is written meanwhile succeeds, and counts unless it is repeated."""
    run(store, identity="same")
    new = submission("job-2", identity="same", **RUN_AGAIN)
    second = psycopg.connect(database.server.url, application_name="second")
    with second, ThreadPoolExecutor(1) as aside, psycopg.connect(database.server.url) as first:
        submit_one(store.in_transaction(transaction_of(first)), new, wake_after=LEASE)
        pending = aside.submit(
            submit_one, store.in_transaction(transaction_of(second)), replace(new, nonce=nonce), wake_after=LEASE
        )
        eventually(lambda: lock_waiters(database.server, "second"))
        first.commit()
        assert pending.result(10.0).job.id == "job-2"
    assert counted(store) == {count}


@pytest.mark.parametrize("commits", [True, False])
def test_a_key_waits_for_the_transaction_that_writes_it(
    database: Database, store: PostgresStore, *, commits: bool
) -> None:
    """A key that an open transaction has written is found after its commit, and free after its rollback."""
    with psycopg.connect(database.server.url) as session, ThreadPoolExecutor(1) as aside:
        submit_one(store.in_transaction(transaction_of(session)), submission(key="key-1"), wake_after=LEASE)
        pending = aside.submit(admission, store, "job-2", key="key-1")
        eventually(lambda: lock_waiters(database.server))
        session.commit() if commits else session.rollback()
        answer = pending.result(10.0)
    expected = (Outcome.ATTACHED, "job-1") if commits else (Outcome.ADMITTED, "job-2")
    assert (answer.outcome, answer.job.id) == expected


def test_a_submission_in_autocommit_mode_is_one_transaction(database: Database, store: PostgresStore) -> None:
    """On a user's connection in autocommit mode a submission with a key takes effect as a whole, or not at all."""
    with psycopg.connect(database.server.url, autocommit=True) as session:
        joined = store.in_transaction(transaction_of(session))
        with pytest.raises(psycopg.DataError):
            submit(joined, key="key-1", payload="\0")
        assert session.execute(f"select count(*) from {database.schema}.keys".encode()).fetchone() == (0,)  # noqa: S608
        submit(joined, key="key-1")
        assert admission(store, "job-2", key="key-1").job.id == "job-1"


def test_two_transactions_with_one_key_can_both_commit(database: Database, store: PostgresStore) -> None:
    """Of two open transactions with the same new key the second finds it, with any conflict policy, and can commit."""
    for number, conflict_policy in enumerate(CONFLICT_POLICIES.values()):
        name, values = f"job-{number}", {"key": f"key-{number}", **conflict_policy}
        with ThreadPoolExecutor(1) as aside, ExitStack() as open_:
            one, other = (open_.enter_context(psycopg.connect(database.server.url)) for _ in range(2))
            first, second = (store.in_transaction(transaction_of(session)) for session in (one, other))
            admission(first, name, **values)
            pending = aside.submit(admission, second, f"late-{number}", **values)
            eventually(lambda: lock_waiters(database.server, ""))
            one.commit()
            assert (pending.result(10.0).outcome, pending.result().job.id) == (Outcome.ATTACHED, name)
            other.commit()


def test_a_batch_that_fails_leaves_no_broken_connection(
    database: Database, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statements that the server has not prepared because a batch failed are prepared again afterwards."""
    monkeypatch.setattr(connection, "SESSION", ("set lock_timeout = '50ms'",))
    submit(store)
    submissions = [
        submission("late", identity="identity-of-job-1"),
        *(submission(f"new-{number}") for number in range(9)),
    ]
    with holding(database, "job-1"), pytest.raises(StoreUnavailableError):
        store.submit_many(submissions, handover_of=by_caller)
    assert [answer.outcome for answer in store.submit_many(submissions, handover_of=by_caller)] == [
        "attached",
        *["admitted"] * 9,
    ]


def test_a_batch_that_fails_in_this_process_writes_nothing(store: PostgresStore) -> None:
    """If the driver refuses a value of the last statement of a transaction, or a signal ends it, none takes effect."""
    news = [submission("job-1", key="one"), submission("job-2", key="two", payload="\0")]
    with pytest.raises(StoreRefusedError):
        store.submit_many(news, handover_of=by_caller)
    assert store.get_many(["job-1", "job-2"]) == {}
    assert submit(store).id == "job-1"


# --- wrong places ---------------------------------------------------------------------------------------------------


def test_a_database_without_an_encoding_can_have_a_ledger(own_server: PostgresServer) -> None:
    """Texts are UTF-8 in a database of encoding SQL_ASCII, the default of a server that was made in the locale C."""
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        connection.execute("create database plain encoding 'SQL_ASCII' template template0 lc_collate 'C' lc_ctype 'C'")
    url = f"{own_server.url.rpartition('/')[0]}/plain"
    make_ledger(url, "onejob")
    with closing(PostgresStore(url)) as store:
        submit(store, submitter="Zoë")
        store.submit_many([submission(f"é-{n}", submitter="Zoë") for n in range(2)], handover_of=by_caller)
        assert [job.id for job in store.find(Query(submitter="Zoë"))] == ["é-1", "é-0", "job-1"]
        assert store.put_messages([NewMessage("id", "", "été", "{}")]) == ["été"]


@pytest.mark.parametrize("pooler", ["", "&pooler=transaction"])
def test_a_role_that_reads_no_nulls_in_arrays_has_a_ledger(database: Database, pooler: str) -> None:
    """A job is postponed whatever the role's `array_nulls`, which would make a text of each null in an array."""
    url = f"{database.server.url}?options=-c%20array_nulls%3Doff{pooler}"
    with closing(PostgresStore(url, schema=database.schema)) as store:
        submit(store)
        wake_at = read(store).wake_at or 0.0
        store.postpone({"job-1": 1000.0})
        assert (read(store).wake_at or 0.0) > wake_at + 100.0


def test_a_text_that_no_index_holds_is_refused(store: PostgresStore) -> None:
    """A text that is too long for an index of the ledger is refused, and is no outage that is worth another try."""
    with pytest.raises(StoreRefusedError, match="maximum size"):
        submit(store, "".join(map(chr, range(1000, 5000))))


def test_a_dropped_table_is_reported(database: Database, store: PostgresStore) -> None:
    """If the ledger's tables were dropped, the error says how to check the schema."""
    submit(store)
    with psycopg.connect(database.server.url, autocommit=True) as session:
        session.execute(f"drop table {database.schema}.jobs cascade")
    with pytest.raises(StoreError, match="migrate status") as caught:
        submit(store, "job-2")
    assert not isinstance(caught.value, StoreUnavailableError)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:secret%@host/shop", "postgresql://user:secret@host/shop?no_such_option=1", "postgres://[::1/x",
        "postgresql://user:p@secret@host/shop", "postgresql://user:p/secret@host/shop",
    ],
)  # fmt: skip
def test_a_url_that_cannot_work_is_refused(url: str) -> None:
    """An invalid URL is refused before a connection is opened, and the message does not contain its password."""
    with pytest.raises(ConfigurationError, match="postgresql://user:password@host") as caught:
        PostgresStore(url)
    assert "secret" not in str(caught.value)
    assert "dbname=shop@home host=/run/a@b" in connection.conninfo_of("postgresql://user@/shop@home?host=/run/a@b")


@pytest.mark.parametrize("scheme", ["postgres", "postgresql+psycopg", "postgresql+psycopg2"])
def test_urls_of_sqlalchemy_are_understood(database: Database, scheme: str) -> None:
    """A URL with SQLAlchemy's driver, or with the short scheme, names the same database."""
    url = database.server.url.replace("postgresql", scheme)
    with closing(PostgresStore(url, schema=database.schema)) as store:
        assert claim(store, submit(store).id).applied


# --- statements that overlap ------------------------------------------------------------------------------------------


def test_a_job_that_is_followed_during_its_purge_stays(
    store: PostgresStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower that comes between the snapshot of a purge and its lock keeps the job that it follows."""
    end(store, run(store, "a"))
    slow = statements.SQL["delete"].replace(" as now\n", " as now, pg_sleep(0.5)\n", 1)
    assert slow != statements.SQL["delete"]
    with monkeypatch.context() as patch, ThreadPoolExecutor() as threads:
        patch.setitem(statements.SQL, "delete", slow)
        statements.statement.cache_clear()
        purged = threads.submit(store.delete, ["a"], sources=FINAL, skip_referenced=True)
        query = "select from pg_stat_activity where wait_event = 'PgSleep' and query like %s"
        with psycopg.connect(database.server.url, autocommit=True) as session:
            eventually(lambda: session.execute(query, [f"%{database.schema}%"]).fetchone() is not None)
        assert store.follow(submission("b"), follows_id="a") is not None
        assert purged.result() == []
    statements.statement.cache_clear()
    assert get(store, "a") is not None


# --- many threads, and signals --------------------------------------------------------------------------------------


class StopIt(BaseException):
    """The exception that a signal raises at any point."""


def test_exceptions_of_signals_leak_no_connections(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """After hundreds of exceptions of signals during operations, all threads of the pool get a connection."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # a connection may be dropped open
    job = run(store)
    armed: list[bool] = []  # not empty while an operation is under way that was not interrupted yet
    over = threading.Event()
    dice = random.Random(1)
    interrupted = 0

    def raise_once(*_: object) -> None:
        if armed:
            armed.clear()
            raise StopIt

    def send_signals() -> None:
        while not over.wait(dice.uniform(0.0005, 0.003)):
            os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, raise_once)
    with ThreadPoolExecutor(1) as aside:
        aside.submit(send_signals)
        while interrupted < 300:
            try:
                armed.append(True)
                read(store)
                armed.clear()
            except StopIt:
                interrupted += 1
        over.set()
    signal.signal(signal.SIGUSR1, before)
    pool = store._connections._pool
    assert pool is None or pool._slots.free._value == connection.MAX_CONNECTIONS - 1
    warm(store, connection.MAX_CONNECTIONS)
    assert end(store, job).state is State.COMPLETED


def test_the_main_thread_has_a_connection_of_its_own(store: PostgresStore) -> None:
    """While other threads hold all connections that they may, the main thread reads: it takes no slot to lose."""
    store.find(Query())
    pool = store._connections._pool
    assert pool is not None
    with ExitStack() as held:
        for _ in range(connection.MAX_CONNECTIONS - 1):
            assert pool._slots.free.acquire(blocking=False)
            held.callback(pool._slots.free.release)
        store.find(Query())


def test_submissions_that_wait_block_no_other_operations(database: Database, store: PostgresStore) -> None:
    """While many submissions wait for a transaction with an equal one, heartbeats and ends of other jobs succeed."""
    job = run(store)
    with ThreadPoolExecutor(20) as crowd:
        with psycopg.connect(database.server.url) as session:
            transactional = store.in_transaction(transaction_of(session))
            submit_one(transactional, submission("first", identity="same"), wake_after=LEASE)
            clicks = [crowd.submit(submit, store, f"click-{number}", identity="same") for number in range(20)]
            eventually(lambda: lock_waiters(database.server))
            assert [renewal.held for renewal in Ledger(store).renew([(job.id, job.claim)])] == [True]
            assert end(store, job).state is State.COMPLETED
        assert {type(click.exception(20.0)) for click in clicks} <= {type(None), StoreUnavailableError}
    assert read(store, "first").duplicate_count > 0


def test_threads_wait_for_a_silent_server_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many threads that connect to a server which accepts connections and never replies wait concurrently."""
    monkeypatch.setattr(connection, "RETRY_DELAYS", ())
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        silent.settimeout(40.0)
        url = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/nothing?connect_timeout=3600"
        with closing(PostgresStore(url)) as store, ThreadPoolExecutor(6) as crowd:
            answers = [crowd.submit(get, store, "job-1") for _ in range(6)]
            accepted = [silent.accept()[0] for _ in answers]  # each while the earlier ones still wait
            for each in accepted:
                each.close()
            assert all(isinstance(answer.exception(timeout=60), StoreUnavailableError) for answer in answers)


def test_a_submission_without_wait_for_locks_does_not_wait(database: Database, store: PostgresStore) -> None:
    """A submission that must not wait fails on a locked row, and when it is repeated it gets the usual answer."""
    ledger = Ledger(store)
    submit(store, identity="same")
    submissions = [submission("job-2", identity="same"), submission("job-3")]
    with holding(database, "job-1"):
        with pytest.raises(StoreBusyError):
            ledger.submit_many(submissions, wait_for_locks=False)
        (alone,) = ledger.submit_many(submissions[1:], wait_for_locks=False)
        assert alone.outcome is Outcome.ADMITTED
    assert [str(each.outcome) for each in ledger.submit_many(submissions, wait_for_locks=False)] == [
        "attached",
        "admitted",
    ]
    assert (read(store).duplicate_count, read(store, "job-3").duplicate_count) == (1, 0)


# --- poolers --------------------------------------------------------------------------------------------------------


def _live(store: PostgresStore, number: int) -> None:
    """Submit a job and a duplicate, run it with a step and a heartbeat, and complete it."""
    name = f"job-{number}"
    submit(store, name)
    submit(store, f"{name}-again", identity=f"identity-of-{name}")
    job = start(store, name)
    store.keep_step(job.id, job.token, "step", "1", sources=RUNNING)
    store.renew([(job.id, job.claim)], sources=RUNNING)
    store.submit_many([submission(f"{name}-{each}") for each in range(3)], handover_of=by_caller, wait_for_locks=False)
    assert end(store, job).state is State.COMPLETED


STATE = "select current_setting('lock_timeout'), (select count(*) from pg_prepared_statements)"


def test_a_pooled_store_leaves_nothing_in_its_sessions(database: Database) -> None:
    """With `?pooler=transaction` a session has no prepared statement and no setting of onejob after an operation."""
    url = f"{database.server.url}?application_name=pooled&pooler=transaction"
    with closing(PostgresStore(url, schema=database.schema)) as store:
        _live(store, 1)
        (inside,) = store._sql.runner.run([("select current_setting('lock_timeout') as lock_timeout", {})])[0]
        assert inside == {"lock_timeout": "10s"}
        pool = not_none(store._connections._pool)
        with pool.connection(wait_for_locks=False) as session:
            (left,) = session.execute(STATE, prepare=False).fetchall()
        assert left == ("0", 0)
    with pytest.raises(ConfigurationError, match="pooler=transaction"):
        PostgresStore(f"{database.server.url}?pooler=statement")


@pytest.mark.deep
def test_threads_share_the_few_sessions_of_a_pooler(database: Database) -> None:
    """Behind a real PgBouncer in transaction mode every operation works, and other clients inherit nothing."""
    with start_pgbouncer(database.server, size=3) as pooler:
        with closing(PostgresStore(pooler.url, schema=database.schema)) as store, ThreadPoolExecutor(8) as threads:
            for done in [threads.submit(_live, store, number) for number in range(100)]:
                done.result(60.0)
            with psycopg.connect(pooler.url.partition("?")[0], autocommit=True, prepare_threshold=None) as other:
                for _ in range(9):
                    assert other.execute(STATE).fetchone() == ("0", 0)
        unaware = PostgresStore(pooler.url.partition("?")[0], schema=database.schema)
        with closing(unaware), ThreadPoolExecutor(8) as threads:
            failed = [threads.submit(_live, unaware, number).exception for number in range(200, 220)]
            assert "pooler=transaction" in str([exception(60.0) for exception in failed])
