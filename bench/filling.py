"""A ledger in PostgreSQL with the jobs of one day of a service, the newest still live."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

from onejob.stores.migrate import upgrade

# Of 1,000 jobs, 2 are queued, 1 runs, 1 is between two attempts; of the others, 1 % failed, 0.5 % were canceled, and
# 0.5 % followed another one. A tenth had two attempts: the history has no entry that the row tells. No `wake_at` is due
# within the next hour: ended jobs are kept for another day.
TASKS = frozenset(f"shop.task_{number}" for number in range(20))
"""The tasks of the jobs."""
_SOURCE = """
create temporary table source on commit drop as
select
  n,
  md5('job-' || n)::uuid::text as id,
  case
    when n > {jobs} * 0.998 then 'queued'
    when n > {jobs} * 0.997 then 'running'
    when n > {jobs} * 0.9965 then 'retrying'
    when n % 200 < 2 then 'failed'
    when n % 200 = 2 then 'canceled'
    else 'completed'
  end as state,
  n % 200 = 3 and n <= {jobs} * 0.9965 as follows,
  n % 10 = 5 and n <= {jobs} * 0.998 or n between {jobs} * 0.9965 and {jobs} * 0.997 as retried,
  extract(epoch from statement_timestamp())::float8 as now,
  extract(epoch from statement_timestamp())::float8 - 60 - 80000.0 * ({jobs} - n) / {jobs} as created
from generate_series(1, {jobs}) as n
"""
_JOBS = """
insert into {schema}.jobs (
  id, task, identity, fingerprint, submission_nonce, submitter, payload, options, priority_rank, state, holds_identity,
  follows_id, token, claim, node, attempt, retries, crashes, lease, lease_until, created_at, run_at, started_at,
  finished_at, wake_at, published, cancel, canvas_pending, duplicate_count, result, error, reason, requests, entries
)
select
  id, 'shop.task_' || n % 20, 'v1-' || encode(sha256(id::bytea), 'hex'), 'v1-' || encode(sha256(id::bytea), 'hex'),
  left(md5(id), 16), 'user-' || n % 1000,
  json_build_object('task', 'shop.task_' || n % 20, 'args', json_build_array(n, 'customer-' || n % 5000),
    'kwargs', json_build_object('note', repeat('x', n % 120)))::text,
  '{{}}', 0,
  state, state in ('queued', 'running', 'retrying'),
  case when follows then md5('job-' || n - 1)::uuid::text end,
  case when state = 'queued' then 0 else (created * 1000000)::bigint end,
  case when state = 'queued' then '' else left(md5(id || 'claim'), 16) end,
  case when state = 'queued' then '' else 'worker-' || n % 8 end,
  (state <> 'queued')::integer + (retried and state <> 'retrying')::integer, retried::integer, 0, 30,
  case when state = 'running' then now + 3600 end, created,
  case when state in ('queued', 'retrying') then now + 7200 else created end,
  case when state <> 'queued' then created + 1 end,
  case when state in ('completed', 'failed', 'canceled') then created + 5 end,
  case state
    when 'completed' then created + 86405 when 'canceled' then created + 86405 when 'failed' then created + 1209605
    else now + 7200
  end,
  0, 0, false, 0,
  case when state = 'completed' then json_build_object('invoice', n)::text end,
  case when state = 'failed' then '{{"type": "ValueError", "message": "no such customer", "traceback": ""}}' end,
  state, left(md5(id || 'complete'), 16) || ' ' || left(md5(id || 'claim'), 16) || ' ', 3
from source
"""
_HISTORY = """
insert into {schema}.history (job_id, seq, at, event, state, attempt, node, detail)
select id, 1, created + 1, 'retry', 'retrying', 1, 'worker-' || (n + 1) % 8, 'a connection was lost'
from source where retried
union all
select id, 2, created, 'claim', 'running', 1, 'worker-' || (n + 1) % 8, 'attempt 1 on worker-' || (n + 1) % 8
from source where retried and state <> 'retrying'
union all
select id, 3, created + 5, case state when 'failed' then 'fail' else 'cancel' end, state, retried::integer + 1,
  'worker-' || n % 8, state
from source where state in ('failed', 'canceled')
"""
_STEPS = """
insert into {schema}.steps (job_id, name, value)
select id, step, json_build_object('kept', n)::text
from source cross join unnest(array['outline', 'cards']) as step
where n % 4 = 0 and state <> 'queued'
"""
_TOMBSTONES = """
insert into {schema}.tombstones (id, state, finished_at, purged_at, until)
select md5('purged-' || n)::uuid::text, 'completed', created - 172800, created - 86400, created + 518400 from source
"""


def make(url: str, schema: str, jobs: int) -> None:
    """Create a ledger with so many jobs, vacuumed and analysed, unless it exists. Needs a superuser."""
    upgrade(url, schema)
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(f"select count(*) from {schema}.jobs").fetchone()  # noqa: S608 - a name of ours
        if found == (0,):
            fill(connection, schema, jobs)


def fill(connection: psycopg.Connection[Any], schema: str, jobs: int) -> None:
    """Fill an empty ledger over a connection in autocommit mode."""
    with connection.transaction():
        connection.execute("set local session_replication_role = replica")  # its foreign keys hold by construction
        for text in (_SOURCE, _JOBS, _HISTORY, _STEPS, _TOMBSTONES):
            connection.execute(text.format(schema=schema, jobs=jobs).encode())
    for table in ("jobs", "history", "steps", "tombstones"):
        connection.execute(f"vacuum (analyze) {schema}.{table}".encode())
    connection.execute("checkpoint")


def some(connection: psycopg.Connection[Any], schema: str, state: str, count: int) -> list[tuple[str, str]]:
    """Return id and claim of some jobs in a state, from all over the table."""
    query = f"select id, claim from {schema}.jobs where state = %s and follows_id is null order by identity limit %s"  # noqa: S608 - ours
    with connection.cursor(row_factory=tuple_row) as cursor:
        return cursor.execute(query.encode(), [state, count]).fetchall()
