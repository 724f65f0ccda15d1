"""Migrations: a schema is created and upgraded by command, reports what is wrong, and never stops running code."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onejob.errors import ConfigurationError, StoreError
from onejob.jobs.broker_messages import NewMessage
from onejob.jobs.lifecycle import State
from onejob.jobs.query import Query
from onejob.stores import migrate as migrations
from onejob.stores import schema
from onejob.stores.migrate import Status
from onejob.stores.protocol import MessageStore
from onejob.stores.schema import HEAD, VERSIONS
from tests.services import PostgresServer, free_port
from tests.stores.lockstep import LockStep
from tests.stores.processes import SPAWN, RaceProcess, race
from tests.stores.support import ManualClock, StoreAddress, end, run, start, submit
from tests.stores.test_records import ENTRY
from tests.stores.test_sequences import SEQUENCES, Script
from tests.tiers import rounds

EXPANSION = (
    "alter table jobs add column priority integer not null default 0",
    "alter table jobs add column note text",
    "alter table history add column who text",
    "alter table steps add column at real",
    "create table notes (job_id text not null, at double precision not null)",
    "create index jobs_priority on jobs (priority)",
)
"""What a next version may do to the schema: each is an expansion, which the code before it survives."""


@pytest.fixture(params=["sqlite", "postgresql"])
def nowhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreAddress]:
    """Return the address of a ledger that does not exist yet, in an existing database."""
    if request.param == "sqlite":
        yield StoreAddress(f"sqlite:///{tmp_path / 'ledger.db'}", "unused")
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    yield StoreAddress(server.url, "made_by_hand")
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("drop schema if exists made_by_hand cascade")


@pytest.fixture
def address(nowhere: StoreAddress) -> StoreAddress:
    """Return the address of an empty ledger."""
    migrations.upgrade(nowhere.url, nowhere.namespace)
    return nowhere


def execute(address: StoreAddress, *commands: str) -> list[Any]:
    """Run SQL in the ledger's schema, and return the rows of the last command."""
    if address.kind == "sqlite":
        with closing(sqlite3.connect(address.url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            return [connection.execute(command).fetchall() for command in commands][-1]
    with psycopg.connect(address.url, options=f"-c search_path={address.namespace}") as connection:
        cursors = [connection.execute(command) for command in commands]
        return cursors[-1].fetchall() if cursors[-1].description else []


# --- up, status, sql ------------------------------------------------------------------------------------------------


def test_up_creates_a_ledger(nowhere: StoreAddress) -> None:
    """If there is no ledger, `up` creates one at the newest version, which accepts jobs."""
    before = migrations.status(nowhere.url, nowhere.namespace)
    assert (before.current, before.pending) == (None, VERSIONS)
    after = migrations.upgrade(nowhere.url, nowhere.namespace)
    assert (after.current, after.head, after.pending) == (HEAD, HEAD, ())
    with nowhere.opened() as store:
        assert end(store, run(store)).state is State.COMPLETED


def up(process: RaceProcess) -> str | None:
    """Migrate at the same time as other processes."""
    process.ready()
    return migrations.upgrade(process.address.url, process.address.namespace).current


@rounds(2, 4)
def test_concurrent_migrations_succeed(nowhere: StoreAddress, rounds: int) -> None:
    """If all processes of a deployment migrate at once, one does it and none fails."""
    assert race(nowhere, rounds, up, context=SPAWN) == [HEAD] * rounds
    with nowhere.opened() as store:
        assert submit(store).id == "job-1"


def test_the_printed_sql_needs_no_right_to_create_schemas(postgres_server: PostgresServer) -> None:
    """A role that owns the schema, and may create no other one, can run the SQL that `sql` prints."""
    url, role = postgres_server.url, "owner_of_the_schema"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"create role {role}; create schema owned authorization {role}".encode())
        connection.execute(f"set role {role}".encode())
        connection.execute(migrations.sql(url, "owned").encode())
        connection.execute("reset role")
        assert migrations.status(url, "owned").pending == ()
        connection.execute(f"drop schema owned cascade; drop role {role}".encode())


def test_the_printed_sql_creates_the_same_ledger(nowhere: StoreAddress, tmp_path: Path) -> None:
    """The SQL that `sql` prints creates the same ledger as `up`, with its version, and `sql` opens no connection."""
    text = migrations.sql(nowhere.url, nowhere.namespace)
    assert ("lock_timeout" in text) is (nowhere.kind == "postgresql")
    if nowhere.kind == "sqlite":
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
            connection.executescript(text)
    else:
        with psycopg.connect(nowhere.url, autocommit=True) as connection:
            connection.execute(text.encode())
    assert migrations.status(nowhere.url, nowhere.namespace).pending == ()
    with nowhere.opened() as store:
        assert submit(store).id == "job-1"


def test_the_printed_sql_waits_for_no_lock_for_long(postgres_server: PostgresServer) -> None:
    """The SQL that `sql` prints gives up a lock that another transaction keeps, and sets nothing beyond its own one."""
    url = postgres_server.url
    text = migrations.sql(url, "printed")
    with psycopg.connect(url, autocommit=True) as connection, psycopg.connect(url) as other:
        before = connection.execute("show lock_timeout").fetchone()
        connection.execute(text.encode())
        assert connection.execute("show lock_timeout").fetchone() == before
        other.execute("lock table printed.jobs in access exclusive mode")
        first = text.replace(migrations.LOCK_TIMEOUT, "50ms").partition("do $$")[0]
        with pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute(f"{first} alter table printed.jobs add column more text".encode())
        connection.execute("rollback")
        other.rollback()
        connection.execute("drop schema printed cascade")


def test_a_new_sqlite_file_equals_a_migrated_one(tmp_path: Path) -> None:
    """A file that the store created has the same tables and the same version as one that `up` created."""
    alone, migrated = (StoreAddress(f"sqlite:///{tmp_path / name}.db", "unused") for name in ("alone", "migrated"))
    with alone.opened() as store:
        store.find(Query())
    migrations.upgrade(migrated.url)
    tables = "select name, sql from sqlite_master where sql is not null and name <> 'schema_version' order by name"
    assert execute(alone, tables) == execute(migrated, tables)
    assert migrations.status(alone.url) == migrations.status(migrated.url)


@pytest.mark.parametrize("name", ["", "1st", "Shop", "pg_jobs", 'a"b', "a.b", "a b", "x" * 64, "jobs;"])
def test_a_schema_has_a_plain_name(name: str) -> None:
    """An invalid name of a schema is refused, by the store and by the migrations."""
    with pytest.raises(ConfigurationError, match="is invalid as the ledger's schema"):
        StoreAddress("postgresql://localhost/shop", name).open()
    with pytest.raises(ConfigurationError, match="is invalid as the ledger's schema"):
        migrations.sql("postgresql://localhost/shop", name)


# --- other versions -------------------------------------------------------------------------------------------------


def test_a_missing_ledger_is_reported_with_the_command(postgres_server: PostgresServer) -> None:
    """A store in PostgreSQL creates no tables by itself: its first operation names the command that does."""
    with StoreAddress(postgres_server.url, "not_there").opened() as store:
        with pytest.raises(ConfigurationError, match="migrate up") as caught:
            submit(store)
        assert "not_there" in str(caught.value)


@pytest.mark.parametrize(("version", "advice"), [("0000", "migrate up"), ("9999", "upgrade onejob")])
def test_another_version_is_refused(address: StoreAddress, version: str, advice: str) -> None:
    """A schema that is too old or too new is not changed, and the error names the remedy."""
    execute(address, f"update schema_version set version_num = '{version}'")  # noqa: S608 - a number
    with address.opened() as store, pytest.raises(ConfigurationError, match=advice):
        submit(store)
    assert execute(address, "select count(*) from jobs") == [(0,)]


def test_older_code_leaves_a_newer_schema_alone(address: StoreAddress) -> None:
    """`up` of code that is one version behind succeeds and changes nothing, as in a rolling deployment."""
    newer = f"{int(HEAD) + 1:04}"
    execute(address, f"update schema_version set version_num = '{newer}'")  # noqa: S608 - a number
    assert migrations.upgrade(address.url, address.namespace).current == newer
    execute(address, "update schema_version set version_num = '9999'")
    with pytest.raises(ConfigurationError, match="upgrade onejob"):
        migrations.upgrade(address.url, address.namespace)


def test_an_existing_schema_needs_no_right_to_create_one(postgres_server: PostgresServer) -> None:
    """A role that owns its schema and may create no other can migrate, also with several hosts in the URL."""
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute("create role tenant login")
        connection.execute("create schema tenant authorization tenant")
        dead = free_port()
        url = postgres_server.url.replace("postgres@127.0.0.1:", f"tenant@127.0.0.1:{dead},127.0.0.1:")
        try:
            assert migrations.upgrade(url, "tenant").current == HEAD
            with StoreAddress(url, "tenant").opened() as store:
                assert submit(store).id == "job-1"
        finally:
            connection.execute("drop schema tenant cascade; drop role tenant")


@pytest.mark.parametrize("is_there", [False, True])
def test_a_migration_without_rights_names_the_ways_out(postgres_server: PostgresServer, *, is_there: bool) -> None:
    """A role that may not create the schema, or its tables, is told how to get a role that may."""
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute("create role visitor login")
        if is_there:
            connection.execute("create schema visited; grant usage on schema visited to visitor")
        try:
            with pytest.raises(StoreError, match="permission denied") as caught:
                migrations.upgrade(postgres_server.url.replace("postgres@", "visitor@"), "visited")
        finally:
            connection.execute("drop schema if exists visited cascade; drop role visitor")
    assert "`onejob migrate roles | psql URL -v schema=visited`" in str(caught.value)
    assert 'create schema "visited" authorization ROLE' in str(caught.value)


def test_a_later_version_upgrades_a_ledger(address: StoreAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger of the version before gets the statements of the next one alone, once, and keeps its jobs."""
    with address.opened() as store:
        submit(store)
    added = {"0002": ["alter table onejob.jobs add column note text"]}
    of_version = schema._statements_of
    monkeypatch.setattr(schema, "_statements_of", lambda dialect, name, version: [
        *(schema.in_schema(each, name).replace("onejob.", "") for each in added.get(version, [])),
        *(of_version(dialect, name, version) if version not in added else ()),
    ])  # fmt: skip
    for module in (schema, migrations):
        monkeypatch.setattr(module, "VERSIONS", ("0001", "0002"))
        monkeypatch.setattr(module, "HEAD", "0002")
    assert migrations.status(address.url, address.namespace) == Status("0001", "0002", ("0002",))
    assert "create table" not in migrations.sql(address.url, address.namespace, "0001")
    with address.opened() as store, pytest.raises(ConfigurationError, match="needs 0002"):
        submit(store)
    for _ in range(2):
        assert migrations.upgrade(address.url, address.namespace) == Status("0002", "0002", ())
    assert execute(address, "select id, note from jobs", "select version_num from schema_version") == [("0002",)]
    with address.opened() as store:
        assert end(store, start(store)).state is State.COMPLETED


# --- rows that were copied ------------------------------------------------------------------------------------------

COPIES = {
    "postgresql": (
        "insert into audit_log (id, at, entry) overriding system value values (7, 0, '{}')",
        (
            "insert into messages (id, message_id, queue, priority, body) overriding system value "
            "values (9, 'm', 'q', 0, '')"
        ),
    ),
    "sqlite": (
        "insert into audit_log (id, at, entry) values (7, 0, '{}')",
        "insert into messages (id, message_id, queue, priority, body) values (9, 'm', 'q', 0, '')",
        "delete from sqlite_sequence",
    ),
}
"""Rows with the numbers that they had elsewhere, in tables whose sequences know nothing of them."""


def test_rows_without_their_sequences_are_repaired(address: StoreAddress) -> None:
    """Rows that were copied without their sequences are named by PostgreSQL's `status`; after `up` writes succeed."""
    execute(address, *COPIES[address.kind])
    found = migrations.status(address.url, address.namespace)
    assert [each.partition(" and the rows")[0] for each in found.repairs] == [] if address.kind == "sqlite" else [
        f"the sequence of {address.namespace}.audit_log.id is at 0,",
        f"the sequence of {address.namespace}.messages.id is at 0,",
    ]  # fmt: skip
    assert migrations.upgrade(address.url, address.namespace) == Status(HEAD, HEAD, ())
    with address.opened() as store:
        assert isinstance(store, MessageStore)
        store.append_audit(ENTRY, keep=9, keep_for=1e12)
        store.put_messages([NewMessage("n", "", "q", "")])
    assert execute(address, "select max(id) from audit_log") == [(8,)]
    assert execute(address, "select max(id) from messages") == [(10,)]


def test_up_leaves_right_sequences_alone(address: StoreAddress) -> None:
    """A sequence beyond the rows, since some were deleted, is not set back, so that no number is used twice."""
    with address.opened() as store:
        for _ in range(2):
            store.append_audit(ENTRY, keep=9, keep_for=1e12)
        execute(address, "delete from audit_log where id = 2")
        assert migrations.upgrade(address.url, address.namespace) == Status(HEAD, HEAD, ())
        store.append_audit(ENTRY, keep=9, keep_for=1e12)
    newest = 3 if address.kind == "postgresql" else 2
    assert execute(address, "select max(id) from audit_log") == [(newest,)]


def test_a_missing_function_is_repaired(address: StoreAddress) -> None:
    """A ledger in PostgreSQL whose tables were copied without its function is named by `status`, and mended by `up`."""
    if address.kind == "postgresql":
        execute(address, "drop function trim_audit_log")
        found = migrations.status(address.url, address.namespace)
        assert found.repairs == ("the function trim_audit_log is missing",)
    assert migrations.upgrade(address.url, address.namespace) == Status(HEAD, HEAD, ())
    with address.opened() as store:
        for _ in range(3):
            store.append_audit(ENTRY, keep=2, keep_for=1e12)
        assert len(store.audit(limit=9, before=None, keep_for=1e12)) == 2


# --- code of one version on the schema of the next ------------------------------------------------------------------


def test_running_code_survives_the_next_schema(address: StoreAddress, clock: ManualClock) -> None:
    """A store with open connections works without an error while the next version expands its schema."""
    with address.opened(clock) as store:
        for sequence in SEQUENCES[::3]:  # which are enough for every statement to be prepared
            empty(address)
            Script(LockStep(clock, {address.kind: store})).play(sequence)
        half_way = run(store, "half-way")
        execute(address, *EXPANSION, f"update schema_version set version_num = '{int(HEAD) + 1:04}'")  # noqa: S608
        assert end(store, half_way).state is State.COMPLETED
        for sequence in SEQUENCES[::3]:
            empty(address)
            Script(LockStep(clock, {address.kind: store})).play(sequence)
    with address.opened() as store:
        assert end(store, run(store, "later")).state is State.COMPLETED


def empty(address: StoreAddress) -> None:
    """Delete all jobs, keys, counts, tombstones and limits."""
    tables = "jobs keys duplicate_sums tombstones quotas history duplicates duplicate_counts steps".split()
    tables += "limits limit_slots limit_reservations limit_rates".split()
    execute(address, *(f"delete from {table}" for table in tables))  # noqa: S608 - ours
