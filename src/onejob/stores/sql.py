"""The common parts of the SQL stores: jobs and changes as rows, and operations that run statements of equal names."""

# ruff: noqa: D102 - an operation is explained where it is promised: in the protocol

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter, itemgetter
from typing import Any

from onejob.jobs.audit_entries import AuditEntry
from onejob.jobs.backlog import Backlog, group_backlog
from onejob.jobs.blocks import Block
from onejob.jobs.broker_messages import NewMessage
from onejob.jobs.costs import CostSum, Label, day_text
from onejob.jobs.handover import UNSENT, Way
from onejob.jobs.history import row_implies_entry
from onejob.jobs.lifecycle import State
from onejob.jobs.limits import PARKED_BY_LIMIT, Freed, LimitUse, LimitValue, name_of
from onejob.jobs.metric_buckets import Bucket, Period
from onejob.jobs.model import Cancel, Change, Duplicate, DuplicateCount, JobRow, Tombstone, values_of
from onejob.jobs.query import Query
from onejob.jobs.schedule_state import ScheduleState
from onejob.jobs.workers import UNREGISTERED, Registration, WorkerInfo
from onejob.stores.protocol import (
    FORGOTTEN_AFTER,
    LISTED_HOLDERS,
    LOGS_KEPT,
    GroupBy,
    index_of,
    indexed_state,
    is_indexed,
)

COLUMNS = tuple(field.name for field in fields(JobRow))
_TYPES = [str(field.type) for field in fields(JobRow)]
_CONVERTERS: dict[str, Callable[[Any], object]] = {
    "State": {state.value: state for state in State}.__getitem__,  # at a fraction of the cost of State(value)
    "Cancel": {cancel.value: cancel for cancel in Cancel}.__getitem__,
    "bool": bool,
}
"""The functions that convert a field which a row has in another form, and which is not None, by its type."""
_CONVERTED = [(index, _CONVERTERS[kind]) for index, kind in enumerate(_TYPES) if kind in _CONVERTERS]
_OPTIONAL_TEXTS = [index for index, kind in enumerate(_TYPES) if kind == "str | None"]
_by_column = itemgetter(*COLUMNS)

_COMPLETION = (
    "job_id", "request_id", "token", "keeps_identity", "identity_for", "identity_until", "wake_after", "published",
    "publish_error", "result", "reason",
)  # fmt: skip
"""The fields of a change that `complete.sql` applies, besides the target."""
_OTHERS = {
    each.name: each.default
    for each in fields(Change)
    if each.name not in {*_COMPLETION, "target", "identity", "event", "sources", "ends", "detail"}
}
_completion, _others = attrgetter(*_COMPLETION), attrgetter(*_OTHERS)
_NO_OTHERS = tuple(_OTHERS.values())


def job_of(row: Sequence[Any]) -> JobRow:
    """Return the job of a row whose values are the job's fields in order."""
    values = list(row)
    for index, convert in _CONVERTED:
        values[index] = convert(values[index])
    for index in _OPTIONAL_TEXTS:
        values[index] = values[index] or None
    return JobRow(**dict(zip(COLUMNS, values, strict=True)))


def job_in(row: Mapping[str, Any]) -> JobRow:
    """Return the job of a row by column, which may have further columns."""
    return job_of(_by_column(row))


def completion_of(change: Change) -> dict[str, Any] | None:
    """Return the values for `complete.sql`; None for a change that does more than every completion of a run."""
    only_ends = change.ends and change.token and row_implies_entry(change) and _others(change) == _NO_OTHERS
    if not only_ends or change.target is None:
        return None
    return dict(zip(_COMPLETION, _completion(change), strict=True)) | {"target": change.target.value}


def is_sent(change: Change) -> bool | None:
    """Return whether a change sets `published_at`; None: it leaves the column unchanged."""
    return None if change.handover is None else change.handover.way not in UNSENT


def is_handed_over(change: Change, job: JobRow | None) -> bool:
    """Return whether workers take a job from the ledger after a change, by its hand-over."""
    return job is not None and change.handover is not None and change.handover.is_offered(job.route)


def limit_value_of(row: Mapping[str, Any]) -> LimitValue:
    """Return the value of a limit in a row."""
    return LimitValue(**{**row, "is_default": bool(row["is_default"])})


def _limit_use_of(row: Mapping[str, Any]) -> LimitUse:
    """Return the use of a key in a row, whose holders are JSON."""
    return LimitUse(**{**row, "holders": tuple(sorted(json.loads(row["holders"])))})


to_json = json.JSONEncoder(ensure_ascii=False).encode
"""The function that returns JSON for a statement: without escapes, which not every database of PostgreSQL reads."""


class SQLStore(ABC):
    """The common part of the stores in SQL databases. `onejob.stores.protocol` documents the operations."""

    @staticmethod
    @abstractmethod
    def _encode(values: Iterable[Any]) -> Any:
        """Return texts or numbers as a value of a statement."""

    @staticmethod
    @abstractmethod
    def _states(states: frozenset[State]) -> Any:
        """Return the states that a job must be in as a value of a statement."""

    @abstractmethod
    def _rows(self, operation: str, /, **values: Any) -> list[dict[str, Any]]:
        """Execute the statements of an operation in one transaction; return the rows by column."""

    @abstractmethod
    def _jobs(self, statement: str, /, **values: Any) -> list[JobRow]:
        """Execute a statement as a transaction, and return its jobs."""

    def _search_rows(self, operation: str, /, **values: Any) -> list[dict[str, Any]]:
        """Return the rows of a statement that may read many jobs for few results, without keeping others waiting."""
        return self._rows(operation, **values)

    def _search_jobs(self, statement: str, /, **values: Any) -> list[JobRow]:
        """Return the jobs of a statement that may read many jobs for few results."""
        return self._jobs(statement, **values)

    # --- runs ---------------------------------------------------------------------------------------------------------

    def report(self, job_id: str, token: int, progress: str, *, sources: frozenset[State]) -> Cancel | None:
        rows = self._rows("report", job_id=job_id, token=token, progress=progress, sources=self._states(sources))
        return Cancel(rows[0]["cancel"]) if rows else None

    def keep_step(self, job_id: str, token: int, name: str, value: str, *, sources: frozenset[State]) -> str | None:
        values = {"job_id": job_id, "token": token, "name": name, "value": value, "sources": self._states(sources)}
        rows = self._rows("keep_step", **values)
        return str(rows[0]["value"]) if rows else None

    def steps(self, job_id: str) -> Mapping[str, str]:
        return {row["name"]: row["value"] for row in self._rows("steps", job_id=job_id)}

    def keep_run_log(self, job_id: str, token: int, text: str) -> bool:
        return bool(self._rows("keep_run_log", job_id=job_id, token=token, text=text, kept=LOGS_KEPT))

    def run_logs(self, job_id: str) -> dict[int, str]:
        return {row["attempt"]: row["text"] for row in self._rows("run_logs", job_id=job_id)}

    def deliver(self, queues: Collection[str], *, limit: int, refused: Collection[str] = ()) -> list[JobRow]:
        jobs = self._jobs("deliver", queues=self._names(queues), refused=self._names(refused), limit=limit)
        return sorted(jobs, key=lambda job: (-job.priority_rank, job.run_at))

    def next_delivery(self, queues: Collection[str], *, refused: Collection[str] = ()) -> float | None:
        rows = self._rows("next_delivery", queues=self._names(queues), refused=self._names(refused))
        seconds: float | None = rows[0]["seconds"]
        return seconds

    def take_due(self, *, tasks: frozenset[str], limit: int, hold: float, expired_runs: bool = True) -> list[JobRow]:
        return self._jobs("take_due", tasks=self._names(tasks), limit=limit, hold=hold, expired_runs=expired_runs)

    # --- queries ------------------------------------------------------------------------------------------------------

    def get_many(self, job_ids: Sequence[str]) -> dict[str, JobRow]:
        if len(job_ids) == 1:  # the usual number
            jobs = self._jobs("get", job_id=job_ids[0])
        else:
            jobs = self._jobs("get_many", job_ids=self._encode(job_ids))
        return {job.id: job for job in jobs}

    def find_existing(self, identity: str, key: str | None) -> JobRow | None:
        return next(iter(self._jobs("find_existing", identity=identity, key=key)), None)

    def find(self, query: Query) -> list[JobRow]:
        read = self._jobs if self.is_indexed(query) else self._search_jobs
        return read(self._narrowed("find_light" if query.light else "find", query), **self._filters(query))

    def counts(self, query: Query, *, limit: int | None = None) -> dict[State, int]:
        name = self._narrowed("count_jobs" if limit is None else "count_newest", query)
        rows = self._search_rows(name, **(self._filters(query) | {"limit": limit}))
        return {State(row["state"]): row["count"] for row in rows}

    def count_states(self, *, limit: int) -> dict[State, int]:
        (row,) = self._rows("count_states", limit=limit)
        return {state: min(max(row[state], 0), limit) for state in State}

    def is_indexed(self, query: Query) -> bool:
        return is_indexed(query)

    def edge(self, query: Query, *, skip: int) -> float | None:
        rows = self._search_rows(self._narrowed("edge", query), **self._filters(query), skip=skip)
        return rows[0]["created_at"] if rows else None

    def backlog(self, *, tasks: frozenset[str], limit: int, submitter: str | None = None) -> list[Backlog]:
        rows = self._rows("backlog", tasks=self._names(tasks), limit=limit, submitter=submitter)
        return group_backlog(row.values() for row in rows)

    def followers(self, job_id: str, *, limit: int) -> list[JobRow]:
        return self._jobs("followers", job_id=job_id, limit=limit)

    def tombstone(self, job_id: str) -> Tombstone | None:
        rows = self._rows("tombstone", job_id=job_id)
        return Tombstone.from_row(rows[0]) if rows else None

    def duplicates(self, job_id: str) -> list[Duplicate]:
        return [Duplicate.from_row(row) for row in self._rows("duplicates", job_id=job_id)]

    def duplicate_counts(
        self, by: GroupBy, *, limit: int, submitter: str | None = None, tasks: frozenset[str] | None = None
    ) -> list[DuplicateCount]:
        rows = self._search_rows("list_stats", by=by.value, limit=limit, submitter=submitter, tasks=self._names(tasks))
        return [DuplicateCount.from_row(**row) for row in rows]

    def _narrowed(self, name: str, query: Query) -> str:
        """Return the variant of a statement for the index that leads to the jobs of a query, if it has one."""
        variant = index_of(query)
        return f"{name}_{variant}" if variant else name

    def _filters(self, query: Query) -> dict[str, Any]:
        state = indexed_state(query)
        states = self._encode(sorted(each.value for each in query.states))
        return values_of(query) | {"states": states, "tasks": self._names(query.tasks), "state": state and state.value}

    def _names(self, names: Collection[str] | None) -> Any:
        return None if names is None else self._encode(sorted(names))

    def cost_sums(self, *, first: int, last: int, label: Label) -> list[CostSum]:
        values = {"first": day_text(first), "last": day_text(last), "label": label.value}
        return [CostSum.from_row(row) for row in self._search_rows("cost_sums", **values)]

    # --- what processes share besides jobs ----------------------------------------------------------------------------

    def heartbeat(self, node: str, *, lasts: float, registration: Registration = UNREGISTERED) -> None:
        name = "heartbeat" if lasts > 0 else "delete_worker"
        self._rows(name, node=node, lasts=lasts, registration=registration.to_json())

    def workers(self) -> list[WorkerInfo]:
        return [WorkerInfo.from_row(**row) for row in self._rows("workers")]

    def take_dead_workers(self) -> list[WorkerInfo]:
        return [WorkerInfo.from_row(**row) for row in self._rows("take_dead_workers")]

    def totals(self) -> dict[str, float]:
        return {row["name"]: row["total"] for row in self._rows("totals")}

    def series(self, period: Period, *, since: float) -> list[Bucket]:
        found: dict[float, dict[str, float]] = {}
        for row in self._rows("series", period=period.seconds, kept_for=period.kept_for, since=since):
            found.setdefault(row["starts_at"], {})[row["name"]] = row["amount"]
        return [Bucket(start, amounts) for start, amounts in found.items()]

    def keep_event(self, event_id: str, body: str | None, *, keep_for: float) -> str | None:
        rows = self._rows("keep_event", id=event_id, body=body, keep_for=keep_for)
        return str(rows[0]["body"]) if rows else None

    def put_result(self, name: str, body: str, *, keep_for: float) -> None:
        self._rows("put_result", name=name, body=body, keep_for=keep_for)

    def results(self, names: Sequence[str]) -> dict[str, str]:
        return {row["name"]: row["body"] for row in self._rows("results", names=self._encode(names))}

    def delete_result(self, name: str) -> None:
        self._rows("delete_result", name=name)

    def append_audit(self, entry: AuditEntry, *, keep: int, keep_for: float) -> None:
        self._rows("append_audit", kind=entry.kind, entry=entry.to_json(), keep=keep, keep_for=keep_for)

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

    def blocks(self) -> list[Block]:
        return [Block.from_row(**row) for row in self._rows("blocks")]

    def put_block(self, block: Block) -> None:
        self._rows("put_block", id=block.id, body=block.to_json())

    def delete_block(self, block_id: str) -> None:
        self._rows("delete_block", id=block_id)

    def unpark(self, block_id: str, *, limit: int, reason: str) -> list[str]:
        return [row["id"] for row in self._rows("unpark", parked_on=block_id, limit=limit, reason=reason)]

    def limit_values(self) -> list[LimitValue]:
        return [limit_value_of(row) for row in self._rows("limit_values")]

    def delete_limit(self, key: str) -> None:
        self._rows("delete_limit", key=key)

    def free_slots(self, key: str, *, way: Way, limit: int) -> Freed:
        found = self._rows("is_waited_for", key=key, parked_on=PARKED_BY_LIMIT + key)
        return self._free_slots(key, way, limit, found[0]["room"]) if found else Freed([])  # mostly nobody waits

    @abstractmethod
    def _free_slots(self, key: str, way: Way, limit: int, room: int | None) -> Freed:
        """Free the slots of a key on which jobs are parked; `room`: how many are free, None if that is not known."""

    def due_limits(self) -> tuple[list[str], float | None]:
        keys, seconds = [], self._next_alarm()
        if seconds is not None and seconds <= 0:
            keys, seconds = sorted(row["key"] for row in self._rows("take_alarms")), self._next_alarm()
        return keys, seconds

    def _next_alarm(self) -> float | None:
        seconds: float | None = self._rows("next_alarm")[0]["seconds"]
        return seconds

    def limit_uses(self, *, limit: int) -> list[LimitUse]:
        rows = self._search_rows("limit_uses", limit=limit, listed=LISTED_HOLDERS)
        return [_limit_use_of(row) for row in rows]

    def limit_use(self, key: str) -> LimitUse:
        values = {"key": key, "name": name_of(key), "parked_on": PARKED_BY_LIMIT + key, "listed": LISTED_HOLDERS}
        return _limit_use_of(self._rows("limit_use", **values)[0])

    def parked_before(self, job: JobRow) -> int:
        if job.parked_on is None:
            return 0
        place = {"priority_rank": job.priority_rank, "created_at": job.created_at, "id": job.id}
        return int(self._rows("parked_before", parked_on=job.parked_on, **place)[0]["number"])

    # --- the store as a broker: the messages that are no jobs, in queues that are rows --------------------------------

    def put_messages(self, messages: Sequence[NewMessage], *, durable: bool = True, wake: bool = True) -> list[str]:
        given = [{"position": position, **values_of(each)} for position, each in enumerate(messages)]
        rows = self._rows("put_messages", messages=to_json(given), durable=durable, wake=wake)
        return sorted({row["queue"] for row in rows})

    def delete_messages(self, ids: Sequence[int], *, consumer: str) -> None:
        self._rows("delete_messages", ids=self._encode(ids), consumer=consumer)

    def release_messages(self, ids: Sequence[int], *, consumer: str) -> None:
        self._rows("release_messages", ids=self._encode(ids), consumer=consumer)

    def renew_messages(self, ids: Sequence[int], queues: Sequence[str], *, consumer: str, hold: float) -> None:
        values = {"ids": self._encode(ids), "queues": self._encode(queues), "consumer": consumer, "hold": hold}
        self._rows("renew_messages", **values, forgotten_after=FORGOTTEN_AFTER)

    def declare_queue(self, name: str, *, expires_after: float | None, message_ttl: float | None) -> None:
        self._rows("declare_queue", name=name, expires_after=expires_after, message_ttl=message_ttl)

    def bind_queue(self, name: str, exchange: str, routing_key: str, pattern: str | None) -> None:
        self._rows("bind_queue", name=name, exchange=exchange, routing_key=routing_key, pattern=pattern)

    def unbind_queue(self, name: str, exchange: str, routing_key: str) -> None:
        self._rows("unbind_queue", name=name, exchange=exchange, routing_key=routing_key)

    def bindings(self, exchange: str | None = None) -> list[tuple[str, str, str]]:
        rows = self._rows("bindings", exchange=exchange)
        return [(row["exchange"], row["routing_key"], row["queue"]) for row in rows]

    def queue_size(self, name: str) -> int | None:
        rows = self._rows("queue_size", name=name)
        return rows[0]["size"] if rows else None

    def delete_queue(self, name: str) -> None:
        self._rows("delete_queue", name=name)
