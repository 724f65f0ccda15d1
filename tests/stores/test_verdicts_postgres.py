"""Each error of PostgreSQL has a verdict: what a store, and a user's transaction, make of it."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from functools import partial
from typing import Any, NamedTuple

import asyncpg  # type: ignore[import-untyped]
import psycopg
import psycopg2  # type: ignore[import-untyped]
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from onejob.errors import (
    StoreBusyError,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
    StoreUnusableError,
)
from onejob.jobs.handover import by_caller
from onejob.jobs.lifecycle import State
from onejob.jobs.query import Query
from onejob.stores.postgres import PostgresStore, connection
from onejob.stores.postgres.errors import RULES, rule_of
from onejob.stores.verdicts import Verdict
from onejob.transactions.sessions import transaction_of
from tests.cases import for_each
from tests.conftest import make_ledger
from tests.services import POSTGRES_FOLDER, PostgresServer, eventually, postgres_wheel, start_postgres
from tests.stores.races import together
from tests.stores.support import RUNNING, end, read, run, start, submission, submit, take_due


class Database(NamedTuple):
    """The server and the schema of an empty ledger."""

    server: PostgresServer
    schema: str

    def execute(self, statement: str) -> None:
        """Execute a statement of an administrator, in which S is the schema."""
        with psycopg.connect(self.server.url, autocommit=True) as session:
            session.execute(statement.replace("S.", f"{self.schema}.").encode())

    @contextmanager
    def refusing(self, code: str) -> Iterator[None]:
        """Have the server raise an error of this SQLSTATE at each submission."""
        self.execute(
            "create function S.refuse() returns trigger language plpgsql as "
            f"$$ begin raise exception 'as the test says' using errcode = '{code}'; end $$"
        )
        self.execute("create trigger refuse before insert on S.jobs for each row execute function S.refuse()")
        yield
        self.execute("drop function S.refuse() cascade")


@pytest.fixture
def database(postgres_server: PostgresServer, postgres_schema: str) -> Database:
    """Return where the ledger of a test is."""
    return Database(postgres_server, postgres_schema)


@pytest.fixture
def store(database: Database) -> Iterator[PostgresStore]:
    """Return an empty store in PostgreSQL."""
    with closing(PostgresStore(database.server.url, schema=database.schema)) as store:
        yield store


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a store repeat an operation without pauses."""
    monkeypatch.setattr(connection, "RETRY_DELAYS", (0.0, 0.0))


CODES: dict[type[StoreError], str] = {
    StoreError: "25001 25P02 42601 XX000 55000 21000",
    StoreRefusedError: "22001 22021 23502 23514 54000",
    StoreUnusableError: (
        "28000 28P01 3D000 3F000 42501 42703 42804 42883 42P01 42P05 42P10 53000 53100 53400 57P04 58030 F0000 P0001 "
        "XX001 XX002"
    ),
    StoreBusyError: "23505 25P03 25P04 40001 40P01 53300 55006 55P03 57014",
    StoreUnavailableError: "08006 08P01 25006 26000 0A000 40003 53200 57P01 57P02 57P03 57P05",
}
"""By the exception of a store, the SQLSTATEs that have it."""


@for_each("expected, code", [(kind, code) for kind, codes in CODES.items() for code in codes.split()])
@pytest.mark.usefixtures("at_once")
def test_each_error_of_the_server_has_its_verdict(
    database: Database, store: PostgresStore, expected: type[StoreError], code: str
) -> None:
    """An error of each SQLSTATE is the exception of its verdict, says what to do, and the store works afterwards."""
    rule = RULES.get(code) or RULES.get(code[:2])
    with database.refusing(code), pytest.raises(StoreError) as caught:
        submit(store, f"refused-{code}")
    assert type(caught.value) is expected
    assert str(caught.value).endswith(rule.remedy if rule else "")
    assert submit(store, f"after-{code}").state is State.QUEUED


def test_each_row_of_the_table_is_tested() -> None:
    """The codes above reach every rule of the table that a server's error can have."""
    codes = " ".join(CODES.values()).split()
    reached = {code if code in RULES else code[:2] for code in codes}
    assert {name for name in RULES if name.isupper() or name.isdigit()} - {"42704"} <= reached


@for_each("code, tries", [("40001", 3), ("0A000", 3), ("57P01", 3), ("55P03", 1), ("57014", 1), ("53100", 1)])
@pytest.mark.usefixtures("at_once")
def test_what_may_succeed_at_once_is_repeated(database: Database, store: PostgresStore, code: str, tries: int) -> None:
    """A store repeats an operation after a conflict, an outage or a stale connection, and after nothing else."""
    database.execute("create sequence S.tries")
    database.execute(
        "create function S.refuse() returns trigger language plpgsql as $$ begin "
        f"perform nextval('S.tries'); raise exception 'no' using errcode = '{code}'; end $$"
    )
    database.execute("create trigger refuse before insert on S.jobs for each row execute function S.refuse()")
    with pytest.raises(StoreError):
        submit(store)
    with psycopg.connect(database.server.url) as session:
        found = session.execute(f"select last_value from {database.schema}.tries".encode()).fetchone()  # noqa: S608 - ours
    database.execute("drop sequence S.tries")
    database.execute("drop function S.refuse() cascade")
    assert found == (tries,)


# --- the real causes --------------------------------------------------------------------------------------------------


def _role(database: Database, rights: str = "select, insert, update, delete") -> PostgresStore:
    """Return a store as a role that has some rights on the tables of the ledger."""
    role = f"role_{database.schema}"
    database.execute(f"create role {role} login; grant usage on schema {database.schema} to {role}")
    database.execute(f"grant {rights} on all tables in schema {database.schema} to {role}")
    return PostgresStore(database.server.url.replace("//postgres@", f"//{role}@"), schema=database.schema)


@pytest.fixture
def role(database: Database) -> Iterator[Callable[..., PostgresStore]]:
    """Return a way to use the ledger as another role, which is dropped afterwards."""
    yield lambda *rights: _role(database, *rights)
    name = f"role_{database.schema}"
    database.execute(f"drop owned by {name}; drop role {name}")


def test_a_right_that_is_missing_is_the_operators(database: Database, role: Callable[..., PostgresStore]) -> None:
    """A role that may only read gets an error that says how to grant the rest, and works when it has been granted."""
    with closing(role("select")) as store:
        with pytest.raises(StoreUnusableError, match=r"permission denied.*migrate roles"):
            submit(store)
        for kind in ("tables", "sequences"):
            database.execute(f"grant all on all {kind} in schema {database.schema} to role_{database.schema}")
        assert submit(store).state is State.QUEUED


@pytest.mark.usefixtures("at_once")
def test_a_role_with_all_its_connections_in_use_is_busy(database: Database, role: Callable[..., PostgresStore]) -> None:
    """A role whose limit of connections is reached is busy, and the error says what to raise."""
    with closing(role()) as store:
        database.execute(f"alter role role_{database.schema} connection limit 0")
        with pytest.raises(StoreBusyError, match=r"too many connections.*max_connections"):
            read(store)


@pytest.mark.usefixtures("at_once")
def test_a_database_that_accepts_no_writes_is_an_outage(database: Database, role: Callable[..., PostgresStore]) -> None:
    """A server that is read-only, as after a failover, is an outage; the error says what to do if that lasts."""
    with closing(role()) as store:
        database.execute(f"alter role role_{database.schema} set default_transaction_read_only = on")
        with pytest.raises(StoreUnavailableError, match=r"read-only transaction.*target_session_attrs"):
            submit(store)


@for_each("url, words", [("//nobody@", "refused the connection"), ("/nothing", "no such database.*migrate up")])
def test_a_wrong_user_or_database_is_the_operators(database: Database, url: str, words: str) -> None:
    """A user or a database that does not exist is no outage, and is asked for once."""
    wrong = database.server.url.replace("//postgres@", url) if "@" in url else f"{database.server.url[:-9]}{url}"
    with closing(PostgresStore(wrong)) as store, pytest.raises(StoreUnusableError, match=words):
        read(store)


def test_a_wrong_password_is_the_operators() -> None:
    """A password that the server refuses is no outage, whose error names the URL and pg_hba.conf; not the password."""
    server = start_postgres()
    try:
        make_ledger(server.url, "onejob")
        rules = server.directory / "data" / "pg_hba.conf"
        rules.write_text(f"host all shop 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        with psycopg.connect(server.url, autocommit=True) as session:
            session.execute("create role shop login password 'right'")
            session.execute("select pg_reload_conf()")
        wrong = server.url.replace("//postgres@", "//shop:wr0ng@")
        with closing(PostgresStore(wrong)) as store:
            eventually(lambda: _refuses(store))
            with pytest.raises(StoreUnusableError, match=r"password.*pg_hba\.conf") as caught:
                read(store)
        assert "wr0ng" not in str(caught.value)
    finally:
        server.remove()


def _refuses(store: PostgresStore) -> bool:
    """Return whether the server asks for passwords already, as it has been told."""
    try:
        store.find(Query())
    except StoreError as error:
        return "password" in str(error)
    return False


@pytest.mark.parametrize("what", ["table", "row"])
def test_what_is_locked_is_named(
    database: Database, store: PostgresStore, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A lock of a table is not called one of a row: the error names both."""
    monkeypatch.setattr(connection, "SESSION", ("set lock_timeout = '50ms'",))
    job = run(store)
    lock = {"table": "lock table S.jobs", "row": "select from S.jobs for update"}[what]
    with psycopg.connect(database.server.url) as session:
        session.execute(lock.replace("S.", f"{database.schema}.").encode())
        with pytest.raises(StoreBusyError, match="a row or a table that another transaction has locked"):
            end(store, job)
    assert end(store, job).state is State.COMPLETED


def test_a_statement_that_takes_too_long_is_busy(
    database: Database, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that the server ends, since its time is over, is worth another try, soon."""
    monkeypatch.setattr(connection, "SESSION", ("set statement_timeout = '50ms'",))
    with psycopg.connect(database.server.url) as session:
        session.execute(f"lock table {database.schema}.jobs".encode())
        with pytest.raises(StoreBusyError, match="statement timeout"):
            read(store)


def test_connections_that_an_administrator_ends_are_replaced(database: Database, store: PostgresStore) -> None:
    """An operation on a connection that the server has ended succeeds on another one."""
    together(*[lambda: store.find(Query())] * 3)
    database.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'onejob'")
    assert submit(store).state is State.QUEUED


# --- statements that are older than the schema ------------------------------------------------------------------------


TYPES = ("bigint", "int")


def _use(store: PostgresStore, name: str) -> None:
    """Submit, claim, renew, end and sweep, so that a connection knows the statements."""
    submit(store, f"{name}-alone")
    store.submit_many([submission(f"{name}-{number}") for number in range(3)], handover_of=by_caller)
    job = start(store, f"{name}-alone")
    store.renew([(job.id, job.claim)], sources=RUNNING)
    assert end(store, job).state is State.COMPLETED
    take_due(store, limit=1, hold=1.0)
    assert read(store, job.id).state is State.COMPLETED


def test_a_change_of_the_schema_breaks_no_operation(database: Database, store: PostgresStore) -> None:
    """After the type of a column was changed, each operation succeeds at its first call, on any connection."""
    for number in range(8):  # psycopg prepares what it has executed five times
        _use(store, f"before-{number}")
    together(*[lambda: store.find(Query())] * 4)
    for number, kind in enumerate(TYPES):
        database.execute(f"alter table S.jobs alter column duplicate_count type {kind}")
        _use(store, f"after-{number}")


def test_statements_that_the_server_has_forgotten_are_prepared_again(database: Database, store: PostgresStore) -> None:
    """An operation whose prepared statement does not exist any more is repeated on another connection."""
    _use(store, "before")
    pool = store._connections._pool
    assert pool is not None
    with pool.connection(wait_for_locks=False) as session:
        session.pgconn.exec_(b"deallocate all")  # of which psycopg hears nothing
    _use(store, "after")


@pytest.fixture(params=["psycopg", "psycopg2", "sqlalchemy"])
def connect(request: pytest.FixtureRequest, database: Database) -> Iterator[Callable[..., Any]]:
    """Return how a user connects, by one of several drivers; `autocommit`: without transactions."""
    with ExitStack() as stack:

        def connect_by(*, autocommit: bool = False) -> Any:
            url = database.server.url
            if request.param == "psycopg":
                return stack.enter_context(closing(psycopg.connect(url, autocommit=autocommit)))
            if request.param == "psycopg2":
                session = stack.enter_context(closing(psycopg2.connect(url)))
                session.autocommit = autocommit
                return session
            engine = create_engine(url.replace("postgresql", "postgresql+psycopg"), poolclass=NullPool)
            level = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
            return stack.enter_context(closing(engine.connect().execution_options(**level)))

        yield connect_by


def _submit_in(store: PostgresStore, name: str, session: Any) -> None:
    submit(store.in_transaction(transaction_of(session)), name)


def test_a_change_of_the_schema_breaks_one_transaction_at_most(
    database: Database, store: PostgresStore, connect: Callable[..., Any]
) -> None:
    """In a user's transaction the driver's error says to repeat it, and the next transaction succeeds."""
    session = connect()
    for number in range(8):
        _submit_in(store, f"before-{number}", session)
        session.commit()
    database.execute("alter table S.jobs alter column duplicate_count type bigint")
    try:
        _submit_in(store, "after", session)
    except (psycopg.Error, DBAPIError) as error:
        assert "repeat the transaction" in "".join(error.__notes__)  # noqa: PT017 - psycopg2 prepares nothing
        session.rollback()
        _submit_in(store, "after", session)
    session.commit()
    assert read(store, "after").state is State.QUEUED


def test_a_change_of_the_schema_breaks_nothing_in_autocommit_mode(
    database: Database, store: PostgresStore, connect: Callable[..., Any]
) -> None:
    """On a user's connection in autocommit mode, each operation is repeated, and the connection stays usable."""
    session = connect(autocommit=True)
    for number in range(8):
        _submit_in(store, f"before-{number}", session)
    database.execute("alter table S.jobs alter column duplicate_count type bigint")
    for number in range(3):
        _submit_in(store, f"after-{number}", session)
        assert read(store, f"after-{number}").state is State.QUEUED


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_a_change_of_the_schema_breaks_one_asynchronous_transaction_at_most(
    database: Database, store: PostgresStore, driver: str
) -> None:
    """In an asynchronous transaction the driver's error says to repeat it, and the next transaction succeeds."""
    asyncio.run(_submit_asynchronously(database, store, driver))
    assert read(store, "after").state is State.QUEUED


async def _submit_asynchronously(database: Database, store: PostgresStore, driver: str) -> None:
    """Submit in asynchronous transactions, before and after a change of the schema."""
    engine = create_async_engine(database.server.url.replace("postgresql", f"postgresql+{driver}"), pool_size=1)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.dispose)
        session = await stack.enter_async_context(engine.connect())
        for number in range(8):
            await session.run_sync(partial(_submit_in, store, f"before-{number}"))
            await session.commit()
        database.execute("alter table S.jobs alter column duplicate_count type bigint")
        try:
            await session.run_sync(partial(_submit_in, store, "after"))
        except DBAPIError as error:
            assert "repeat the transaction" in "".join(error.__notes__)  # noqa: PT017 - a driver may see to it itself
            await session.rollback()
            await session.run_sync(partial(_submit_in, store, "after"))
        await session.commit()


# --- time limits of transactions --------------------------------------------------------------------------------------


def test_a_transaction_that_was_idle_for_too_long_is_to_be_repeated(database: Database, store: PostgresStore) -> None:
    """A user's transaction that the server has ended for idleness says which setting did it, and to repeat it."""
    with psycopg.connect(database.server.url) as session:
        joined = store.in_transaction(transaction_of(session))
        submit(joined)
        session.execute("set idle_in_transaction_session_timeout = '1ms'")
        eventually(lambda: not _is_connected(database, session))
        with pytest.raises(ENDED) as caught:
            submit(joined, "job-2")
    _assert_says(caught.value, "idle_in_transaction_session_timeout")
    assert submit(store).state is State.QUEUED


ENDED = (psycopg.InternalError, psycopg.OperationalError)
"""How psycopg reports the end of a session: by its reason, or, if the system has dropped that, as a lost connection."""


def _assert_says(error: psycopg.Error, setting: str) -> None:
    """Check that a note of an error names the setting that ended the session, and says what to do."""
    notes = "".join(error.__notes__)
    assert notes.endswith("Roll back, and repeat the transaction")
    if isinstance(error, psycopg.InternalError):
        assert rule_of(error).verdict is Verdict.BUSY
        assert f"raise {setting}." in notes


def _is_connected(database: Database, session: psycopg.Connection) -> bool:
    with psycopg.connect(database.server.url, autocommit=True) as other:
        query = "select from pg_stat_activity where pid = %s"
        return other.execute(query, [session.info.backend_pid]).fetchone() is not None


@pytest.fixture(scope="module")
def newest_server() -> Iterator[PostgresServer]:
    """Return a server that has `transaction_timeout`, which came with PostgreSQL 17, with a ledger."""
    with pytest.MonkeyPatch.context() as patch:
        if (folder := postgres_wheel()) is not None:
            patch.setenv(POSTGRES_FOLDER, str(folder))
        server = start_postgres()
    with psycopg.connect(server.url) as session:
        number = session.info.server_version
    if number < 170_000:
        server.remove()
        pytest.skip(f"PostgreSQL {number // 10_000} has no transaction_timeout")
    make_ledger(server.url, "onejob")
    yield server
    server.remove()


@pytest.mark.parametrize("pooler", ["", "?pooler=transaction"])
def test_a_limit_of_transactions_does_not_end_a_wait(newest_server: PostgresServer, pooler: str) -> None:
    """A submission waits for an equal one in an open transaction whatever the `transaction_timeout` of its role."""
    database = Database(newest_server, "onejob")
    with closing(PostgresStore(f"{newest_server.url}{pooler}")) as store, ThreadPoolExecutor(1) as aside:
        with psycopg.connect(newest_server.url) as user:
            database.execute("alter role postgres set transaction_timeout = '200ms'")
            submit(store.in_transaction(transaction_of(user)), f"first{pooler}", identity=pooler)
            waiting = aside.submit(submit, store, f"second{pooler}", identity=pooler)
            eventually(lambda: waiting.done() or _oldest_wait(newest_server) > 0.5)
            user.commit()
        database.execute("alter role postgres reset transaction_timeout")
        assert waiting.result(10.0).id == f"first{pooler}"


def _oldest_wait(server: PostgresServer) -> float:
    query = (
        "select coalesce(max(extract(epoch from clock_timestamp() - query_start)), 0)::float from pg_stat_activity "
        "where wait_event_type = 'Lock' and application_name = 'onejob'"
    )
    with psycopg.connect(server.url, autocommit=True, options="-c transaction_timeout=0") as session:
        return float(session.execute(query).fetchone()[0])  # type: ignore[index]


def test_a_transaction_that_took_too_long_is_to_be_repeated(newest_server: PostgresServer) -> None:
    """A user's transaction that `transaction_timeout` has ended says so, and to repeat it."""
    with closing(PostgresStore(newest_server.url)) as store:
        with psycopg.connect(newest_server.url, options="-c transaction_timeout=500ms") as session:
            joined = store.in_transaction(transaction_of(session))
            submit(joined, "late")
            eventually(lambda: not _is_connected(Database(newest_server, "onejob"), session))
            with pytest.raises(ENDED) as caught:
                submit(joined, "later")
        _assert_says(caught.value, "transaction_timeout")
        assert submit(store, "late").state is State.QUEUED


def test_errors_of_asyncpg_have_verdicts(database: Database) -> None:
    """An error of asyncpg has the verdict of its SQLSTATE."""

    async def fail() -> None:
        session = await asyncpg.connect(database.server.url)
        try:
            await session.execute("select 1 from nothing")
        finally:
            await session.close()

    with pytest.raises(asyncpg.UndefinedTableError) as caught:
        asyncio.run(fail())
    assert rule_of(caught.value) is RULES["42P01"]
