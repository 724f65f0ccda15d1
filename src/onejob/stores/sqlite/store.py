"""The SQLite store: every operation is one transaction of the SQL statements in this package."""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onejob.errors import ConfigurationError, PartlySubmittedError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Applied, Cancel, Duplicate, Renewal, values_of
from onejob.jobs.records import (
    NO_AMOUNTS,
    REDELIVERED,
    UNREGISTERED,
    AuditEntry,
    Bucket,
    DuplicateCount,
    Entry,
    Period,
    ScheduleState,
    Tombstone,
    WorkerInfo,
    full_history,
    group_backlog,
)
from onejob.stores.holder_cache import HolderCache
from onejob.stores.protocol import (
    DUPLICATE_LIMIT,
    HISTORY_LIMIT,
    OTHER_SUBMITTERS,
    SUBMITTER_LIMIT,
    indexed_state,
    is_indexed,
)
from onejob.stores.rows import completion_of, in_order, row_implies_entry
from onejob.stores.schema import LedgerSchema, check_version
from onejob.stores.sqlite.connection import ForkSafeConnection
from onejob.stores.sqlite.messages import Messages, matches
from onejob.stores.sqlite.signals import SQLiteSignals
from onejob.stores.sqlite.submission import (
    WhenDue,
    admit,
    follow,
    is_likely_new,
    record,
    release_expired,
    submit_charged,
)
from onejob.stores.sqlite.transaction import JoinedTransaction, Transaction, check_same_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from onejob.jobs.model import Admission, Change, Job, MessageOf, Submission
    from onejob.jobs.records import Backlog, Query, Registration
    from onejob.stores.protocol import GroupBy
    from onejob.stores.protocol import Transaction as UserTransaction

_PERIODS = json.dumps([period.seconds for period in Period])
CACHE_KIB = 16 * 1024
"""How much of the file a process caches at most. It reads again what was not in its cache when another one writes."""


@cache
def _names(states: frozenset[State]) -> str:
    """Return states as text that has each name between spaces."""
    return f" {' '.join(sorted(states))} "


def _now() -> float:
    """Return the time in whole microseconds, as the other stores do: RFC 3339 timestamps lose no digits."""
    return time.time_ns() // 1000 / 1e6


class SQLiteStore(Messages):
    """A store in one SQLite file. `clock` returns seconds since the epoch, and is replaced in tests only."""

    def __init__(self, path: str | Path, *, clock: Callable[[], float] = _now, busy_timeout: float = 10.0) -> None:
        self.path = Path(path)
        self._clock = clock
        self._connection = ForkSafeConnection(self.path, busy_timeout, self._prepare)
        self._holders = HolderCache()
        self.signals = SQLiteSignals(self.path)

    # --- the operations, documented in onejob.stores.protocol ---------------------------------------------------------

    def submit_many(
        self,
        submissions: Sequence[Submission],
        *,
        wake_after: float,
        wait_for_locks: bool = True,  # noqa: ARG002 - SQLite has no row locks
        message_of: MessageOf | None = None,
    ) -> list[Admission]:
        due = WhenDue(wake_after, offers=message_of is not None)
        if len(submissions) == 1 and is_likely_new(submissions[0], self._holders):
            with self._statement() as tx:
                admission = admit(tx, submissions[0], due)
            if admission is not None:
                return [admission]
        with self._transaction() as tx:
            results = [submit_charged(tx, submission, due, self._holders) for submission in submissions]
        return PartlySubmittedError.checked(results)

    def follow(self, submission: Submission, *, follows_id: str) -> Job | None:
        with self._transaction() as tx:
            return follow(tx, submission, follows_id)

    def record(self, duplicate: Duplicate, *, also: Sequence[str] = ()) -> None:
        with self._transaction() as tx:
            for each in (duplicate, *(replace(duplicate, submission_nonce=nonce) for nonce in also)):
                record(tx, each)

    def duplicates(self, job_id: str) -> list[Duplicate]:
        rows = self._rows("duplicates", job_id=job_id, duplicate_limit=DUPLICATE_LIMIT)
        return [Duplicate.from_row(row) for row in rows]

    def duplicate_counts(
        self, by: GroupBy, *, limit: int, submitter: str | None = None, tasks: frozenset[str] | None = None
    ) -> list[DuplicateCount]:
        rows = self._rows(
            "list_stats", by=by, limit=limit, submitter=submitter, tasks=_to_json(tasks), redelivered=REDELIVERED
        )
        return [DuplicateCount.from_row(**row) for row in rows]

    def claim(self, job_id: str, *, nonce: str, node: str, sources: frozenset[State], target: State) -> Applied:
        values = {"job_id": job_id, "nonce": nonce, "node": node, "sources": _names(sources), "target": target.value}
        with self._statement() as tx:
            job = tx.job("claim", is_first=True, **values)
        if job is not None:
            return Applied(applied=True, job=job)
        with self._transaction() as tx:
            previous = tx.job("get", job_id=job_id)
            job = tx.job("claim", is_first=False, **values)
            if job is not None:
                tx.append_claim(previous)
                return Applied(applied=True, job=job)
            earlier = tx.find_applied(job_id, nonce)
            job = earlier.job
            is_current = earlier.applied and job is not None and job.claim == nonce and job.state is target
            return Applied(applied=is_current, job=job)

    def renew(self, claims: Sequence[tuple[str, str]], *, sources: frozenset[State]) -> list[Renewal]:
        rows = self._rows("renew", claims=json.dumps(claims), sources=_names(sources))
        renewed = {(row["id"], row["claim"]): Cancel(row["cancel"]) for row in rows}
        return [Renewal(*claim, held=claim in renewed, cancel=renewed.get(claim, Cancel.NO)) for claim in claims]

    def apply(self, change: Change) -> Applied:
        sources, completion = _names(change.sources), completion_of(change)
        if completion is not None:
            with self._statement() as tx:
                job = tx.job("complete", sources=sources, **completion)
            if job is not None:
                return Applied(applied=True, job=job)
        with self._transaction() as tx:
            if change.reopens:
                release_expired(tx, change.identity)
            job = tx.job("apply", **values_of(change) | {"sources": sources, "offers": change.message is not None})
            if job is None:
                return tx.find_applied(change.job_id, change.request_id)
            if not row_implies_entry(change):
                tx.append_history(job.id, change.event, change.detail)
            if change.ends:
                _wake_followers(tx, job)
            if change.forgets_steps:
                tx.rows("delete_steps", job_id=job.id)
            return Applied(applied=True, job=job)

    def report(self, job_id: str, token: int, progress: str, *, sources: frozenset[State]) -> Cancel | None:
        rows = self._rows("report", job_id=job_id, token=token, progress=progress, sources=_names(sources))
        return Cancel(rows[0]["cancel"]) if rows else None

    def keep_step(self, job_id: str, token: int, name: str, value: str, *, sources: frozenset[State]) -> str | None:
        rows = self._rows("keep_step", job_id=job_id, token=token, name=name, value=value, sources=_names(sources))
        return str(rows[0]["value"]) if rows else None

    def steps(self, job_id: str) -> Mapping[str, str]:
        return {row["name"]: row["value"] for row in self._rows("steps", job_id=job_id)}

    def deliver(self, queues: Collection[str], *, limit: int, refused: Collection[str] = ()) -> list[Job]:
        return in_order(self._jobs("deliver", queues=_to_json(queues), refused=_to_json(refused), limit=limit))

    def next_delivery(self, queues: Collection[str], *, refused: Collection[str] = ()) -> float | None:
        rows = self._rows("next_delivery", queues=_to_json(queues), refused=_to_json(refused))
        seconds: float | None = rows[0]["seconds"]
        return seconds

    def take_due(self, *, tasks: frozenset[str], limit: int, hold: float, expired_runs: bool = True) -> list[Job]:
        return self._jobs("take_due", tasks=_to_json(tasks), limit=limit, hold=hold, expired_runs=expired_runs)

    def postpone(
        self, wake_after: Mapping[str, float], *, taken: Mapping[str, float] | None = None, lost: bool = False
    ) -> None:
        self._rows("postpone", wake_after=json.dumps(dict(wake_after)), taken=json.dumps(dict(taken or {})), lost=lost)

    def get_many(self, job_ids: Sequence[str]) -> dict[str, Job]:
        if len(job_ids) == 1:  # the usual number, which needs no JSON
            jobs = self._jobs("get", job_id=job_ids[0])
        else:
            jobs = self._jobs("get_many", job_ids=json.dumps(list(job_ids)))
        return {job.id: job for job in jobs}

    get_awaited = get_many  # any write is a signal

    def read_clock(self) -> float:
        return self._clock()

    def find_existing(self, identity: str, key: str | None) -> Job | None:
        return next(iter(self._jobs("find_existing", identity=identity, key=key)), None)

    def find(self, query: Query) -> list[Job]:
        name = "_".join(["find_light" if query.light else "find", *_narrowed(query)])
        return self._jobs(name, **_filters(query))

    def counts(self, query: Query, *, limit: int | None = None) -> dict[State, int]:
        name = "_".join(["count_jobs" if limit is None else "count_newest", *_narrowed(query)])
        rows = self._rows(name, **(_filters(query) | {"limit": limit}))
        return {State(row["state"]): row["count"] for row in rows}

    def count_states(self, *, limit: int) -> dict[State, int]:
        (row,) = self._rows("count_states", limit=limit)
        return {state: min(max(row[state], 0), limit) for state in State}

    def is_indexed(self, query: Query) -> bool:
        return is_indexed(query, of_submitter=True)

    def edge(self, query: Query, *, skip: int) -> float | None:
        rows = self._rows("edge", **_filters(query), skip=skip)
        return rows[0]["created_at"] if rows else None

    def backlog(self, *, tasks: frozenset[str], limit: int, submitter: str | None = None) -> list[Backlog]:
        rows = self._rows("backlog", tasks=_to_json(tasks), limit=limit, submitter=submitter)
        return group_backlog(row.values() for row in rows)

    def followers(self, job_id: str, *, limit: int) -> list[Job]:
        return self._jobs("followers", job_id=job_id, limit=limit)

    def history(self, job_id: str) -> list[Entry]:
        with Transaction(self._connection, self._clock, "deferred") as tx:
            job, rows = tx.job("get", job_id=job_id), tx.rows("history", job_id=job_id)
        stored = [Entry(**row | {"state": State(row["state"])}) for row in rows]
        return full_history(job, stored)[-HISTORY_LIMIT:]

    def delete(
        self,
        job_ids: Sequence[str],
        *,
        sources: frozenset[State],
        skip_referenced: bool = False,
        tombstone_for: float = 0.0,
    ) -> list[str]:
        values = {"job_ids": json.dumps(list(job_ids)), "sources": _names(sources)}
        with self._transaction() as tx:
            if skip_referenced:
                tx.rows("reschedule_referenced", **values)
            tx.rows("delete_tombstones", limit=2 * len(job_ids))
            limits = {"submitter_limit": SUBMITTER_LIMIT, "other_submitters": OTHER_SUBMITTERS}
            tx.rows("sum_counts", skip_referenced=skip_referenced, **limits, **values)
            rows = tx.rows("delete", skip_referenced=skip_referenced, **values)
            for row in rows:
                tx.rows("insert_tombstone", tombstone_for=tombstone_for, **row)
        return [row["id"] for row in rows]

    def tombstone(self, job_id: str) -> Tombstone | None:
        rows = self._rows("tombstone", job_id=job_id)
        return Tombstone.from_row(rows[0]) if rows else None

    def heartbeat(self, node: str, *, lasts: float, registration: Registration = UNREGISTERED) -> None:
        if lasts > 0:
            self._rows("heartbeat", node=node, lasts=lasts, registration=registration.to_json())
        else:
            self._rows("delete_worker", node=node)

    def workers(self) -> list[WorkerInfo]:
        return [WorkerInfo.from_row(row) for row in self._rows("workers")]

    def take_dead_workers(self) -> list[WorkerInfo]:
        return [WorkerInfo.from_row(row) for row in self._rows("take_dead_workers")]

    def increment(self, amounts: Mapping[str, float], *, recent: Mapping[str, float] = NO_AMOUNTS) -> None:
        values = {"amounts": json.dumps(dict(amounts)), "recent": json.dumps(dict(recent)), "periods": _PERIODS}
        self._rows("increment", **values)
        for period in Period if recent else ():
            self._rows("delete_buckets", period=period.seconds, kept_for=period.kept_for, limit=2 * len(recent))

    def totals(self) -> dict[str, float]:
        return {row["name"]: row["total"] for row in self._rows("totals")}

    def series(self, period: Period, *, since: float) -> list[Bucket]:
        rows = self._rows("series", period=period.seconds, kept_for=period.kept_for, since=since)
        found: dict[float, dict[str, float]] = {}
        for row in rows:
            found.setdefault(row["starts_at"], {})[row["name"]] = row["amount"]
        return [Bucket(start, amounts) for start, amounts in found.items()]

    def keep_event(self, event_id: str, body: str | None, *, keep_for: float) -> str | None:
        with self._transaction() as tx:
            tx.rows("delete_events")
            tx.rows("keep_event", id=event_id, body=body, keep_for=keep_for)
            rows = tx.rows("extend_event", id=event_id, keep_for=keep_for)
        return str(rows[0]["body"]) if rows else None

    def append_audit(self, entry: AuditEntry, *, keep: int, keep_for: float) -> None:
        with self._transaction() as tx:
            tx.rows("append_audit", kind=entry.kind, entry=entry.to_json())
            tx.rows("trim_audit", kind=entry.kind, keep=keep, keep_for=keep_for)

    def audit(self, *, limit: int, before: int | None, keep_for: float) -> list[AuditEntry]:
        rows = self._rows("audit", limit=limit, before=before, keep_for=keep_for)
        return [AuditEntry.from_row(**row) for row in rows]

    def schedules(self) -> list[ScheduleState]:
        return [ScheduleState.from_row(**row) for row in self._rows("schedules")]

    def put_schedule(self, state: ScheduleState, *, expected: str) -> bool:
        values = {"name": state.name, "nonce": state.nonce, "state": state.to_json()}
        return bool(self._rows("put_schedule", expected=expected, **values))

    def delete_schedule(self, name: str, *, expected: str) -> None:
        self._rows("delete_schedule", name=name, expected=expected)

    def in_transaction(self, transaction: UserTransaction) -> SQLiteStore:
        check_same_file(transaction, self.path)
        return _JoinedStore(self.path, self._clock, transaction.connection)

    def close(self) -> None:
        """Close the connection; the next operation opens a new one."""
        self.signals.close()
        self._connection.close()

    def _transaction(self) -> Transaction:
        """Return a transaction that may write in several statements."""
        return Transaction(self._connection, self._clock, "immediate")

    def _statement(self) -> Transaction:
        """Return a transaction of one statement."""
        return Transaction(self._connection, self._clock)

    def _rows(self, statement: str, /, **values: Any) -> list[dict[str, Any]]:
        """Execute a statement as a transaction of its own, and return its rows by column."""
        with self._statement() as tx:
            return tx.rows(statement, **values)

    def _jobs(self, statement: str, /, **values: Any) -> list[Job]:
        """Execute a statement as a transaction of its own, and return its jobs."""
        with self._statement() as tx:
            return tx.jobs(statement, **values)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Configure a new connection, and create the tables in an empty file. Raises `ConfigurationError`."""
        if sqlite3.sqlite_version_info < (3, 38):
            msg = f"onejob needs SQLite 3.38 or later; this Python was built with {sqlite3.sqlite_version}"
            raise ConfigurationError(msg)
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = normal")
        connection.execute("pragma foreign_keys = on")
        connection.execute(f"pragma cache_size = -{CACHE_KIB}")
        connection.create_function("regexp", 2, matches, deterministic=True)
        schema = LedgerSchema(connection.cursor(), "sqlite")
        if schema.version() is None:
            with connection:
                connection.execute("begin immediate")
                schema.upgrade()
        check_version(schema.version(), str(self.path))


class _JoinedStore(SQLiteStore):
    """The store as a part of a user's transaction, whose writes are invisible to others before its commit."""

    def __init__(self, path: Path, clock: Callable[[], float], connection: Any) -> None:
        self.path = path
        self._clock = clock
        self._user_connection = connection
        self._holders = HolderCache()  # of its own, because its transaction may be rolled back

    def close(self) -> None:
        """Do nothing: the connection belongs to the user."""

    def _transaction(self) -> Transaction:
        return JoinedTransaction(self._user_connection, self._clock, "begin immediate")

    def _statement(self) -> Transaction:
        return JoinedTransaction(self._user_connection, self._clock)


def _wake_followers(tx: Transaction, ended: Job) -> None:
    """Make the followers of an ended job due, and promote the job that is queued next."""
    for row in tx.rows("wake_followers", job_id=ended.id):
        if row["holds_identity"]:
            tx.append_history(row["id"], Transition.PROMOTE, f"promoted when {ended.id} ended")


def _narrowed(query: Query) -> list[str]:
    """Return the name of the condition by which an index finds the jobs of a query, or nothing."""
    state = indexed_state(query)
    if state is State.RUNNING:
        return ["of_runs"]
    if query.submitter:
        return ["of_submitter"]
    return [] if state is None else ["of_state"]


def _filters(query: Query) -> dict[str, Any]:
    lists = {"states": _to_json(query.states), "tasks": _to_json(query.tasks)}
    return values_of(query) | lists | {"state": indexed_state(query)}


def _to_json(names: Collection[str] | None) -> str | None:
    return None if names is None else json.dumps(sorted(names))
