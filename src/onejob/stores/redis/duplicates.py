"""Who has met a job: the duplicates that are kept there, and the tallies of all that ever were."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING

from onejob.jobs.model import Duplicate, DuplicateCount, Outcome, values_of
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
"""What a duplicate's line holds, in this order."""
TALLIES = "1000"
"""About how many tallies one request reads."""


def record(keys: Keys, duplicate: Duplicate, *, also: Sequence[str] = ()) -> Operation[None]:
    """Keep the duplicates of those who have met a job."""
    job_id = duplicate.job_id
    touched = (keys.job(job_id), keys.duplicates(job_id), keys.duplicate_counts, keys.wake)
    yield Call(
        "record",
        touched,
        values_of(duplicate)
        | {"submissions": json.dumps([duplicate.submission_nonce, *also]), "duplicate_limit": DUPLICATE_LIMIT},
    )


def duplicates(keys: Keys, job_id: str) -> Operation[list[Duplicate]]:
    """Return the newest duplicates of a job."""
    (lines,) = yield Read([("LRANGE", keys.duplicates(job_id), "0", "-1")])
    return [_duplicate(job_id, line) for line in lines]


def _duplicate(job_id: str, line: str) -> Duplicate:
    row = dict(zip(COLUMNS, json.loads(line), strict=True))
    return Duplicate.from_row(
        row
        | {
            "job_id": job_id,
            "arguments_differ": row["arguments_differ"] == "1",
            "rescheduled": row["rescheduled"] == "1",
        }
    )


def duplicate_counts(keys: Keys, by: GroupBy, *, limit: int) -> Operation[list[DuplicateCount]]:
    """Return how many have met jobs. All tallies are read: they are in no order."""
    found: dict[str, str] = {}
    cursor = "0"
    while True:
        ((after, page),) = yield Read([("HSCAN", keys.duplicate_counts, cursor, "COUNT", TALLIES)])
        found |= page
        cursor = str(after)
        if cursor == "0":
            return _most(found, by, limit)


def _most(found: dict[str, str], by: GroupBy, limit: int) -> list[DuplicateCount]:
    counts: dict[tuple[str, str, str], int] = defaultdict(int)
    totals: dict[str, int] = defaultdict(int)
    for kind, count in found.items():
        task, identity, submitter, outcome = json.loads(kind)
        name = {GroupBy.TASK: task, GroupBy.IDENTITY: identity, GroupBy.SUBMITTER: submitter}[by]
        counts[name, task, outcome] += int(count)
        totals[name] += int(count)
    first = sorted(totals, key=lambda name: (-totals[name], name))[:limit]
    place = {name: number for number, name in enumerate(first)}
    kinds = sorted((kind for kind in counts if kind[0] in place), key=lambda kind: (place[kind[0]], kind))
    return [DuplicateCount(name, task, Outcome(outcome), counts[name, task, outcome]) for name, task, outcome in kinds]
