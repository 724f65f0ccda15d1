"""PostgreSQL: what the ledger needs of the server, of its role, and of what stands between."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

from onejob.health.finding import Check, Finding, Installation, Level, or_ok, with_address
from onejob.stores import display_url, kind_of
from onejob.stores.schema import HEAD, VERSIONS

FULL = 0.8
"""From this part of `max_connections` on, the server is nearly full."""
DURABLE = {"on", "remote_apply"}
"""The values of `synchronous_commit` with which a promoted synchronous standby has every commit."""

# fmt: off
SCHEMA = Check("postgresql-schema", "postgresql", Level.INFO,
    when="the schema is one version ahead of this onejob",
    meaning="newer code has migrated the ledger; this version supports it during the deployment, and not the next one",
    remedy="finish the deployment: upgrade onejob here")
FSYNC = Check("postgresql-fsync", "postgresql", Level.ERROR,
    when="`fsync` or `full_page_writes` is off",
    meaning="a power failure of the server may lose or corrupt the whole ledger",
    remedy="`psql URL -c 'alter system set fsync = on' -c 'alter system set full_page_writes = on' "
    "-c 'select pg_reload_conf()'`, as a superuser")
COMMIT = Check("postgresql-synchronous-commit", "postgresql", Level.WARNING,
    when="`synchronous_commit` is `off`, or weaker than `on` with synchronous standbys",
    meaning="onejob's own connections replace `off` by `on`, but a transaction of yours that ends a job, or that "
    "submits one, may be lost by a crash; and a promoted standby may lack the last commits",
    remedy="`psql URL -c 'alter role ROLE set synchronous_commit = on'`, as a superuser")
READ_ONLY = Check("postgresql-read-only", "postgresql", Level.ERROR,
    when="the server is a standby, or the role's transactions are read-only",
    meaning="no job can be submitted, claimed or ended",
    remedy="name the primary in onejob_store: list all hosts, and add `?target_session_attrs=read-write`; or "
    "`psql URL -c 'alter role ROLE reset default_transaction_read_only'`, as a superuser")
PERMISSIONS = Check("postgresql-permissions", "postgresql", Level.ERROR,
    when="the role may not use the schema, or read and write all of its tables",
    meaning="operations of the ledger are refused, perhaps only some of them",
    remedy="`psql URL -c 'grant usage on schema S to ROLE; grant select, insert, update, delete on all tables in "
    "schema S to ROLE; grant usage on all sequences in schema S to ROLE'`; `onejob migrate roles` prints SQL "
    "that does so for future tables, too")
ROW_SECURITY = Check("postgresql-row-security", "postgresql", Level.ERROR,
    when="row-level security applies to the role in tables of the ledger",
    meaning="rows that its policies hide are missing without an error, and writes are refused: jobs, or the whole "
    "ledger, seem not to exist",
    remedy="`psql URL -c 'alter role ROLE bypassrls'`, as a superuser; or for each table "
    "`psql URL -c 'alter table S.TABLE disable row level security'`, as its owner")
SUPERUSER = Check("postgresql-superuser", "postgresql", Level.INFO,
    when="the role is a superuser",
    meaning="whoever gets the URL of the ledger has the whole server; the promise does not depend on it",
    remedy="use a role that has the ledger's schema and nothing else: `onejob migrate roles | psql URL -v schema=S` "
    "makes onejob_owner, for migrations, and onejob, for the services; the output says how to give them other names, "
    "and passwords")
CONNECTIONS = Check("postgresql-connections", "postgresql", Level.WARNING,
    when=f"more than {FULL:.0%} of `max_connections` are in use",
    meaning="a process that gets no connection cannot submit or claim jobs, and a worker without one cannot renew its "
    "leases; each process opens up to 10",
    remedy="raise `max_connections`, run fewer processes, or put PgBouncer between")
POOLER = Check("postgresql-pooler", "postgresql", Level.INFO,
    when="a pooler with session pooling stands between",
    meaning="session pooling works as a direct connection does; transaction pooling needs an option of the URL",
    remedy="add `?pooler=transaction` to the URL before you change `pool_mode`: docs/sql.md, PgBouncer")
TRANSACTION_POOLER = Check("postgresql-transaction-pooler", "postgresql", Level.WARNING,
    when="a pooler gives a connection another server process for each transaction, and the URL does not say so",
    meaning="the settings of onejob's connections (timeouts, synchronous_commit) are lost or reach other clients, and "
    "prepared statements fail before PgBouncer 1.22",
    remedy="add `?pooler=transaction` to the URL of the ledger: docs/sql.md, PgBouncer")
POLLED_WAITS = Check("postgresql-polled-waits", "postgresql", Level.INFO,
    when="the URL of the ledger has `pooler=transaction`",
    meaning="nobody can LISTEN behind such a pooler: those who wait for the end of a job read it again after pauses of "
    "up to half a second, and each worker with `onejob://` looks for jobs 20 times a second",
    remedy="give workers, and processes that wait for results, a URL of the server itself, or of a pool with session "
    "pooling")
# fmt: on

QUERY = """
with tables as (
    select oid, relname::text as name from pg_class
    where relnamespace = %(schema)s::regnamespace and relkind in ('r', 'p')
)
select current_setting('server_version') as version, current_setting('fsync') as fsync,
    current_setting('full_page_writes') as full_page_writes,
    current_setting('synchronous_commit') as synchronous_commit,
    current_setting('synchronous_standby_names') as standbys,
    current_setting('default_transaction_read_only') as read_only, pg_is_in_recovery() as standby,
    current_setting('max_connections')::int as max_connections,
    (select coalesce(sum(numbackends), 0)::int from pg_stat_database) as connections,
    current_user::text as role, (select rolsuper from pg_roles where rolname = current_user) as superuser,
    pg_backend_pid() as pid, has_schema_privilege(%(schema)s, 'usage') as usage,
    array(
        select name from tables
        where name <> 'schema_version'
            and not (has_table_privilege(oid, 'select') and has_table_privilege(oid, 'insert')
                and has_table_privilege(oid, 'update') and has_table_privilege(oid, 'delete'))
        order by 1
    ) as refused,
    array(select name from tables where row_security_active(oid) order by 1) as secured
"""


@dataclass(frozen=True, kw_only=True)
class PostgresFacts:
    """What a server says about itself and the role, to a connection with the role's own settings."""

    row: Mapping[str, Any]
    """The row of `QUERY`."""
    pids: tuple[int, int, int]
    """The ids of the process that the connection got when it began, of the one that answered its first query, and
    of the one that answered while another connection was in a transaction."""
    schema_version: str | None
    is_pooled: bool
    """Whether the URL has `pooler=transaction`."""


def examine(installation: Installation) -> Iterator[Finding]:
    """Examine the PostgreSQL of the ledger."""
    settings = installation.settings
    if kind_of(settings.store) != "postgresql":
        return
    facts = read_facts(settings.store, settings.namespace)
    findings = with_address(check(facts), "psql URL", f"psql {quote(display_url(settings.store))}")
    found = f"PostgreSQL {facts.row['version']}, role {facts.row['role']}, schema version {HEAD}"
    yield from or_ok(findings, "postgresql", found)


def read_facts(url: str, schema: str) -> PostgresFacts:
    """Ask a server about itself. Raises psycopg's exceptions."""
    import psycopg
    from psycopg.rows import dict_row

    from onejob.stores.postgres.connection import conninfo_of, is_pooled

    def connect() -> psycopg.Connection[Any]:
        return psycopg.connect(conninfo_of(url), autocommit=True, row_factory=dict_row, prepare_threshold=None)

    with connect() as connection, connect() as other:
        row: Any = connection.execute(QUERY, {"schema": schema}).fetchone()
        with other.transaction():
            other.execute("select 1")
            pid: Any = connection.execute("select pg_backend_pid() as pid").fetchone()
        version: Any = None
        if row["usage"]:
            table = psycopg.sql.Identifier(schema, "schema_version")
            version = connection.execute(psycopg.sql.SQL("select * from {}").format(table)).fetchone()
        pids = connection.info.backend_pid, row["pid"], pid["pid"]
    found = version and version["version_num"]
    return PostgresFacts(row=row, pids=pids, schema_version=found, is_pooled=is_pooled(url))


def check(facts: PostgresFacts) -> Iterator[Finding]:
    """Check a server and the role."""
    row = facts.row
    if facts.schema_version not in (None, *VERSIONS):
        yield SCHEMA.found(f"the schema has version {facts.schema_version}, this onejob {HEAD}")
    yield from _check_durability(row)
    if not row["usage"]:
        yield PERMISSIONS.found(f"the role {row['role']} may not use the schema")
    elif row["refused"]:
        yield PERMISSIONS.found(f"the role {row['role']} may not read and write {', '.join(row['refused'])}")
    if row["secured"]:
        yield ROW_SECURITY.found(f"row-level security applies to the role {row['role']} in {', '.join(row['secured'])}")
    if row["superuser"]:
        yield SUPERUSER.found(f"the role {row['role']} is a superuser")
    if row["connections"] > FULL * row["max_connections"]:
        yield CONNECTIONS.found(f"{row['connections']} of {row['max_connections']} connections are in use")
    began_with, first, second = facts.pids
    if facts.is_pooled:
        yield POLLED_WAITS.found("the end of a job does not wake who waits for it")
    elif first != second:
        yield TRANSACTION_POOLER.found(f"process {first} answered a connection's first query, {second} its next one")
    elif began_with != first:
        yield POOLER.found(f"the connection began with process {began_with}, and {first} answers")


def _check_durability(row: Mapping[str, Any]) -> Iterator[Finding]:
    for name in ("fsync", "full_page_writes"):
        if row[name] == "off":
            yield FSYNC.found(f"{name} is off")
    commit = row["synchronous_commit"]
    if commit == "off" or (row["standbys"] and commit not in DURABLE):
        standbys = f", and synchronous_standby_names is {row['standbys']!r}" if row["standbys"] else ""
        yield COMMIT.found(f"synchronous_commit is {commit}{standbys}")
    if row["standby"] or row["read_only"] == "on":
        yield READ_ONLY.found("the server is a standby" if row["standby"] else "default_transaction_read_only is on")
