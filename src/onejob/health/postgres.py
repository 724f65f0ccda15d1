"""Checks of PostgreSQL: the ledger's needs of the server, of its role, and of poolers and proxies between."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

from onejob.health.finding import Check, Finding, Installation, Level, or_ok, with_address
from onejob.stores import display_url, kind_of
from onejob.stores.schema import HEAD, TRIM_FUNCTION, VERSIONS, LedgerSchema

FULL = 0.8
"""The part of `max_connections` from which the server is nearly full."""
SHORTEST_LIMIT = 10_000
"""The milliseconds for which a plain submission waits for an equal one in an open transaction."""
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
    when="the role may not use the schema, its tables, its sequences or its functions as the ledger does",
    meaning="operations of the ledger are refused, perhaps only some of them",
    remedy="`psql URL -c 'grant usage on schema S to ROLE; grant select, insert, update, delete on all tables in "
    "schema S to ROLE; grant usage on all sequences in schema S to ROLE; grant execute on all functions in schema S "
    "to ROLE; revoke insert, update, delete on S.schema_version, S.ledger_info from ROLE; revoke update, delete on "
    "S.audit_log from ROLE'`; `onejob migrate roles` prints SQL that does so for future tables, too")
SURPLUS = Check("postgresql-surplus-rights", "postgresql", Level.INFO,
    when="a role that does not own the ledger may change its version, its id or its audit log",
    meaning="whoever gets the URL of a service may make every process refuse to start, or erase what operators did",
    remedy="`psql URL -c 'revoke insert, update, delete, truncate on S.schema_version, S.ledger_info from ROLE; revoke "
    "update, delete, truncate on S.audit_log from ROLE'`, as the owner")
REPAIRS = Check("postgresql-repairs", "postgresql", Level.ERROR,
    when="the sequence of a table is behind its rows, or a function of the ledger is missing, as after a copy of rows "
    "by COPY, logical replication or a part of a dump",
    meaning='entries of the audit log are not written, and with `broker_url = "onejob://"` no message is sent, until '
    "the numbers have passed the rows",
    remedy="`onejob --store URL migrate up`, with the URL of the owner")
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
TIME_LIMITS = Check("postgresql-time-limits", "postgresql", Level.WARNING,
    when="the role's `transaction_timeout` or `idle_in_transaction_session_timeout` is under 10 s",
    meaning="the server may end a transaction of yours that submits or completes a job, as while it waits for an equal "
    "submission: nothing of it exists then, and the driver raises InternalError. onejob's own connections have limits "
    "of their own",
    remedy="`psql URL -c \"alter role ROLE set transaction_timeout = '1min'\"`, or the same with the other name, as a "
    "superuser; or repeat such transactions: docs/guides/transactions.md")
POOLER = Check("postgresql-pooler", "postgresql", Level.INFO,
    when="a pooler with session pooling stands between",
    meaning="session pooling works as a direct connection does; transaction pooling needs an option of the URL",
    remedy="add `?pooler=transaction` to the URL before you change `pool_mode`: docs/reference/sql.md, PgBouncer")
TRANSACTION_POOLER = Check("postgresql-transaction-pooler", "postgresql", Level.WARNING,
    when="a pooler gives a connection another server process for each transaction, and the URL does not say so",
    meaning="the settings of onejob's connections (timeouts, synchronous_commit) are lost or reach other clients, and "
    "prepared statements fail before PgBouncer 1.22",
    remedy="add `?pooler=transaction` to the URL of the ledger: docs/reference/sql.md, PgBouncer")
POLLED_WAITS = Check("postgresql-polled-waits", "postgresql", Level.INFO,
    when="the URL of the ledger has `pooler=transaction`",
    meaning="nobody can LISTEN behind such a pooler: those who wait for the end of a job read it again after pauses of "
    "up to half a second, and each worker with `onejob://` looks for jobs 20 times a second",
    remedy="give workers, and processes that wait for results, a URL of the server itself, or of a pool with session "
    "pooling")
# fmt: on

QUERY = """
with tables as (
    select oid, relname::text as name, relname in ('schema_version', 'ledger_info') as is_fixed,
        relname = 'audit_log' as is_log, pg_has_role(relowner, 'usage') as is_own,
        has_table_privilege(oid, 'insert') as inserts,
        has_table_privilege(oid, 'update') as updates, has_table_privilege(oid, 'delete') as deletes
    from pg_class where relnamespace = %(schema)s::regnamespace and relkind in ('r', 'p')
)
select current_setting('server_version') as version, current_setting('fsync') as fsync,
    current_setting('full_page_writes') as full_page_writes,
    current_setting('synchronous_commit') as synchronous_commit,
    current_setting('synchronous_standby_names') as standbys,
    current_setting('default_transaction_read_only') as read_only, pg_is_in_recovery() as standby,
    current_setting('max_connections')::int as max_connections,
    (select coalesce(sum(numbackends), 0)::int from pg_stat_database) as connections,
    (
        select jsonb_object_agg(name, setting::int) from pg_settings
        where name in ('transaction_timeout', 'idle_in_transaction_session_timeout') and setting <> '0'
    ) as time_limits,
    current_user::text as role, (select rolsuper from pg_roles where rolname = current_user) as superuser,
    pg_backend_pid() as pid, has_schema_privilege(%(schema)s, 'usage') as usage,
    array(
        select name from tables
        where not has_table_privilege(oid, 'select')
            or not is_fixed and not inserts or not (is_fixed or is_log) and not (updates and deletes)
        union all
        select relname::text from pg_class
        where relnamespace = %(schema)s::regnamespace
            and case relkind when 'S' then not has_sequence_privilege(oid, 'usage') else false end
        union all
        select proname::text from pg_proc
        where pronamespace = %(schema)s::regnamespace and proname = %(function)s
            and not has_function_privilege(oid, 'execute')
        order by 1
    ) as refused,
    array(
        select name from tables
        where not is_own and (is_fixed and inserts or (is_fixed or is_log) and (updates or deletes))
        order by 1
    ) as surplus,
    array(select name from tables where row_security_active(oid) order by 1) as secured
"""


@dataclass(frozen=True, kw_only=True)
class PostgresFacts:
    """The facts that a server reports about itself and the role, to a connection with the role's own settings."""

    row: Mapping[str, Any]
    """The row of `QUERY`."""
    pids: tuple[int, int, int]
    """The ids of three server processes, which a pooler makes differ.

    They served the connection's beginning, its first query, and a query while another connection was in a transaction.
    """
    schema_version: str | None
    repairs: tuple[str, ...]
    """The defects that `migrate up` would mend although the version of the schema is right."""
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
    """Read the facts of a server. Raises psycopg's exceptions."""
    import psycopg
    from psycopg.rows import dict_row, tuple_row

    from onejob.stores.postgres.connection import conninfo_of, is_pooled

    def connect() -> psycopg.Connection[Any]:
        return psycopg.connect(conninfo_of(url), autocommit=True, row_factory=dict_row, prepare_threshold=None)

    with connect() as connection, connect() as other:
        row: Any = connection.execute(QUERY, {"schema": schema, "function": TRIM_FUNCTION}).fetchone()
        with other.transaction():
            other.execute("select 1")
            pid: Any = connection.execute("select pg_backend_pid() as pid").fetchone()
        version: Any = None
        repairs: tuple[str, ...] = ()
        if row["usage"]:
            table = psycopg.sql.Identifier(schema, "schema_version")
            version = connection.execute(psycopg.sql.SQL("select * from {}").format(table)).fetchone()
            cursor = connection.cursor(row_factory=tuple_row)
            repairs = tuple(each.what for each in LedgerSchema(cursor, "postgresql", schema).repairs())
        pids = connection.info.backend_pid, row["pid"], pid["pid"]
    found = version and version["version_num"]
    return PostgresFacts(row=row, pids=pids, schema_version=found, repairs=repairs, is_pooled=is_pooled(url))


def check(facts: PostgresFacts) -> Iterator[Finding]:
    """Check a server and the role."""
    row = facts.row
    if facts.schema_version not in (None, *VERSIONS):
        yield SCHEMA.found(f"the schema has version {facts.schema_version}, this onejob {HEAD}")
    yield from _check_durability(row)
    yield from _check_rights(row)
    if facts.repairs:
        yield REPAIRS.found("; ".join(facts.repairs))
    if row["connections"] > FULL * row["max_connections"]:
        yield CONNECTIONS.found(f"{row['connections']} of {row['max_connections']} connections are in use")
    for name, milliseconds in (row["time_limits"] or {}).items():
        if milliseconds < SHORTEST_LIMIT:
            yield TIME_LIMITS.found(f"{name} of the role {row['role']} is {milliseconds} ms")
    yield from _check_pooler(facts)


def _check_pooler(facts: PostgresFacts) -> Iterator[Finding]:
    began_with, first, second = facts.pids
    if facts.is_pooled:
        yield POLLED_WAITS.found("the end of a job does not wake who waits for it")
    elif first != second:
        yield TRANSACTION_POOLER.found(f"process {first} answered a connection's first query, {second} its next one")
    elif began_with != first:
        yield POOLER.found(f"the connection began with process {began_with}, and {first} answers")


def _check_rights(row: Mapping[str, Any]) -> Iterator[Finding]:
    if not row["usage"]:
        yield PERMISSIONS.found(f"the role {row['role']} may not use the schema")
    elif row["refused"]:
        yield PERMISSIONS.found(f"the role {row['role']} may not use {', '.join(row['refused'])} as the ledger does")
    if row["surplus"]:
        yield SURPLUS.found(f"the role {row['role']} may change {', '.join(row['surplus'])}")
    if row["secured"]:
        yield ROW_SECURITY.found(f"row-level security applies to the role {row['role']} in {', '.join(row['secured'])}")
    if row["superuser"]:
        yield SUPERUSER.found(f"the role {row['role']} is a superuser")


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
