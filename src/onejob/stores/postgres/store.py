"""The PostgreSQL store: one SQL statement per operation; a unique index guarantees one live job per identity."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakSet

from onejob.errors import ConfigurationError, StoreBusyError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Applied, Cancel, Duplicate, Renewal
from onejob.jobs.records import (
    NO_AMOUNTS,
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
from onejob.stores.postgres.connection import Connections
from onejob.stores.postgres.messages import Messages
from onejob.stores.postgres.signals import PostgresSignals
from onejob.stores.postgres.statements import Statements, sql_values
from onejob.stores.postgres.submission import Submitter, exceeded_quota, lock_quotas, submit_call
from onejob.stores.protocol import HISTORY_LIMIT, indexed_state, is_indexed
from onejob.stores.rows import completion_of, in_order, job_in, row_implies_entry
from onejob.stores.schema import LedgerSchema, check_version, checked_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from onejob.jobs.model import Admission, Change, Job, MessageOf, Submission
    from onejob.jobs.records import Backlog, Query, Registration
    from onejob.stores.postgres.connection import Connection
    from onejob.stores.postgres.statements import Rows, Statement
    from onejob.stores.protocol import GroupBy, Transaction

Row: TypeAlias = "dict[str, Any]"


class PostgresStore(Messages):
    """A store in one schema of a PostgreSQL database. Safe to use from many threads; survives a fork.

    `clock` (seconds since the epoch) replaces the server's, for tests only. Raises `ConfigurationError`.
    """

    _is_pooled = False

    def __init__(self, url: str, *, schema: str = "onejob", clock: Callable[[], float] | None = None) -> None:
        self._connections = Connections(url, self._check_version)
        self._is_pooled = self._connections.is_pooled
        self._sql = Statements(self._connections, checked_schema(schema), clock)
        self._submitter = Submitter(self._sql)
        self.signals = PostgresSignals(self._connections, self._sql.channels)
        self._own_ledger: Row | None = None
        self._verified: WeakSet[Any] = WeakSet()
        """The connections of users that are on the database of this ledger."""

    # --- the operations, documented in onejob.stores.protocol ---------------------------------------------------------

    def submit_many(
        self, submissions: Sequence[Submission], *, wake_after: float, wait_for_locks: bool = True,
        message_of: MessageOf | None = None,
    ) -> list[Admission]:  # fmt: skip
        when_due = {"wake_after": wake_after, "offers": message_of is not None}
        return self._submitter.submit_many(submissions, when_due, wait_for_locks=wait_for_locks)

    def follow(self, submission: Submission, *, follows_id: str) -> Job | None:
        values = sql_values(submission) | {"follows_id": follows_id}
        rows = self._sql.run_each([*lock_quotas([submission]), submit_call("follow", submission, values)])[-1]
        if rows and rows[0].get("quota") is not None:
            raise exceeded_quota(submission, rows[0]["quota"])
        written = job_in(rows[0]) if rows else None
        return written or self.get_many([submission.id]).get(submission.id)  # a concurrent transaction wrote this id

    def record(self, duplicate: Duplicate, *, also: Sequence[str] = ()) -> None:
        if also:
            nonces = [duplicate.submission_nonce, *also]
            self._sql.run("record_many", **sql_values(duplicate), submissions=nonces, nonce=nonces[-1])
        else:
            self._sql.run("record", **sql_values(duplicate))

    def duplicates(self, job_id: str) -> list[Duplicate]:
        return [Duplicate.from_row(row) for row in self._sql.run("duplicates", job_id=job_id)]

    def duplicate_counts(
        self, by: GroupBy, *, limit: int, submitter: str | None = None, tasks: frozenset[str] | None = None
    ) -> list[DuplicateCount]:
        rows = self._sql.run("list_stats", by=by.value, limit=limit, submitter=submitter, tasks=_tasks(tasks))
        return [DuplicateCount.from_row(**row) for row in rows]

    def claim(self, job_id: str, *, nonce: str, node: str, sources: frozenset[State], target: State) -> Applied:
        values = {"job_id": job_id, "nonce": nonce, "node": node, "sources": _names(sources), "target": target.value}
        first = _parse_applied(self._sql.run("claim", **values))
        if first.applied or first.job is None or not first.job.attempt or first.job.state not in sources:
            return first
        return _parse_applied(self._sql.run("reclaim", **values))

    def renew(self, claims: Sequence[tuple[str, str]], *, sources: frozenset[State]) -> list[Renewal]:
        ids, nonces = [job_id for job_id, _ in claims], [nonce for _, nonce in claims]
        rows = self._sql.run("renew", ids=ids, nonces=nonces, sources=_names(sources))
        renewed = {(row["id"], row["claim"]): Cancel(row["cancel"]) for row in rows}
        return [Renewal(*claim, held=claim in renewed, cancel=renewed.get(claim, Cancel.NO)) for claim in claims]

    def apply(self, change: Change) -> Applied:
        sources, completion = _names(change.sources), completion_of(change)
        if completion is not None and not self._sql.joins:
            completed = _parse_applied(self._sql.run("complete", sources=sources, **completion))
            if completed.applied:
                return completed
        values = sql_values(change) | {
            "sources": sources, "offers": change.message is not None, "keeps_entry": not row_implies_entry(change),
        }  # fmt: skip
        also = ("wake_followers",) if change.ends else ()
        return _parse_applied(self._sql.run("apply", *also, **values))

    def report(self, job_id: str, token: int, progress: str, *, sources: frozenset[State]) -> Cancel | None:
        rows = self._sql.run("report", job_id=job_id, token=token, progress=progress, sources=_names(sources))
        return Cancel(rows[0]["cancel"]) if rows else None

    def keep_step(self, job_id: str, token: int, name: str, value: str, *, sources: frozenset[State]) -> str | None:
        values = {"job_id": job_id, "token": token, "name": name, "value": value, "sources": _names(sources)}
        rows = self._sql.run("keep_step", **values)
        return str(rows[0]["value"]) if rows else None

    def steps(self, job_id: str) -> Mapping[str, str]:
        return {row["name"]: row["value"] for row in self._sql.run("steps", job_id=job_id)}

    def deliver(self, queues: Collection[str], *, limit: int, refused: Collection[str] = ()) -> list[Job]:
        rows = self._sql.run("deliver", queues=[*queues], refused=[*refused], limit=limit)
        return in_order([job_in(row) for row in rows])

    def next_delivery(self, queues: Collection[str], *, refused: Collection[str] = ()) -> float | None:
        seconds: float | None = self._sql.run("next_delivery", queues=[*queues], refused=[*refused])[0]["seconds"]
        return seconds

    def take_due(self, *, tasks: frozenset[str], limit: int, hold: float, expired_runs: bool = True) -> list[Job]:
        rows = self._sql.run("take_due", tasks=sorted(tasks), limit=limit, hold=hold, expired_runs=expired_runs)
        return [job_in(row) for row in rows]

    def postpone(
        self, wake_after: Mapping[str, float], *, taken: Mapping[str, float] | None = None, lost: bool = False
    ) -> None:
        seen = [(taken or {}).get(job_id) for job_id in wake_after]
        values = {"ids": list(wake_after), "wake_after": list(map(float, wake_after.values())), "taken": seen}
        self._sql.run("postpone", **values, lost=lost)

    def get_many(self, job_ids: Sequence[str]) -> dict[str, Job]:
        if len(job_ids) == 1:
            rows = self._sql.run("get", job_id=job_ids[0])
        else:
            rows = self._sql.run("get_many", job_ids=list(job_ids))
        return {row["id"]: job_in(row) for row in rows}

    def get_awaited(self, job_ids: Sequence[str]) -> dict[str, Job]:
        if self._is_pooled:  # nobody would get the signals
            return self.get_many(job_ids)
        try:
            rows = self._sql.run("get_awaited", job_ids=list(job_ids))
        except StoreBusyError:  # a user's transaction has locked one of them: the caller looks again
            return self.get_many(job_ids)
        found = {row["id"]: job_in(row) for row in rows}
        missing = [job_id for job_id in job_ids if job_id not in found]
        return found | self.get_many(missing) if missing else found

    def read_clock(self) -> float:
        return float(self._sql.run("read_clock")[0]["now"])

    def find_existing(self, identity: str, key: str | None) -> Job | None:
        return self._sql.run_for_job("find_existing", identity=identity, key=key)

    def find(self, query: Query) -> list[Job]:
        name = "_".join(["find_light" if query.light else "find", *_narrowed(query)])
        return [job_in(row) for row in self._sql.run(name, **_filters(query))]

    def counts(self, query: Query, *, limit: int | None = None) -> dict[State, int]:
        name = "_".join(["count_jobs" if limit is None else "count_newest", *_narrowed(query)])
        rows = self._sql.run(name, **(_filters(query) | {"limit": limit}))
        return {State(row["state"]): row["count"] for row in rows}

    def count_states(self, *, limit: int) -> dict[State, int]:
        (row,) = self._sql.run("count_states", limit=limit)
        return {state: min(max(row[state], 0), limit) for state in State}

    def is_indexed(self, query: Query) -> bool:
        return is_indexed(query, of_submitter=True)

    def edge(self, query: Query, *, skip: int) -> float | None:
        found: float | None = self._sql.run("edge", **_filters(query), skip=skip)[0]["created_at"]
        return found

    def backlog(self, *, tasks: frozenset[str], limit: int, submitter: str | None = None) -> list[Backlog]:
        rows = self._sql.run("backlog", tasks=sorted(tasks), limit=limit, submitter=submitter)
        return group_backlog(row.values() for row in rows)

    def followers(self, job_id: str, *, limit: int) -> list[Job]:
        return [job_in(row) for row in self._sql.run("followers", job_id=job_id, limit=limit)]

    def history(self, job_id: str) -> list[Entry]:
        rows = self._sql.run("history", job_id=job_id)
        if not rows:
            return []
        stored = [Entry(at, event, State(state), *rest) for at, event, state, *rest in rows[0]["entries"] or ()]
        return full_history(job_in(rows[0]), stored)[-HISTORY_LIMIT:]

    def delete(
        self,
        job_ids: Sequence[str],
        *,
        sources: frozenset[State],
        skip_referenced: bool = False,
        tombstone_for: float = 0.0,
    ) -> list[str]:
        values = {"job_ids": list(job_ids), "sources": _names(sources), "skip_referenced": skip_referenced}
        return [row["id"] for row in self._sql.run("delete", **values, tombstone_for=tombstone_for)]

    def tombstone(self, job_id: str) -> Tombstone | None:
        rows = self._sql.run("tombstone", job_id=job_id)
        return Tombstone.from_row(rows[0]) if rows else None

    def heartbeat(self, node: str, *, lasts: float, registration: Registration = UNREGISTERED) -> None:
        self._sql.run("heartbeat", node=node, lasts=lasts, registration=registration.to_json())

    def workers(self) -> list[WorkerInfo]:
        return [WorkerInfo.from_row(row) for row in self._sql.run("workers")]

    def take_dead_workers(self) -> list[WorkerInfo]:
        return [WorkerInfo.from_row(row) for row in self._sql.run("take_dead_workers")]

    def increment(self, amounts: Mapping[str, float], *, recent: Mapping[str, float] = NO_AMOUNTS) -> None:
        self._sql.run(
            "increment",
            names=list(amounts), amounts=list(map(float, amounts.values())),
            recent_names=list(recent), recent_amounts=list(map(float, recent.values())),
            periods=[period.seconds for period in Period], kept_for=[period.kept_for for period in Period],
        )  # fmt: skip

    def totals(self) -> dict[str, float]:
        return {row["name"]: row["total"] for row in self._sql.run("totals")}

    def series(self, period: Period, *, since: float) -> list[Bucket]:
        rows = self._sql.run("series", period=period.seconds, kept_for=period.kept_for, since=since)
        return [Bucket(row["starts_at"], row["amounts"]) for row in rows]

    def keep_event(self, event_id: str, body: str | None, *, keep_for: float) -> str | None:
        rows = self._sql.run("keep_event", id=event_id, body=body, keep_for=keep_for)
        return str(rows[0]["body"]) if rows else None

    def append_audit(self, entry: AuditEntry, *, keep: int, keep_for: float) -> None:
        self._sql.run("append_audit", kind=entry.kind, entry=entry.to_json(), keep=keep, keep_for=keep_for)

    def audit(self, *, limit: int, before: int | None, keep_for: float) -> list[AuditEntry]:
        rows = self._sql.run("audit", limit=limit, before=before, keep_for=keep_for)
        return [AuditEntry.from_row(**row) for row in rows]

    def schedules(self) -> list[ScheduleState]:
        return [ScheduleState.from_row(**row) for row in self._sql.run("schedules")]

    def put_schedule(self, state: ScheduleState, *, expected: str) -> bool:
        values = {"name": state.name, "nonce": state.nonce, "state": state.to_json()}
        return bool(self._sql.run("put_schedule", expected=expected, **values))

    def delete_schedule(self, name: str, *, expected: str) -> None:
        self._sql.run("delete_schedule", name=name, expected=expected)

    def close(self) -> None:
        """Close the connections; the next operation opens new ones."""
        self.signals.close()
        self._connections.close()

    # --- taking part in a user's transaction ------------------------------------------------------------------------

    def in_transaction(self, transaction: Transaction) -> PostgresStore:
        """Return a store that works in a user's open transaction. Raises `ConfigurationError`."""
        if transaction.dialect != "postgresql":
            msg = f"the ledger is in PostgreSQL, and cannot take part in a transaction of {transaction.dialect}"
            raise ConfigurationError(msg)
        joined = replace(self._sql, runner=_TransactionRunner(transaction), joins=True)
        if transaction.connection not in self._verified:
            self._check_ledger(joined)
            self._verified.add(transaction.connection)
        return _JoinedStore(joined)

    def _check_ledger(self, joined: Statements) -> None:
        """Raise `ConfigurationError` unless statements of a user's transaction reach this ledger.

        A ledger is known by its id and the name of its database: a copy of a database has the same id.
        """
        self._own_ledger = self._own_ledger or self._sql.run("get_ledger_info")[0]
        (session,) = joined.run("find_ledger_info")
        if session["exists"] and joined.run("get_ledger_info") == [self._own_ledger]:
            return
        what = "another ledger" if session["exists"] else "no ledger"
        msg = (
            f"this session is on the database {session['database']!r}, which has {what} in its schema "
            f"{self._sql.schema!r}. The ledger of this app is in that schema of {self._connections.address}: "
            "pass a session on that database"
        )
        raise ConfigurationError(msg)

    # --- opening ----------------------------------------------------------------------------------------------------

    def _check_version(self, connection: Connection) -> None:
        schema = self._sql.schema
        where = f"schema {schema!r} of {self._connections.address}"
        check_version(LedgerSchema(connection.cursor(), "postgresql", schema).version(), where)


class _JoinedStore(PostgresStore):
    """The store as a part of a user's transaction, whose writes are invisible to others before its commit."""

    def __init__(self, sql: Statements) -> None:
        self._sql = sql
        self._submitter = Submitter(sql)  # with a cache of its own, because its transaction may be rolled back

    def close(self) -> None:
        """Do nothing: the connection belongs to the user."""


class _TransactionRunner:
    """Runs statements in a user's transaction. Errors of its driver are not translated."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def run(self, statements: Sequence[Statement], *, wait_for_locks: bool = False) -> list[Rows]:  # noqa: ARG002 - of `Runner`
        """Run statements, and return the rows of each."""
        return [self._transaction.rows(text, values) for text, values in statements]


def _narrowed(query: Query) -> list[str]:
    """Return the name of the condition by which the index of a state finds the jobs of a query, or nothing."""
    state = indexed_state(query)
    return [] if state is None else ["of_runs" if state is State.RUNNING else "of_state"]


def _filters(query: Query) -> dict[str, Any]:
    state = indexed_state(query)
    lists = {"states": _names(query.states), "tasks": _tasks(query.tasks)}
    return sql_values(query) | lists | {"state": state and state.value}


def _tasks(tasks: frozenset[str] | None) -> list[str] | None:
    return None if tasks is None else sorted(tasks)


def _names(states: frozenset[State]) -> list[str]:
    return sorted(state.value for state in states)


def _parse_applied(rows: Rows) -> Applied:
    return Applied(applied=rows[0]["applied"], job=job_in(rows[0])) if rows else Applied(applied=False, job=None)
