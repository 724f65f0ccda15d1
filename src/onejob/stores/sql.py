"""What SQL stores have in common: jobs and changes as rows, and operations that are statements of the same names."""

# ruff: noqa: D102 - an operation is explained where it is promised: in the protocol

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter, itemgetter
from typing import Any

from onejob.jobs import records
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Cancel, Change, Duplicate, Job, values_of
from onejob.stores.protocol import FORGOTTEN_AFTER, GroupBy, indexed_state, is_indexed

COLUMNS = tuple(field.name for field in fields(Job))
_TYPES = [str(field.type) for field in fields(Job)]
_CONVERTERS: dict[str, Callable[[Any], object]] = {
    "State": {state.value: state for state in State}.__getitem__,  # at a fraction of the cost of State(value)
    "Cancel": {cancel.value: cancel for cancel in Cancel}.__getitem__,
    "bool": bool,
}
"""The types of fields that a row has in another form, and that are not None."""
_CONVERTED = [(index, _CONVERTERS[kind]) for index, kind in enumerate(_TYPES) if kind in _CONVERTERS]
_OPTIONAL_TEXTS = [index for index, kind in enumerate(_TYPES) if kind == "str | None"]
_by_column = itemgetter(*COLUMNS)

_COMPLETION = (
    "job_id", "request_id", "token", "keeps_identity", "identity_for", "identity_until", "wake_after", "published",
    "publish_error", "result", "reason",
)  # fmt: skip
"""The fields of a change that `complete.sql` applies, besides its target."""
_OTHERS = {
    each.name: each.default
    for each in fields(Change)
    if each.name not in {*_COMPLETION, "target", "identity", "event", "sources", "ends", "detail"}
}
_completion, _others = attrgetter(*_COMPLETION), attrgetter(*_OTHERS)
_NO_OTHERS = tuple(_OTHERS.values())


def job_of(row: Sequence[Any]) -> Job:
    """Return the job of a row that has its fields in their order."""
    values = list(row)
    for index, convert in _CONVERTED:
        values[index] = convert(values[index])
    for index in _OPTIONAL_TEXTS:
        values[index] = values[index] or None
    return Job(**dict(zip(COLUMNS, values, strict=True)))


def job_in(row: Mapping[str, Any]) -> Job:
    """Return the job of a row by column, which may have other columns, too."""
    return job_of(_by_column(row))


def completion_of(change: Change) -> dict[str, Any] | None:
    """Return the values for `complete.sql`; None for a change that does more than every completion of a run."""
    only_ends = change.ends and change.token and records.row_implies_entry(change) and _others(change) == _NO_OTHERS
    if not only_ends or change.target is None:
        return None
    return dict(zip(_COMPLETION, _completion(change), strict=True)) | {"target": change.target.value}


to_json = json.JSONEncoder(ensure_ascii=False).encode
"""Returns JSON for a statement: PostgreSQL reads no escapes where a database has no encoding."""


class SQLStore(ABC):
    """A part of a store in a SQL database. The operations are documented in `onejob.stores.protocol`."""

    _lists_submitters = False
    """Whether the statements that list and count have a variant for the index of submitters."""

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
        """Execute the statement of an operation, or its several ones in one transaction; return the rows by column."""

    @abstractmethod
    def _jobs(self, statement: str, /, **values: Any) -> list[Job]:
        """Execute a statement as a transaction, and return its jobs."""

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

    def deliver(self, queues: Collection[str], *, limit: int, refused: Collection[str] = ()) -> list[Job]:
        jobs = self._jobs("deliver", queues=self._names(queues), refused=self._names(refused), limit=limit)
        return sorted(jobs, key=lambda job: (-job.priority_rank, job.run_at))

    def next_delivery(self, queues: Collection[str], *, refused: Collection[str] = ()) -> float | None:
        rows = self._rows("next_delivery", queues=self._names(queues), refused=self._names(refused))
        seconds: float | None = rows[0]["seconds"]
        return seconds

    def take_due(self, *, tasks: frozenset[str], limit: int, hold: float, expired_runs: bool = True) -> list[Job]:
        return self._jobs("take_due", tasks=self._names(tasks), limit=limit, hold=hold, expired_runs=expired_runs)

    # --- queries ------------------------------------------------------------------------------------------------------

    def get_many(self, job_ids: Sequence[str]) -> dict[str, Job]:
        if len(job_ids) == 1:  # the usual number
            jobs = self._jobs("get", job_id=job_ids[0])
        else:
            jobs = self._jobs("get_many", job_ids=self._encode(job_ids))
        return {job.id: job for job in jobs}

    def find_existing(self, identity: str, key: str | None) -> Job | None:
        return next(iter(self._jobs("find_existing", identity=identity, key=key)), None)

    def find(self, query: records.Query) -> list[Job]:
        return self._jobs(self._narrowed("find_light" if query.light else "find", query), **self._filters(query))

    def counts(self, query: records.Query, *, limit: int | None = None) -> dict[State, int]:
        name = self._narrowed("count_jobs" if limit is None else "count_newest", query)
        rows = self._rows(name, **(self._filters(query) | {"limit": limit}))
        return {State(row["state"]): row["count"] for row in rows}

    def count_states(self, *, limit: int) -> dict[State, int]:
        (row,) = self._rows("count_states", limit=limit)
        return {state: min(max(row[state], 0), limit) for state in State}

    def is_indexed(self, query: records.Query) -> bool:
        return is_indexed(query, of_submitter=True)

    def edge(self, query: records.Query, *, skip: int) -> float | None:
        rows = self._rows("edge", **self._filters(query), skip=skip)
        return rows[0]["created_at"] if rows else None

    def backlog(self, *, tasks: frozenset[str], limit: int, submitter: str | None = None) -> list[records.Backlog]:
        rows = self._rows("backlog", tasks=self._names(tasks), limit=limit, submitter=submitter)
        return records.group_backlog(row.values() for row in rows)

    def followers(self, job_id: str, *, limit: int) -> list[Job]:
        return self._jobs("followers", job_id=job_id, limit=limit)

    def tombstone(self, job_id: str) -> records.Tombstone | None:
        rows = self._rows("tombstone", job_id=job_id)
        return records.Tombstone.from_row(rows[0]) if rows else None

    def duplicates(self, job_id: str) -> list[Duplicate]:
        return [Duplicate.from_row(row) for row in self._rows("duplicates", job_id=job_id)]

    def duplicate_counts(
        self, by: GroupBy, *, limit: int, submitter: str | None = None, tasks: frozenset[str] | None = None
    ) -> list[records.DuplicateCount]:
        rows = self._rows("list_stats", by=by.value, limit=limit, submitter=submitter, tasks=self._names(tasks))
        return [records.DuplicateCount.from_row(**row) for row in rows]

    def _narrowed(self, name: str, query: records.Query) -> str:
        """Return the variant of a statement for the index that finds the jobs of a query, if there is one."""
        state = indexed_state(query)
        variant = None if state is None else "of_state"
        if state is State.RUNNING:
            variant = "of_runs"
        elif query.submitter and self._lists_submitters:
            variant = "of_submitter"
        return name if variant is None else f"{name}_{variant}"

    def _filters(self, query: records.Query) -> dict[str, Any]:
        state = indexed_state(query)
        states = self._encode(sorted(each.value for each in query.states))
        return values_of(query) | {"states": states, "tasks": self._names(query.tasks), "state": state and state.value}

    def _names(self, names: Collection[str] | None) -> Any:
        return None if names is None else self._encode(sorted(names))

    # --- what processes share besides jobs ----------------------------------------------------------------------------

    def heartbeat(self, node: str, *, lasts: float, registration: records.Registration = records.UNREGISTERED) -> None:
        name = "heartbeat" if lasts > 0 else "delete_worker"
        self._rows(name, node=node, lasts=lasts, registration=registration.to_json())

    def workers(self) -> list[records.WorkerInfo]:
        return [records.WorkerInfo.from_row(**row) for row in self._rows("workers")]

    def take_dead_workers(self) -> list[records.WorkerInfo]:
        return [records.WorkerInfo.from_row(**row) for row in self._rows("take_dead_workers")]

    def totals(self) -> dict[str, float]:
        return {row["name"]: row["total"] for row in self._rows("totals")}

    def series(self, period: records.Period, *, since: float) -> list[records.Bucket]:
        found: dict[float, dict[str, float]] = {}
        for row in self._rows("series", period=period.seconds, kept_for=period.kept_for, since=since):
            found.setdefault(row["starts_at"], {})[row["name"]] = row["amount"]
        return [records.Bucket(start, amounts) for start, amounts in found.items()]

    def keep_event(self, event_id: str, body: str | None, *, keep_for: float) -> str | None:
        rows = self._rows("keep_event", id=event_id, body=body, keep_for=keep_for)
        return str(rows[0]["body"]) if rows else None

    def put_result(self, name: str, body: str, *, keep_for: float) -> None:
        self._rows("put_result", name=name, body=body, keep_for=keep_for)

    def results(self, names: Sequence[str]) -> dict[str, str]:
        return {row["name"]: row["body"] for row in self._rows("results", names=self._encode(names))}

    def delete_result(self, name: str) -> None:
        self._rows("delete_result", name=name)

    def append_audit(self, entry: records.AuditEntry, *, keep: int, keep_for: float) -> None:
        self._rows("append_audit", kind=entry.kind, entry=entry.to_json(), keep=keep, keep_for=keep_for)

    def audit(self, *, limit: int, before: int | None, keep_for: float) -> list[records.AuditEntry]:
        rows = self._rows("audit", limit=limit, before=before, keep_for=keep_for)
        return [records.AuditEntry.from_row(**row) for row in rows]

    def schedules(self) -> list[records.ScheduleState]:
        return [records.ScheduleState.from_row(**row) for row in self._rows("schedules")]

    def put_schedule(self, state: records.ScheduleState, *, expected: str) -> bool:
        values = {"name": state.name, "nonce": state.nonce, "state": state.to_json()}
        return bool(self._rows("put_schedule", expected=expected, **values))

    def delete_schedule(self, name: str, *, expected: str) -> None:
        self._rows("delete_schedule", name=name, expected=expected)

    # --- the store as a broker: the messages that are no jobs, in queues that are rows --------------------------------

    def put_messages(
        self, messages: Sequence[records.NewMessage], *, durable: bool = True, wake: bool = True
    ) -> list[str]:
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
