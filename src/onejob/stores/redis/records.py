"""The records besides jobs: duplicates and their sums, results, metrics, heartbeats, webhook events, the audit log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from onejob.jobs.audit_entries import AUDIT_KINDS, AuditEntry
from onejob.jobs.blocks import Block
from onejob.jobs.metric_buckets import NO_AMOUNTS, Bucket, Period
from onejob.jobs.model import REDELIVERED, Duplicate, DuplicateCount
from onejob.jobs.schedule_state import ScheduleState
from onejob.jobs.workers import UNREGISTERED, Registration, WorkerInfo
from onejob.stores.protocol import DUPLICATE_LIMIT, SUBMITTER_LIMIT, GroupBy
from onejob.stores.redis.client import Part, pages_of, pairs_of
from onejob.stores.redis.rows import POSITIONS
from onejob.stores.redis.submission import ORIGIN, origin_of

FACTS = ("at", "outcome", "arguments_differ", "rescheduled", "answered_by")
"""The fields in the second element of a stored duplicate, separated by spaces. The first is the submission's nonce."""
SCAN_COUNT = "1000"
"""About how many counts of duplicates one request reads."""
Group: TypeAlias = "tuple[str, str, str]"
"""The name, the task and the outcome of a group of duplicates."""


class Records(Part):
    """The part of the store that keeps the records which are not jobs."""

    def record(self, duplicate: Duplicate, *, also: Sequence[str] = ()) -> None:
        keys, job_id = self._keys, duplicate.job_id
        script_keys = (keys.job(job_id), keys.duplicates(job_id), keys.duplicate_counts, keys.duplicate_sums)
        counted_as = duplicate.outcome if duplicate.submission_nonce else REDELIVERED
        values = (
            job_id, duplicate.outcome, duplicate.answered_by, "1" if duplicate.arguments_differ else "0",
            "1" if duplicate.rescheduled else "0", origin_of(duplicate), duplicate.submitter, counted_as,
            str(SUBMITTER_LIMIT), duplicate.submission_nonce, *also,
        )  # fmt: skip
        self._client.call("record", script_keys, values)

    def duplicates(self, job_id: str) -> list[Duplicate]:
        flat, redelivery = self._client.read(
            ("LRANGE", self._keys.duplicates(job_id), str(-3 * DUPLICATE_LIMIT), "-1"),
            ("LINDEX", self._keys.job(job_id), str(-POSITIONS["redelivery"])),
        )
        elements = list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
        if redelivery:
            elements.append(("", *json.loads(redelivery)))
        return [_parse_duplicate(job_id, *each) for each in elements]

    def duplicate_counts(
        self, by: GroupBy, *, limit: int, submitter: str | None = None, tasks: frozenset[str] | None = None
    ) -> list[DuplicateCount]:
        """Return the counts of duplicates. All are read, because a hash has no order."""
        counted = self._counts_of_jobs() if by is GroupBy.IDENTITY else self._sums_of_tasks(by)
        return _largest_groups(
            [
                (group, count)
                for group, of_submitter, count in counted
                if submitter in {None, of_submitter} and (tasks is None or group[1] in tasks)
            ],
            limit,
        )

    def _counts_of_jobs(self) -> Iterator[tuple[Group, str, int]]:
        """Yield the counts of the identities of jobs, each with the submitter of its job."""
        found = [(field.split(" ", 1), int(count)) for field, count in self._scan(self._keys.duplicate_counts).items()]
        jobs = {job.id: job for job in self._read_jobs([job_id for (_, job_id), _ in found], light=True)}
        for (outcome, job_id), count in found:
            job = jobs.get(job_id)
            if job is not None:  # None: it was deleted meanwhile
                yield (job.identity, job.task, outcome), job.submitter, count

    def _sums_of_tasks(self, by: GroupBy) -> Iterator[tuple[Group, str, int]]:
        """Yield the counts of tasks or submitters, with the submitters of the duplicates."""
        for field, count in self._scan(self._keys.duplicate_sums).items():
            task, *of_submitter = json.loads(field)
            if of_submitter:  # else it is the number of the task's sums
                submitter, outcome = of_submitter
                yield (task if by is GroupBy.TASK else submitter, task, outcome), submitter, int(count)

    def _scan(self, key: str) -> dict[str, str]:
        found: dict[str, str] = {}
        cursor = None
        while cursor != "0":
            ((next_cursor, page),) = self._client.read(("HSCAN", key, cursor or "0", "COUNT", SCAN_COUNT))
            found |= pairs_of(page)
            cursor = str(next_cursor)
        return found

    def keep_event(self, event_id: str, body: str | None, *, keep_for: float) -> str | None:
        values = (str(keep_for), *(() if body is None else (body,)))
        kept: str | None = self._client.call("keep_event", (self._keys.event(event_id),), values)
        return kept

    def put_result(self, name: str, body: str, *, keep_for: float) -> None:
        self._client.call("put_result", (self._keys.result(name),), (str(keep_for), body))

    def results(self, names: Sequence[str]) -> dict[str, str]:
        bodies = self._client.call("results", tuple(map(self._keys.result, names))) if names else ()
        return {name: body for name, body in zip(names, bodies, strict=True) if body}

    def delete_result(self, name: str) -> None:
        self._client.call("delete_result", (self._keys.result(name),))

    def append_audit(self, entry: AuditEntry, *, keep: int, keep_for: float) -> None:
        audit = self._keys.audit
        script_keys = (audit[entry.kind], *(audit[kind] for kind in AUDIT_KINDS if kind != entry.kind))
        self._client.call("append_audit", script_keys, (entry.to_json(), str(keep), str(keep_for)))

    def audit(self, *, limit: int, before: int | None, keep_for: float) -> list[AuditEntry]:
        values = ("" if before is None else str(before), str(limit), str(keep_for))
        texts = self._client.call("audit", tuple(self._keys.audit.values()), values)
        found = [AuditEntry.from_row(*text.split(" ", 2)) for text in texts]
        return sorted(found, key=lambda entry: entry.id, reverse=True)[:limit]

    def schedules(self) -> list[ScheduleState]:
        (found,) = self._client.read(("HGETALL", self._keys.schedules))
        return [ScheduleState.from_row(name, *text.split(" ", 1)) for name, text in sorted(pairs_of(found).items())]

    def put_schedule(self, state: ScheduleState, *, expected: str) -> bool:
        values = (state.name, state.nonce, state.to_json(), expected)
        return self._client.call("put_schedule", (self._keys.schedules,), values) is not None

    def delete_schedule(self, name: str, *, expected: str) -> None:
        self._client.call("delete_schedule", (self._keys.schedules,), (name, expected))

    def blocks(self) -> list[Block]:
        (found,) = self._client.read(("HGETALL", self._keys.blocks))
        return [Block.from_row(block_id, body) for block_id, body in sorted(pairs_of(found).items())]

    def put_block(self, block: Block) -> None:
        self._client.call("put_block", (self._keys.blocks,), (block.id, block.to_json()))

    def delete_block(self, block_id: str) -> None:
        self._client.call("delete_block", (self._keys.blocks,), (block_id,))

    def unpark(self, block_id: str, *, limit: int, reason: str) -> list[str]:
        while True:
            (ids,) = self._client.read(("ZRANGE", self._keys.parked(block_id), "0", str(limit - 1)))
            unparked = []
            for page in pages_of(ids):
                script_keys = (*self._keys.wake_sets, *map(self._keys.job, page))
                unparked += self._client.call("unpark", script_keys, (block_id, reason, *page))
            if unparked or not ids:  # else all of them had changed meanwhile
                return unparked

    def increment(self, amounts: Mapping[str, float], *, recent: Mapping[str, float] = NO_AMOUNTS) -> None:
        periods = [str(seconds) for period in Period for seconds in (period.seconds, period.kept_for)]
        totals = _flatten(amounts)
        script_keys = (self._keys.metrics, *self._keys.buckets.values())
        self._client.call("increment", script_keys, (*periods, str(len(totals)), *totals, *_flatten(recent)))

    def totals(self) -> dict[str, float]:
        (found,) = self._client.read(("HGETALL", self._keys.metrics))
        return _parse_amounts(found)

    def series(self, period: Period, *, since: float) -> list[Bucket]:
        values = (str(period.seconds), str(period.kept_for), repr(float(since)))
        flat = self._client.call("series", (self._keys.buckets[period],), values)
        return [Bucket(float(start), _parse_amounts(found)) for start, found in zip(flat[::2], flat[1::2], strict=True)]

    def heartbeat(self, node: str, *, lasts: float, registration: Registration = UNREGISTERED) -> None:
        script_keys = (self._keys.workers, self._keys.registrations)
        self._client.call("heartbeat", script_keys, (node, str(lasts), registration.to_json()))

    def workers(self) -> list[WorkerInfo]:
        return self._list_workers("workers")

    def take_dead_workers(self) -> list[WorkerInfo]:
        return self._list_workers("take_dead_workers")

    def _list_workers(self, script: str) -> list[WorkerInfo]:
        flat = self._client.call(script, (self._keys.workers, self._keys.registrations))
        rows = sorted(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
        return [WorkerInfo.from_row(*row) for row in rows]


def _flatten(amounts: Mapping[str, float]) -> list[str]:
    return [text for name, amount in amounts.items() for text in (name, repr(float(amount)))]


def _parse_amounts(flat: Sequence[str]) -> dict[str, float]:
    return {name: float(amount) for name, amount in pairs_of(flat).items()}


def _parse_duplicate(job_id: str, nonce: str, facts: str, origin: str) -> Duplicate:
    row = dict(zip((*FACTS, *ORIGIN), (*facts.split(" ", len(FACTS) - 1), *json.loads(origin)), strict=True))
    flags = {name: row[name] == "1" for name in ("arguments_differ", "rescheduled")}
    return Duplicate.from_row(row | flags | {"job_id": job_id, "submission_nonce": nonce})


def _largest_groups(found: Sequence[tuple[Group, int]], limit: int) -> list[DuplicateCount]:
    counts, totals = Counter[Group](), Counter[str]()
    for group, count in found:
        name, _, outcome = group
        counts[group] += count
        totals[name] += 0 if outcome == REDELIVERED else count
    largest = sorted(totals, key=lambda name: (-totals[name], name))[:limit]
    rank = {name: number for number, name in enumerate(largest)}
    groups = sorted((group for group in counts if group[0] in rank), key=lambda group: (rank[group[0]], group))
    return [DuplicateCount.from_row(*group, counts[group]) for group in groups]
