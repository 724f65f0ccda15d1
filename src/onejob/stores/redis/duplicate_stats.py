"""The duplicates of a job, of which the newest are kept, and the statistics of all duplicates."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING

from onejob.jobs.model import Duplicate, Outcome, values_of
from onejob.jobs.records import DuplicateCount
from onejob.stores.protocol import DUPLICATE_LIMIT, GroupBy
from onejob.stores.redis.operations import Call, Operation, Read

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def record(keys: Keys, duplicate: Duplicate, *, also: Sequence[str] = ()) -> Operation[None]:
    """Store duplicates of a job that differ only by their nonces."""
    job_id = duplicate.job_id
    script_keys = (keys.job(job_id), keys.duplicates(job_id), keys.duplicate_stats, keys.wake)
    nonces = json.dumps([duplicate.submission_nonce, *also])
    values = values_of(duplicate) | {"submissions": nonces, "duplicate_limit": DUPLICATE_LIMIT}
    yield Call("record", script_keys, values)


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
    """Return the counts of duplicates. All are read, because the hash has no order."""
    found: dict[str, str] = {}
    cursor = "0"
    while True:
        ((next_cursor, page),) = yield Read([("HSCAN", keys.duplicate_stats, cursor, "COUNT", SCAN_COUNT)])
        found |= page
        cursor = str(next_cursor)
        if cursor == "0":
            matching = [
                (field, int(count))
                for field, count in ((json.loads(field), count) for field, count in found.items())
                if submitter in {None, field[2]} and (tasks is None or field[0] in tasks)
            ]
            return _largest_groups(matching, by, limit)


def _largest_groups(found: list[tuple[list[str], int]], by: GroupBy, limit: int) -> list[DuplicateCount]:
    counts: dict[tuple[str, str, str], int] = defaultdict(int)
    totals: dict[str, int] = defaultdict(int)
    for (task, identity, submitter, outcome), count in found:
        name = {GroupBy.TASK: task, GroupBy.IDENTITY: identity, GroupBy.SUBMITTER: submitter}[by]
        counts[name, task, outcome] += count
        totals[name] += count
    largest = sorted(totals, key=lambda name: (-totals[name], name))[:limit]
    rank = {name: number for number, name in enumerate(largest)}
    groups = sorted((group for group in counts if group[0] in rank), key=lambda group: (rank[group[0]], group))
    return [DuplicateCount(name, task, Outcome(outcome), counts[name, task, outcome]) for name, task, outcome in groups]
