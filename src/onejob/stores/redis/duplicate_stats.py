"""The duplicates of a job, of which the newest are kept, and the statistics of all duplicates."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from onejob.jobs.model import Duplicate
from onejob.jobs.records import REDELIVERED, DuplicateCount
from onejob.stores.protocol import DUPLICATE_LIMIT, SUBMITTER_LIMIT, GroupBy
from onejob.stores.redis.operations import Call, Operation, Read, get_many, pairs_of
from onejob.stores.redis.row import POSITIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onejob.jobs.model import Submission
    from onejob.stores.redis.keys import Keys

FACTS = ("at", "outcome", "arguments_differ", "rescheduled", "answered_by")
"""The second element of a stored duplicate, separated by spaces. The first is the nonce of the submission."""
ORIGIN = ("source", "submitter", "host", "fingerprint")
"""The third element: a JSON array that only clients read."""
_origin_values = attrgetter(*ORIGIN)
SCAN_COUNT = "1000"
"""About how many counts one request reads."""
SUM_FIELDS = 4
"""Task, submitter, outcome and count."""
Group: TypeAlias = "tuple[tuple[str, str, str], int]"
"""Name, task and outcome; and how many duplicates."""
Matches: TypeAlias = "Callable[[str, str], bool]"
"""Decides by submitter and task whether duplicates are counted."""


def origin_of(submission: Submission | Duplicate) -> str:
    """Return what a duplicate records of its submission, as JSON."""
    return _write_origin(_origin_values(submission))


@lru_cache(1024)
def _write_origin(values: tuple[str, ...]) -> str:
    """Return the values of `ORIGIN` as JSON: a submitter asks for the same again."""
    return json.dumps(values, separators=(",", ":"))


def record(keys: Keys, duplicate: Duplicate, *, also: Sequence[str] = ()) -> Operation[None]:
    """Store duplicates of a job that differ only by their nonces."""
    job_id = duplicate.job_id
    script_keys = (keys.job(job_id), keys.duplicates(job_id), keys.duplicate_counts, keys.duplicate_sums)
    counted_as = duplicate.outcome if duplicate.submission_nonce else REDELIVERED
    values = (
        job_id, duplicate.outcome, duplicate.answered_by, "1" if duplicate.arguments_differ else "0",
        "1" if duplicate.rescheduled else "0", origin_of(duplicate), duplicate.submitter, counted_as,
        str(SUBMITTER_LIMIT), duplicate.submission_nonce, *also,
    )  # fmt: skip
    yield Call("record", script_keys, values)


def duplicates(keys: Keys, job_id: str) -> Operation[list[Duplicate]]:
    """Return the newest duplicates of a job, oldest first, and then the latest redelivery."""
    redelivery_index = str(-POSITIONS["redelivery"])
    flat, redelivery = yield Read(
        [
            ("LRANGE", keys.duplicates(job_id), str(-3 * DUPLICATE_LIMIT), "-1"),
            ("LINDEX", keys.job(job_id), redelivery_index),
        ]
    )
    elements = list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
    if redelivery:
        elements.append(("", *json.loads(redelivery)))
    return [_parse_duplicate(job_id, *each) for each in elements]


def _parse_duplicate(job_id: str, nonce: str, facts: str, origin: str) -> Duplicate:
    row = dict(zip(FACTS, facts.split(" ", len(FACTS) - 1), strict=True)) | dict(
        zip(ORIGIN, json.loads(origin), strict=True)
    )
    flags = {name: row[name] == "1" for name in ("arguments_differ", "rescheduled")}
    return Duplicate.from_row(row | flags | {"job_id": job_id, "submission_nonce": nonce})


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
        found |= pairs_of(page)
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
    jobs = yield from get_many(keys, [job_id for (_, job_id), _ in counts], light=True)
    groups: list[Group] = []
    for (outcome, job_id), count in counts:
        job = jobs.get(job_id)
        if job is not None and matches(job.submitter, job.task):  # None: it was deleted meanwhile
            groups.append(((job.identity, job.task, outcome), count))
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
