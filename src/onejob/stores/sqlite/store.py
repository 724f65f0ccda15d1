"""The SQLite store: every operation is one transaction of the SQL statements in this package."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from onejob.errors import ConfigurationError, all_written
from onejob.jobs.broker_messages import Delivery
from onejob.jobs.costs import SAVED, CostAnswer, CostKey, CostWrite
from onejob.jobs.handover import Way
from onejob.jobs.history import Entry, full_history, row_implies_entry
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.limits import Freed, LimitValue
from onejob.jobs.metric_buckets import NO_AMOUNTS, Period
from onejob.jobs.model import (
    Admission,
    Applied,
    Cancel,
    Change,
    Duplicate,
    HandoverOf,
    JobRow,
    Renewal,
    Submission,
    values_of,
)
from onejob.stores.carrier import Pending, carrier
from onejob.stores.holder_cache import HolderCache
from onejob.stores.protocol import HISTORY_LIMIT, SUBMITTER_LIMIT
from onejob.stores.schema import LedgerSchema, check_version
from onejob.stores.sql import SQLStore, completion_of, is_handed_over, is_sent
from onejob.stores.sqlite.connection import ForkSafeConnection, SQLiteSignals
from onejob.stores.sqlite.costs import add_cost, add_to_sums
from onejob.stores.sqlite.files import absolute_path, is_uri_path
from onejob.stores.sqlite.limits import find_full, forfeit_room, free_slots, park_on_key, spend, take_room
from onejob.stores.sqlite.submission import admit, follow, record, release_expired, submit_charged
from onejob.stores.sqlite.transaction import Request, Transaction, join, run_alone, run_joined, run_together
from onejob.transactions.sessions import OpenTransaction

T = TypeVar("T")

_PERIODS = json.dumps([period.seconds for period in Period])
CACHE_KIB = 16 * 1024
"""How many KiB of the file a connection caches at most. A write of another process empties the cache."""
SEARCH_CACHE_KIB = 2 * 1024
"""How many KiB the connection for searches caches at most: searches read most pages once."""
LONGEST_REST = 0.25
"""How many seconds pass at most between the end of a search and the beginning of the next search."""

PARTS = {
    "append_audit": ("append_audit", "trim_audit"),
    "keep_event": ("delete_events", "keep_event", "extend_event"),
    "keep_run_log": ("trim_run_logs", "keep_run_log"),
    "put_result": ("delete_results", "put_result"),
    "declare_queue": ("unbind_expired", "declare_queue"),
    "delete_queue": ("unbind_all", "purge_queue", "delete_queue"),
    "renew_messages": (
        "renew_messages", "renew_queues", "release_abandoned", "delete_expired_messages", "purge_expired_queues",
        "unbind_forgotten_queues", "delete_forgotten_queues",
    ),
}  # fmt: skip
"""The statements of each operation that has several statements; the last statement returns the rows."""


def _now() -> float:
    """Return the time in whole microseconds, like the other stores: RFC 3339 timestamps lose no digits."""
    return time.time_ns() // 1000 / 1e6


class SQLiteStore(SQLStore):
    """A store in one SQLite file. `clock` returns seconds since the epoch, and is replaced in tests only."""

    def __init__(self, path: str | Path, *, clock: Callable[[], float] = _now, busy_timeout: float = 10.0) -> None:
        self.path = absolute_path(path)  # whatever the directory of the process is later
        self._clock = clock
        self._connection = ForkSafeConnection(self.path, busy_timeout, self._prepare)
        self._search_connection = self._connection  # a database in memory locks whole tables
        if not is_uri_path(self.path):
            self._search_connection = ForkSafeConnection(self.path, busy_timeout, self._prepare_search)
        self._search_again_at = 0.0
        self._holders = HolderCache()
        self.signals = SQLiteSignals(self.path)

    # --- the operations, documented in onejob.stores.protocol ---------------------------------------------------------

    def submit_many(
        self, submissions: Sequence[Submission], *, handover_of: HandoverOf,
        wait_for_locks: bool = True,  # noqa: ARG002 - SQLite has no row locks
    ) -> list[Admission]:  # fmt: skip
        plain = len(submissions) == 1 and submissions[0].key is None and not submissions[0].charges
        if plain and self._holders.get(submissions[0].identity) is None:  # most likely a new job, and nothing else
            admission = self._statement(lambda tx: admit(tx, submissions[0], handover_of(submissions[0])))
            if admission is not None:
                return [admission]
        return all_written(
            self._transaction(
                lambda tx: [submit_charged(tx, each, handover_of(each), self._holders) for each in submissions]
            )
        )

    def follow(self, submission: Submission, *, follows_id: str) -> JobRow | None:
        return self._transaction(lambda tx: follow(tx, submission, follows_id))

    def record(self, duplicate: Duplicate, *, also: Sequence[str] = ()) -> None:
        def record_all(tx: Transaction) -> None:
            for each in (duplicate, *(replace(duplicate, submission_nonce=nonce) for nonce in also)):
                record(tx, each)

        self._transaction(record_all)

    def claim(self, job_id: str, *, nonce: str, node: str, sources: frozenset[State], target: State) -> Applied:
        values: dict[str, Any] = {"job_id": job_id, "nonce": nonce, "node": node, "target": target.value}
        values["sources"] = self._states(sources)
        job = self._statement(lambda tx: tx.job("claim", is_first=True, **values))
        if job is not None:
            return Applied(applied=True, job=job)

        def claim(tx: Transaction) -> Applied:
            previous = tx.job("get", job_id=job_id)
            is_limited = previous is not None and previous.is_limited
            if previous is not None and is_limited and tx.rows("can_claim", **values):
                full = find_full(tx, previous)
                if full is not None:
                    return Applied(applied=False, job=park_on_key(tx, previous, full))
            job = tx.job("claim", is_first=False, **values)
            if job is not None:
                tx.append_claim(previous)
                if is_limited:
                    take_room(tx, job)
                return Applied(applied=True, job=job)
            earlier = tx.find_applied(job_id, nonce)
            job = earlier.job
            is_current = earlier.applied and job is not None and job.claim == nonce and job.state is target
            return Applied(applied=is_current, job=job)

        return self._transaction(claim)

    def renew(self, claims: Sequence[tuple[str, str]], *, sources: frozenset[State]) -> list[Renewal]:
        rows = self._rows("renew", claims=json.dumps(claims), sources=self._states(sources))
        renewed = {(row["id"], row["claim"]): Cancel(row["cancel"]) for row in rows}
        return [Renewal(*claim, held=claim in renewed, cancel=renewed.get(claim, Cancel.NO)) for claim in claims]

    def apply(self, change: Change) -> Applied:
        sources, completion = self._states(change.sources), completion_of(change)
        if completion is not None:
            job = self._statement(lambda tx: tx.job("complete", sources=sources, **completion))
            if job is not None:
                return Applied(applied=True, job=job)

        def apply(tx: Transaction) -> Applied:
            if change.reopens and not change.rejoins:
                earlier = tx.find_applied(change.job_id, change.request_id)
                if earlier.applied:
                    return replace(earlier, handed_over=is_handed_over(change, earlier.job))
                release_expired(tx, change.identity)
            job = tx.job("apply", **values_of(change) | {"sources": sources, "is_sent": is_sent(change)})
            if job is None:
                earlier = tx.find_applied(change.job_id, change.request_id)
                return replace(earlier, handed_over=earlier.applied and is_handed_over(change, earlier.job))
            if not row_implies_entry(change):
                tx.append_history(job.id, change.event, change.detail)
            _apply_elsewhere(tx, change, job)
            return Applied(applied=True, job=job, handed_over=is_handed_over(change, job))

        return self._transaction(apply)

    def add_cost(self, write: CostWrite, *, sources: frozenset[State]) -> CostAnswer | None:
        states, saved_by = self._states(sources), f" {' '.join(sorted(SAVED))} "
        return self._transaction(lambda tx: add_cost(tx, write, sources=states, saved_by=saved_by))

    def add_saved(self, amounts: Mapping[CostKey, Decimal]) -> None:
        saved = {key: (Decimal(0), amount) for key, amount in amounts.items()}
        self._transaction(lambda tx: add_to_sums(tx, saved))

    def postpone(
        self, wake_after: Mapping[str, float], *, taken: Mapping[str, float] | None = None, lost: bool = False
    ) -> None:
        self._rows("postpone", wake_after=json.dumps(dict(wake_after)), taken=json.dumps(dict(taken or {})), lost=lost)

    get_awaited = SQLStore.get_many  # any write is a signal

    def read_clock(self) -> float:
        return self._clock()

    def history(self, job_id: str) -> list[Entry]:
        job, rows = self._transaction(
            lambda tx: (tx.job("get", job_id=job_id), tx.rows("history", job_id=job_id)), "deferred"
        )
        stored = [Entry(**row | {"state": State(row["state"])}) for row in rows]
        return full_history(job, stored)[-HISTORY_LIMIT:]

    def delete(
        self, job_ids: Sequence[str], *, sources: frozenset[State], skip_referenced: bool = False,
        skip_needed: bool = False, successor: str | None = None, tombstone_for: float = 0.0,
    ) -> list[str]:  # fmt: skip
        given = {"job_ids": json.dumps(list(job_ids)), "sources": self._states(sources), "skip_needed": skip_needed}
        values = given | {"skip_referenced": skip_referenced}

        def delete(tx: Transaction) -> list[str]:
            if skip_referenced:
                tx.rows("reschedule_referenced", **given)
            tx.rows("delete_tombstones", limit=2 * len(job_ids))
            tx.rows("sum_counts", submitter_limit=SUBMITTER_LIMIT, **values)
            if successor is not None:
                tx.rows("retain_successor", successor=successor, **values)
                tx.rows("hand_over_keys", successor=successor, **values)
            rows = tx.rows("delete", **values)
            for row in rows:
                tx.rows("insert_tombstone", tombstone_for=tombstone_for, **row)
            return [row["id"] for row in rows]

        return self._transaction(delete)

    def put_limits(self, values: Sequence[LimitValue]) -> None:
        self._transaction(lambda tx: [tx.rows("put_limit", **values_of(value)) for value in values])

    def _free_slots(self, key: str, way: Way, limit: int, room: int | None) -> Freed:  # noqa: ARG002 - not known here
        return self._transaction(lambda tx: free_slots(tx, key, way, limit))

    def spend(self, key: str, amount: float) -> None:
        self._transaction(lambda tx: spend(tx, key, amount))

    def take_messages(self, queues: Sequence[str], *, limit: int, consumer: str, hold: float) -> list[Delivery]:
        values = {"queues": self._encode(queues), "limit": limit}
        if not self._rows("find_ready", **values | {"limit": 1}):  # without the lock of a writer
            return []

        def take(tx: Transaction) -> list[dict[str, Any]]:
            ids = self._encode(row["id"] for row in tx.rows("find_ready", **values))
            name = "take_messages" if hold else "receive_messages"
            return tx.rows(name, ids=ids, consumer=consumer, hold=hold)

        rows = self._transaction(take)
        rows.sort(key=lambda row: (-row.pop("priority"), row["id"]))
        return [Delivery(**row | {"redelivered": bool(row["redelivered"])}) for row in rows]

    def purge_queue(self, name: str) -> int:
        return len(self._rows("purge_queue", name=name))

    def increment(self, amounts: Mapping[str, float], *, recent: Mapping[str, float] = NO_AMOUNTS) -> None:
        values = {"amounts": json.dumps(dict(amounts)), "recent": json.dumps(dict(recent)), "periods": _PERIODS}
        self._rows("increment", **values)
        for period in Period if recent else ():
            self._rows("delete_buckets", period=period.seconds, kept_for=period.kept_for, limit=2 * len(recent))

    def in_transaction(self, transaction: OpenTransaction, *, writes: bool = True) -> SQLiteStore:
        join(transaction, self.path, writes=writes)
        return _JoinedStore(self.path, self._clock, transaction.connection)

    def close(self) -> None:
        """Close the connections; the next operation opens new ones."""
        self.signals.close()
        for connection in {self._connection, self._search_connection}:
            connection.close()

    def _transaction(self, operation: Callable[[Transaction], T], begin: str = "immediate") -> T:
        """Run an operation of several statements, which may write, or with "deferred" only read."""
        if (by := carrier()) is not None:
            found: T = by.carry(self._run_together, Request(begin, operation))
            return found
        return run_alone(self._connection, self._clock, begin, operation)

    def _statement(self, operation: Callable[[Transaction], T]) -> T:
        return self._transaction(operation, "")

    def _run_together(self, requests: Sequence[Request]) -> list[Any]:
        return run_together(self._connection, self._clock, requests)

    def _search(self, operation: Callable[[Transaction], T]) -> T:
        """Run an operation of one statement that only reads, and may take long, beside all other operations.

        The next search begins after a rest of the same time. SQLite cannot reset its write-ahead log while any
        connection reads, and each commit behind a log that was never reset takes several times as long.
        """
        if (by := carrier()) is not None:
            found: T = by.carry(self._search_apart, operation)
            return found
        return self._search_now(operation)

    def _search_apart(self, operations: Sequence[Callable[[Transaction], Any]]) -> list[Pending[Any]]:
        return [Pending(partial(self._search_now, operation)) for operation in operations]

    def _search_now(self, operation: Callable[[Transaction], T]) -> T:
        def search(tx: Transaction) -> T:
            time.sleep(max(self._search_again_at - time.monotonic(), 0.0))
            began = time.monotonic()
            found = operation(tx)
            ended = time.monotonic()
            self._search_again_at = ended + min(ended - began, LONGEST_REST)
            return found

        if self._search_connection is not self._connection:
            run_alone(self._connection, self._clock, "", lambda _: None)  # which notices a file that is gone
        return run_alone(self._search_connection, self._clock, "", search)

    @staticmethod
    def _encode(values: Iterable[Any]) -> str:
        return json.dumps([*values])

    @staticmethod
    @cache
    def _states(states: frozenset[State]) -> str:
        return f" {' '.join(sorted(states))} "  # each name between spaces

    def _rows(self, operation: str, /, **values: Any) -> list[dict[str, Any]]:
        parts = PARTS.get(operation)
        if parts is None:
            return self._statement(lambda tx: tx.rows(operation, **values))
        return self._transaction(lambda tx: [tx.rows(part, **values) for part in parts][-1])

    def _jobs(self, statement: str, /, **values: Any) -> list[JobRow]:
        return self._statement(lambda tx: tx.jobs(statement, **values))

    def _search_rows(self, operation: str, /, **values: Any) -> list[dict[str, Any]]:
        return self._search(lambda tx: tx.rows(operation, **values))

    def _search_jobs(self, statement: str, /, **values: Any) -> list[JobRow]:
        return self._search(lambda tx: tx.jobs(statement, **values))

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Configure a new connection, and create the tables in an empty file. Raises `ConfigurationError`."""
        if sqlite3.sqlite_version_info < (3, 38):
            msg = f"onejob needs SQLite 3.38 or later; this Python was built with {sqlite3.sqlite_version}"
            raise ConfigurationError(msg)
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = normal")
        connection.execute("pragma foreign_keys = on")
        connection.execute(f"pragma cache_size = -{CACHE_KIB}")
        connection.create_function(
            "regexp", 2, lambda pattern, text: re.search(pattern, text) is not None, deterministic=True
        )
        schema = LedgerSchema(connection.cursor(), "sqlite")
        if schema.version() is None:
            with connection:
                connection.execute("begin immediate")
                schema.upgrade()
        check_version(schema.version(), str(self.path))

    def _prepare_search(self, connection: sqlite3.Connection) -> None:
        self._prepare(connection)
        connection.execute("pragma query_only = on")
        connection.execute(f"pragma cache_size = -{SEARCH_CACHE_KIB}")


class _JoinedStore(SQLiteStore):
    """The store as a part of a user's transaction, whose writes are invisible to others before its commit."""

    def __init__(self, path: Path, clock: Callable[[], float], connection: Any) -> None:
        self.path = path
        self._clock = clock
        self._user_connection = connection
        self._holders = HolderCache()  # of its own, because its transaction may be rolled back

    def close(self) -> None:
        """Do nothing: the connection belongs to the user."""

    def _transaction(self, operation: Callable[[Transaction], T], begin: str = "immediate") -> T:
        return run_joined(self._user_connection, self._clock, begin, operation)

    def _statement(self, operation: Callable[[Transaction], T]) -> T:
        return run_joined(self._user_connection, self._clock, "deferred", operation)

    _search = _statement


def _apply_elsewhere(tx: Transaction, change: Change, job: JobRow) -> None:
    """Apply a change of a job to what belongs to it, and to its followers."""
    if job.limit_keys is not None and (change.parked_on or change.reopens):
        forfeit_room(tx, job.id)
    if change.ends:
        _wake_followers(tx, job)
    if change.forgets_steps:
        tx.rows("delete_steps", job_id=job.id)


def _wake_followers(tx: Transaction, ended: JobRow) -> None:
    """Make the followers of an ended job due, and promote the job that is queued next."""
    for row in tx.rows("wake_followers", job_id=ended.id):
        if row["holds_identity"]:
            tx.append_history(row["id"], Transition.PROMOTE, f"promoted when {ended.id} ended")
