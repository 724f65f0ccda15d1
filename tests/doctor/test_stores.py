"""The laws of the checks of stores, each on a real server, or a real file, in that condition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
import redis as redis_py

from onejob.doctor import examine, ledger
from onejob.health import postgres, redis, sqlite, warnings_of_store
from onejob.health.finding import Level
from onejob.stores.migrate import upgrade
from onejob.stores.schema import HEAD
from tests.cases import for_each
from tests.conftest import make_ledger
from tests.doctor.support import commands, installed, names, run_command
from tests.services import PostgresServer, RedisServer, client_program, eventually, start_postgres, start_redis

HEALTHY = ("--appendonly", "yes")


@contextmanager
def redis_with(tmp_path: Path, *args: str) -> Iterator[str]:
    with start_redis(tmp_path, *args) as server:
        yield server.url


# --- every store ----------------------------------------------------------------------------------------------------


@for_each("now, begin, end, words", [
    (90.0, 99.0, 99.0, "9 s behind"), (110.0, 99.0, 99.0, "11 s ahead of"), (100.0, 99.0, 130.0, ""),
    (95.0, 99.0, 99.1, ""),
])  # fmt: skip
def test_a_clock_that_differs_is_found(now: float, begin: float, end: float, words: str) -> None:
    """A store's clock more than 5 s beside the times around its reading is found, with the difference."""
    finding = ledger.check_clock(now, begin, end)
    found = (finding.check, finding.level, words in finding.problem) if finding else None
    assert found == (("clock-skew", Level.WARNING, True) if words else None)


# --- Redis ----------------------------------------------------------------------------------------------------------


@for_each("args, expected, value", [
    ((), {"redis-persistence"}, "appendonly is no"),
    ((*HEALTHY, "--appendfsync", "no"), {"redis-fsync"}, "appendfsync is no"),
    ((*HEALTHY, "--maxmemory-policy", "allkeys-lru"), {"redis-eviction"}, "allkeys-lru (maxmemory is 0"),
    ((*HEALTHY, "--maxmemory", "1mb"), {"redis-memory"}, "of maxmemory (1 MiB)"),
    ((*HEALTHY, "--cluster-enabled", "yes"), {"redis-cluster"}, "cluster_enabled is 1"),
    ((*HEALTHY, "--rename-command", "CONFIG", ""), {"redis-config-hidden"}, "CONFIG GET is refused"),
])  # fmt: skip
def test_a_redis_that_breaks_the_promise_is_found(
    tmp_path: Path, args: tuple[str, ...], expected: set[str], value: str
) -> None:
    """Each setting of a Redis that breaks the promise of a ledger is one finding, with its value."""
    folder = tmp_path / value
    folder.mkdir()
    with redis_with(folder, *args) as url:
        findings = [*redis.check_ledger(redis.read_facts(url))]
    assert names(findings) == expected
    assert value in findings[0].problem


def test_commands_name_the_redis_that_was_examined(tmp_path: Path) -> None:
    """A command of a finding about a Redis, pasted as printed, changes the server that was examined."""
    with redis_with(tmp_path, "--maxmemory-policy", "allkeys-lru") as url, installed(url) as installation:
        for check in ("redis-eviction", "redis-persistence"):
            setting, command = commands(examine(installation), check)
            assert f" -u {url} CONFIG SET {setting}" in command
            run_command(command)
        left = [finding.level for finding in examine(installation) if finding.subject == "redis"]
        assert left == [Level.OK], "it is healthy now"
        # Redis ignores SIGTERM while it writes its first append-only file.
        eventually(lambda: not redis.read_facts(url).info["aof_rewrite_in_progress"])
    assert redis.cli_options("unix:///run/my redis.sock?db=3") == "-s '/run/my redis.sock' -n 3"


def test_commands_name_the_postgresql_that_was_examined(
    durable_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command of a finding about a PostgreSQL, pasted as printed, changes the database that was examined."""
    client_program("psql")  # or the test is skipped before it changes the server
    monkeypatch.setenv("PGUSER", "postgres")
    with psycopg.connect(durable_postgres.url, autocommit=True) as superuser:
        superuser.execute("alter system set full_page_writes = off")
        superuser.execute("select pg_reload_conf()")
    with installed(f"{durable_postgres.url}?pooler=transaction", "shop") as pooled:
        (polled,) = [each for each in examine(pooled) if each.check == "postgresql-polled-waits"]
        assert "a URL of the server itself" in polled.remedy
    with installed(durable_postgres.url, "shop") as installation:
        eventually(lambda: "postgresql-fsync" in names(examine(installation)))
        run_command(*commands(examine(installation), "postgresql-fsync"))
        eventually(lambda: "postgresql-fsync" not in names(examine(installation)))


def test_a_replica_is_found_and_its_primary_is_told(tmp_path: Path) -> None:
    """A ledger at a replica is an error; its primary is told that a failover may lose writes."""
    with redis_with(tmp_path, *HEALTHY) as primary, redis_with(tmp_path, *HEALTHY) as replica:
        with redis_py.Redis.from_url(replica) as client, redis_py.Redis.from_url(primary) as source:
            client.replicaof("127.0.0.1", str(source.connection_pool.connection_kwargs["port"]))
            eventually(lambda: source.info("replication")["connected_slaves"] == 1)
            assert names(redis.check_ledger(redis.read_facts(primary))) == {"redis-replication"}
            source.config_set("min-replicas-to-write", 1)
            assert names(redis.check_ledger(redis.read_facts(primary))) == set()
        assert "redis-replica" in names(redis.check_ledger(redis.read_facts(replica)))


def test_an_old_redis_and_failing_writes_are_found(redis_server: RedisServer) -> None:
    """An old version and failing writes are found; who may not run INFO is told what was not checked, and no more."""
    facts = redis.read_facts(redis_server.url)
    told = {**facts.info, "redis_version": "6.2.14", "aof_enabled": 1, "aof_last_write_status": "err"}
    changed = redis.RedisFacts(info=told, config=facts.config)
    assert names(redis.check_ledger(changed)) == {"redis-version", "redis-writes-fail"}
    with redis_py.Redis.from_url(redis_server.url) as client:
        client.execute_command("ACL", "SETUSER", "no-info", "on", ">pw", "~*", "+@all", "-info", "-config")
        with installed(redis_server.url.replace("//", "//no-info:pw@")) as installation:
            found = [finding for finding in examine(installation) if finding.subject == "redis"]
        client.execute_command("ACL", "DELUSER", "no-info")
    assert names(found) == {"redis-info-refused", "redis-channels"}


def test_a_user_of_redis_without_a_right_is_found(redis_server: RedisServer) -> None:
    """A user who may not call one of the ledger's commands is found, with the command and the server's reason."""
    with redis_py.Redis.from_url(redis_server.url) as client:
        client.execute_command("ACL", "SETUSER", "no-lpos", "on", ">pw", "~*", "&*", "+@all", "-lpos")
        with installed(redis_server.url.replace("//", "//no-lpos:pw@")) as installation:
            found = {finding.check: finding.problem for finding in examine(installation)}
        client.execute_command("ACL", "DELUSER", "no-lpos")
    assert "may not call lpos as the ledger does" in found["redis-rights"]


# --- PostgreSQL -----------------------------------------------------------------------------------------------------


ROLES = """
create role shop login; create role clerk login; create role reader login; create role stranger login;
create role hasty login; create role mighty login; create role brief login; grant shop to hasty, reader, brief;
alter role brief set idle_in_transaction_session_timeout = '2s';
alter role reader set default_transaction_read_only = on; alter role hasty set synchronous_commit = off;
alter schema shop owner to shop;
do $$ declare name text; begin
  for name in select tablename from pg_tables where schemaname = 'shop' loop
    execute format('alter table shop.%I owner to shop', name);
  end loop;
end $$;
grant usage on schema shop to clerk; grant select on all tables in schema shop to clerk;
grant usage on schema shop to mighty; grant all on all tables in schema shop to mighty;
grant usage on all sequences in schema shop to mighty;
grant usage on schema guarded, hidden to shop; grant all on all tables in schema guarded, hidden to shop;
grant usage on all sequences in schema guarded, hidden to shop;
revoke insert, update, delete on guarded.schema_version, guarded.ledger_info from shop;
revoke insert, update, delete on hidden.schema_version, hidden.ledger_info from shop;
revoke update, delete on guarded.audit_log, hidden.audit_log from shop;
alter table guarded.jobs enable row level security; alter table hidden.schema_version enable row level security;
"""


@pytest.fixture(scope="module")
def durable_postgres() -> Iterator[PostgresServer]:
    """Return a PostgreSQL that waits for the disk, with a ledger that belongs to the role `shop`."""
    server = start_postgres("fsync=on", "max_connections=30")
    for schema in ("shop", "guarded", "hidden"):
        make_ledger(server.url, schema)
    with psycopg.connect(server.url, autocommit=True) as superuser:
        superuser.execute(ROLES)
    yield server
    server.remove()


def url_of(server: PostgresServer, role: str) -> str:
    return server.url.replace("postgres@", f"{role}@")


@for_each("role, schema, expected, words", [
    ("shop", "shop", set(), f"role shop, schema version {HEAD}"),
    ("stranger", "shop", {"ledger-unusable", "postgresql-permissions"}, "may not use the schema"),
    ("shop", "nowhere", {"ledger-unusable"}, "migrate up"),
    ("postgres", "shop", {"postgresql-superuser"}, "is a superuser"),
    ("clerk", "shop", {"postgresql-permissions"}, "may not use audit_log, audit_log_id_seq"),
    ("mighty", "shop", {"postgresql-surplus-rights"}, "may change audit_log, ledger_info, schema_version"),
    ("shop", "guarded", {"postgresql-row-security"}, "applies to the role shop in jobs"),
    ("shop", "hidden", {"ledger-unusable", "postgresql-row-security"}, "applies to the role shop in schema_version"),
    ("reader", "shop", {"postgresql-read-only"}, "default_transaction_read_only is on"),
    ("hasty", "shop", {"postgresql-synchronous-commit"}, "synchronous_commit is off"),
    ("brief", "shop", {"postgresql-time-limits"}, "idle_in_transaction_session_timeout of the role brief is 2000 ms"),
])  # fmt: skip
def test_a_role_that_breaks_the_promise_is_found(
    durable_postgres: PostgresServer, role: str, schema: str, expected: set[str], words: str
) -> None:
    """A role that is too mighty, may not write or does not wait is found; without a usable ledger only the cause."""
    with installed(url_of(durable_postgres, role), schema) as installation:
        findings = [each for each in examine(installation) if each.subject not in {"workers", "jobs"}]
    assert names(findings) == expected
    assert any(words in each.problem for each in findings), findings
    is_ok = expected <= {"postgresql-superuser", "postgresql-surplus-rights"}
    assert [each.subject for each in findings if each.level is Level.OK] == (
        [] if "ledger-unusable" in expected else ["ledger", *["postgresql"] * is_ok]
    )


@for_each("store, namespace, app_name, command", [
    ("postgresql://shop%40eu:secret@127.0.0.1:1/db", "onejob", "",
     "onejob --store postgresql://shop%40eu@127.0.0.1:1/db migrate up"),
    ("postgresql://127.0.0.1:1/db", "shop", "",
     "onejob --store postgresql://127.0.0.1:1/db --namespace shop migrate up"),
    ("postgresql://shop:secret@127.0.0.1:1/db", "shop", "shop.tasks", "onejob -A shop.tasks migrate up"),
])  # fmt: skip
def test_a_migration_is_run_as_the_role_of_the_ledger(store: str, namespace: str, app_name: str, command: str) -> None:
    """The command that migrates names the app if it is known, and else the store with its user and its schema."""
    with installed(store, namespace) as installation:
        findings = [*ledger.examine(replace(installation, app_name=app_name))]
    assert commands(findings, "ledger-unusable") == [command]


def test_connections_that_run_out_are_found(durable_postgres: PostgresServer) -> None:
    """A PostgreSQL that has few connections left is found, with both numbers."""
    url = url_of(durable_postgres, "shop")
    with ExitStack() as held:
        for _ in range(24):
            held.enter_context(psycopg.connect(url))
        findings = [*postgres.check(postgres.read_facts(url, "shop"))]
    assert names(findings) == {"postgresql-connections"}
    assert "of 30 connections" in findings[0].problem


def test_a_limit_of_transactions_that_is_too_short_is_found(durable_postgres: PostgresServer) -> None:
    """A limit under ten seconds is found by its name, which a server before PostgreSQL 17 may not have."""
    facts = postgres.read_facts(url_of(durable_postgres, "shop"), "shop")
    for limit, expected in ((9_999, {"postgresql-time-limits"}), (10_000, set())):
        findings = [*postgres.check(replace(facts, row={**facts.row, "time_limits": {"transaction_timeout": limit}}))]
        assert names(findings) == expected


@for_each("pids, expected", [
    ((1, 1, 1), set()), ((9, 1, 1), {"postgresql-pooler"}), ((9, 1, 2), {"postgresql-transaction-pooler"}),
])  # fmt: skip
def test_a_pooler_is_found(durable_postgres: PostgresServer, pids: tuple[int, int, int], expected: set[str]) -> None:
    """A pooler is found by the processes that answer: with transaction pooling they change."""
    facts = postgres.read_facts(url_of(durable_postgres, "shop"), "shop")
    assert len(set(facts.pids)) == 1
    changed = replace(facts, pids=pids, schema_version=f"{int(HEAD) + 1:04}")
    assert names(postgres.check(changed)) == {"postgresql-schema", *expected}
    assert names(postgres.check(replace(changed, is_pooled=True))) == {"postgresql-schema", "postgresql-polled-waits"}


def test_rows_without_their_sequences_are_found(durable_postgres: PostgresServer) -> None:
    """Rows that were copied without their sequences are found by the doctor, and by each worker that starts."""
    make_ledger(durable_postgres.url, "copied")
    with psycopg.connect(durable_postgres.url, autocommit=True) as superuser:
        superuser.execute("insert into copied.audit_log (id, at, entry) overriding system value values (7, 0, '{}')")
    with installed(durable_postgres.url, "copied") as installation:
        found = [each for each in warnings_of_store(installation) if each.check == "postgresql-repairs"]
        assert [each.problem for each in found] == [
            "the sequence of copied.audit_log.id is at 0, and the rows go up to 7"
        ]
        upgrade(durable_postgres.url, "copied")
        assert "postgresql-repairs" not in names(warnings_of_store(installation))


# --- SQLite ---------------------------------------------------------------------------------------------------------


def test_a_sqlite_ledger_is_examined(tmp_path: Path) -> None:
    """A file has a finding for its mode, for its journal, and for workers of several hosts; otherwise it is ok."""
    path = tmp_path / "ledger.db"
    with installed(f"sqlite:///{path}") as installation:
        installation.ledger.store.heartbeat("celery@one", lasts=60.0)
        installation.ledger.store.heartbeat("second@one", lasts=60.0)
        assert [finding.level for finding in sqlite.examine(installation)] == [Level.OK]
        installation.ledger.store.heartbeat("celery@two", lasts=60.0)
        path.chmod(0o644)
        findings = [*sqlite.examine(installation)]
        assert names(findings) == {"sqlite-hosts", "sqlite-mode"}
        run_command(*commands(findings, "sqlite-mode"))
        assert names(sqlite.examine(installation)) == {"sqlite-hosts"}
    assert names(sqlite.check_file(path, "", "delete", 0o100600)) == {"sqlite-journal"}


def test_the_file_system_of_a_file_is_that_of_the_nearest_mount() -> None:
    """The file system of a path is the one that is mounted nearest above it; a network's is an error."""
    mounts = (
        "31 30 8:2 / /srv/the\\040data/local rw - xfs /dev/sdb rw\n"
        "30 22 0:40 / /srv/the\\040data rw - nfs4 files:/data rw\n"
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    )
    for name, kind, expected in (
        ("/var/ledger.db", "ext4", set()), ("/srv/the data/ledger.db", "nfs4", {"sqlite-network"}),
        ("/srv/the data/local/ledger.db", "xfs", set()),
    ):  # fmt: skip
        assert sqlite.file_system_of(Path(name), mounts) == kind
        assert names(sqlite.check_file(Path(name), kind, "wal", 0o100600)) == expected
