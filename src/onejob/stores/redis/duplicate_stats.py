"""The duplicates of a job, of which the newest are kept, and the statistics of all duplicates."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

from onejob.jobs.model import Duplicate, values_of
from onejob.jobs.records import REDELIVERED, DuplicateCount
from onejob.stores.protocol import DUPLICATE_LIMIT, OTHER_SUBMITTERS, SUBMITTER_LIMIT, GroupBy
from onejob.stores.redis.operations import PAGE_SIZE, Call, Operation, Read

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onejob.stores.redis.keys import Keys

COLUMNS = (
    "submission_nonce",
    "at",
    "outcome",
    "answered_by",
    "source",
    "submitter",
    "host",
    "fingerprint",
    "arguments_differ",
    "rescheduled",
)
"""The elements of a stored duplicate (a JSON array), in this order."""
SCAN_COUNT = "1000"
"""About how many counts one request reads."""
SUM_FIELDS = 4
"""Task, submitter, outcome and count."""
Group: TypeAlias = "tuple[tuple[str, str, str], int]"
"""Name, task and outcome; and how many duplicates."""
Matches: TypeAlias = "Callable[[str, str], bool]"
"""Decides by submitter and task whether duplicates are counted."""


def record(keys: Keys, duplicate: Duplicate, *, also: Sequence[str] = ()) -> Operation[None]:
    """Store duplicates of a job that differ only by their nonces."""
    job_id = duplicate.job_id
    script_keys = (keys.job(job_id), keys.duplicates(job_id), keys.duplicate_counts, keys.duplicate_sums)
    nonces = json.dumps([duplicate.submission_nonce, *also])
    limits = {
        "duplicate_limit": DUPLICATE_LIMIT, "submitter_limit": SUBMITTER_LIMIT, "other_submitters": OTHER_SUBMITTERS,
    }  # fmt: skip
    counted_as = duplicate.outcome if duplicate.submission_nonce else REDELIVERED
    yield Call("record", script_keys, values_of(duplicate) | limits | {"submissions": nonces, "counted_as": counted_as})


def duplicates(keys: Keys, job_id: str) -> Operation[list[Duplicate]]:
    """Return the newest duplicates of a job, oldest first."""
    (elements,) = yield Read([("LRANGE", keys.duplicates(job_id), "0", "-1")])
    return [_parse_duplicate(job_id, element) for element in elements]


def _parse_duplicate(job_id: str, element: str) -> Duplicate:
    row = dict(zip(COLUMNS, json.loads(element), strict=True))
    flags = {name: row[name] == "1" for name in ("arguments_differ", "rescheduled")}
    return Duplicate.from_row(row | flags | {"job_id": job_id})


def duplicate_counts(
    keys: Keys, by: GroupBy, *, limit: int, submitter: str | None = None, tasks: frozenset[str] | None = None
) -> Operation[list[DuplicateCount]]:
    """Return the counts of duplicates. All are read, because a hash has no order."""

    def matches(of_submitter: str, task: str) -> bool:
        return submitter in {None, of_submitter} and (tasks is None or task in tasks)

    if by is GroupBy.IDENTITY:
        groups = yield from _counts_by_identity(keys, matches)
    else:
        groups = _parse_sums((yield from _scan(keys.duplicate_sums)), by, matches)
    return _largest_groups(groups, limit)


def _scan(key: str) -> Operation[dict[str, str]]:
    found: dict[str, str] = {}
    cursor = None
    while cursor != "0":
        ((next_cursor, page),) = yield Read([("HSCAN", key, cursor or "0", "COUNT", SCAN_COUNT)])
        found |= page
        cursor = str(next_cursor)
    return found


def _parse_sums(found: dict[str, str], by: GroupBy, matches: Matches) -> list[Group]:
    fields = [(*json.loads(field), int(count)) for field, count in found.items()]
    sums = [field for field in fields if len(field) == SUM_FIELDS]  # not the number of a task's sums
    return [
        ((task if by is GroupBy.TASK else submitter, task, outcome), count)
        for task, submitter, outcome, count in sums
        if matches(submitter, task)
    ]


def _counts_by_identity(keys: Keys, matches: Matches) -> Operation[list[Group]]:
    found = yield from _scan(keys.duplicate_counts)
    counts = [(field.split(" ", 1), int(count)) for field, count in found.items()]
    groups: list[Group] = []
    for start in range(0, len(counts), PAGE_SIZE):
        page = counts[start : start + PAGE_SIZE]
        rows = yield Read([("HMGET", keys.job(job_id), "identity", "task", "submitter") for (_, job_id), _ in page])
        for ((outcome, _), count), (identity, task, submitter) in zip(page, rows, strict=True):
            if identity is not None and matches(submitter or "", task):  # None: it was deleted meanwhile
                groups.append(((identity, task, outcome), count))
    return groups


def _largest_groups(found: Sequence[Group], limit: int) -> list[DuplicateCount]:
    counts: dict[tuple[str, str, str], int] = defaultdict(int)
    totals: dict[str, int] = defaultdict(int)
    for group, count in found:
        name, _, outcome = group
        counts[group] += count
        totals[name] += 0 if outcome == REDELIVERED else count
    largest = sorted(totals, key=lambda name: (-totals[name], name))[:limit]
    rank = {name: number for number, name in enumerate(largest)}
    groups = sorted((group for group in counts if group[0] in rank), key=lambda group: (rank[group[0]], group))
    return [DuplicateCount.from_row(*group, counts[group]) for group in groups]
