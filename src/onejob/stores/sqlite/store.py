"""The SQLite store: every operation is one transaction of the SQL statements in this package."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from onejob.errors import ConfigurationError, PartlySubmittedError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import (
    Admission,
    Applied,
    Cancel,
    Change,
    Duplicate,
    Job,
    MessageOf,
    Renewal,
    Submission,
    values_of,
)
from onejob.jobs.records import NO_AMOUNTS, Delivery, Entry, Period, full_history, row_implies_entry
from onejob.stores.holder_cache import HolderCache
from onejob.stores.protocol import HISTORY_LIMIT, SUBMITTER_LIMIT
from onejob.stores.schema import LedgerSchema, check_version
from onejob.stores.sql import SQLStore, completion_of
from onejob.stores.sqlite.connection import ForkSafeConnection, SQLiteSignals, absolute_path
from onejob.stores.sqlite.submission import WhenDue, admit, follow, record, release_expired, submit_charged
from onejob.stores.sqlite.transaction import Transaction, check_same_file, run_alone, run_joined
from onejob.transactions.sessions import OpenTransaction

T = TypeVar("T")

_PERIODS = json.dumps([period.seconds for period in Period])
CACHE_KIB = 16 * 1024
"""How much of the file a process caches at most. It reads again what was not in its cache when another one writes."""

PARTS = {
    "append_audit": ("append_audit", "trim_audit"),
    "keep_event": ("delete_events", "keep_event", "extend_event"),
    "put_result": ("delete_results", "put_result"),
    "declare_queue": ("unbind_expired", "declare_queue"),
    "delete_queue": ("unbind_all", "purge_queue", "delete_queue"),
    "renew_messages": (
        "renew_messages", "renew_queues", "release_abandoned", "delete_expired_messages", "purge_expired_queues",
        "unbind_forgotten_queues", "delete_forgotten_queues",
    ),
}  # fmt: skip
"""The statements of the operations that have several; the last one returns the rows."""


def _now() -> float:
    """Return the time in whole microseconds, as the other stores do: RFC 3339 timestamps lose no digits."""
    return time.time_ns() // 1000 / 1e6


class SQLiteStore(SQLStore):
    """A store in one SQLite file. `clock` returns seconds since the epoch, and is replaced in tests only."""

    _lists_submitters = True

    def __init__(self, path: str | Path, *, clock: Callable[[], float] = _now, busy_timeout: float = 10.0) -> None:
        self.path = absolute_path(path)  # whatever the directory of the process is later
        self._clock = clock
        self._connection = ForkSafeConnection(self.path, busy_timeout, self._prepare)
        self._holders = HolderCache()
        self.signals = SQLiteSignals(self.path)

    # --- the operations, documented in onejob.stores.protocol ---------------------------------------------------------

    def submit_many(
        self, submissions: Sequence[Submission], *, wake_after: float, message_of: MessageOf | None = None,
        wait_for_locks: bool = True,  # noqa: ARG002 - SQLite has no row locks
    ) -> list[Admission]:  # fmt: skip
        due = WhenDue(wake_after, offers=message_of is not None)
        plain = len(submissions) == 1 and submissions[0].key is None and not submissions[0].charges
        if plain and self._holders.get(submissions[0].identity) is None:  # most likely a new job, and nothing else
            admission = self._statement(lambda tx: admit(tx, submissions[0], due))
            if admission is not None:
                return [admission]
        return PartlySubmittedError.checked(
            self._transaction(lambda tx: [submit_charged(tx, each, due, self._holders) for each in submissions])
        )

    def follow(self, submission: Submission, *, follows_id: str) -> Job | None:
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
            job = tx.job("claim", is_first=False, **values)
            if job is not None:
                tx.append_claim(previous)
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

        return self._transaction(apply)

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
        tombstone_for: float = 0.0,
    ) -> list[str]:  # fmt: skip
        values = {"job_ids": json.dumps(list(job_ids)), "sources": self._states(sources)}

        def delete(tx: Transaction) -> list[str]:
            if skip_referenced:
                tx.rows("reschedule_referenced", **values)
            tx.rows("delete_tombstones", limit=2 * len(job_ids))
            tx.rows("sum_counts", skip_referenced=skip_referenced, submitter_limit=SUBMITTER_LIMIT, **values)
            rows = tx.rows("delete", skip_referenced=skip_referenced, **values)
            for row in rows:
                tx.rows("insert_tombstone", tombstone_for=tombstone_for, **row)
            return [row["id"] for row in rows]

        return self._transaction(delete)

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

    def in_transaction(self, transaction: OpenTransaction) -> SQLiteStore:
        check_same_file(transaction, self.path)
        return _JoinedStore(self.path, self._clock, transaction.connection)

    def close(self) -> None:
        """Close the connection; the next operation opens a new one."""
        self.signals.close()
        self._connection.close()

    def _transaction(self, operation: Callable[[Transaction], T], begin: str = "immediate") -> T:
        """Run an operation that may write in several statements, or that reads in several ("deferred")."""
        return run_alone(self._connection, self._clock, begin, operation)

    def _statement(self, operation: Callable[[Transaction], T]) -> T:
        return run_alone(self._connection, self._clock, "", operation)

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

    def _jobs(self, statement: str, /, **values: Any) -> list[Job]:
        return self._statement(lambda tx: tx.jobs(statement, **values))

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


def _wake_followers(tx: Transaction, ended: Job) -> None:
    """Make the followers of an ended job due, and promote the job that is queued next."""
    for row in tx.rows("wake_followers", job_id=ended.id):
        if row["holds_identity"]:
            tx.append_history(row["id"], Transition.PROMOTE, f"promoted when {ended.id} ended")
