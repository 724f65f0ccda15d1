"""Dead letters, the jobs that failed for good: their selections, and groups of similar errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from onejob.jobs.lifecycle import State
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.ledger.bulk import NO_LIMIT, Selection
from onejob.ledger.job_filters import query_of
from onejob.ledger.reader import JobReader
from onejob.ledger.search import read_window, windows
from onejob.ledger.stuck import is_follower

PLACEHOLDER = "…"
"""The text in a pattern that stands for a value that differs from job to job."""
PATTERN_LIMIT = 500
"""Characters of a message that are compared."""
GROUP_LIMIT = 100
"""The number of groups in a page or a response; further groups are counted. A client can cause one per job."""
SAMPLE_LIMIT = 20
"""The maximum number of ids in a group."""
_UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_QUOTED = r"(?<!\w)'[^']*'(?!\w)|\"[^\"]*\"|`[^`]*`"
_VARIABLE = re.compile(rf"{_QUOTED}|{_UUID}|0[xX][0-9a-fA-F]+|\b[0-9a-fA-F]{{8,}}\b|\d+(?:[.,:]\d+)*")


def dead_letters(filters: Mapping[str, Any], limit: int = NO_LIMIT) -> Query:
    """Return the query for the dead letters that match some of `FILTERS`, by name, newest first."""
    return query_of(filters, states=frozenset({State.FAILED}), limit=limit)


def select_dead_letters(
    *, job_ids: Sequence[str] = (), everything: bool = False, limit: int = NO_LIMIT, **filters: Any
) -> Selection:
    """Select dead letters by id or filters, or `everything`, up to `limit`. Raises `ValueError` for no choice."""
    has_filter = everything or any(filters.values())
    if not job_ids and not has_filter:
        raise ValueError("nothing selected: give job ids, a task, a part of the error, or select all (--all)")
    return Selection(job_ids=job_ids, query=dead_letters(filters, limit) if has_filter else None)


# --- groups of jobs of one task whose errors differ only by ids, numbers and quoted values ----------------------------


class GroupKey(NamedTuple):
    """The key of a group: its jobs have this task, error type and pattern in common."""

    task: str
    error_type: str
    """The name of the exception's class."""
    pattern: str
    """The message with `PLACEHOLDER` in place of ids, numbers and quoted texts."""


@dataclass(slots=True)
class FailureGroup:
    """The failed jobs with one key; `first_at` and `last_at` are times of their ends."""

    task: str
    error_type: str
    pattern: str
    message: str
    """The message of the job that failed last."""
    count: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    job_ids: list[str] = field(default_factory=list)
    """Some of its jobs, at most `SAMPLE_LIMIT`: the job that failed last, and then the newest."""
    since: float = 0.0
    """The time at which the oldest of its jobs was submitted."""

    @property
    def key(self) -> GroupKey:
        """The key of the group."""
        return GroupKey(self.task, self.error_type, self.pattern)

    def add(self, job: JobRow, message: str) -> None:
        """Count a job."""
        at = job.finished_at or job.created_at
        if not self.count or at > self.last_at:
            self.last_at, self.message, self.job_ids = at, message, [job.id, *self.job_ids][:SAMPLE_LIMIT]
        elif len(self.job_ids) < SAMPLE_LIMIT:
            self.job_ids.append(job.id)
        self.first_at = min(self.first_at, at) if self.count else at
        self.count += 1
        self.since = job.created_at  # jobs are added newest first


def group_failures(ledger: JobReader, *, task: str | None = None, limit: int = 10_000) -> list[FailureGroup]:
    """Return the groups of the newest `limit` dead letters; the group in which a job failed last is the first.

    Followers are in no group: they fail as the job that they follow.
    """
    return search_failures(ledger, task=task, limit=limit, is_over=lambda: False)[0]


def search_failures(
    ledger: JobReader, *, task: str | None, limit: int, is_over: Callable[[], bool]
) -> tuple[list[FailureGroup], float | None]:
    """Return the groups of the dead letters that were read until `is_over`, and the time back to which all were read.

    The time is None if all dead letters, or `limit`, were read.
    """
    groups: dict[GroupKey, FailureGroup] = {}
    searched_to: float | None = None
    left = limit
    for window, since in windows(ledger, Query(states=frozenset({State.FAILED}), task=task)):
        failed = (job for job in read_window(ledger, window) if not is_follower(job))
        for job in islice(failed, left):
            key, (_, message) = group_key(job), _error_of(job)
            groups.setdefault(key, FailureGroup(*key, message)).add(job, message)
            left -= 1
        if left == 0:
            break
        if since is not None and is_over():
            searched_to = since
            break
    return sorted(groups.values(), key=lambda group: group.last_at, reverse=True), searched_to


def in_group(job: JobRow, key: GroupKey) -> bool:
    """Return whether a job is a dead letter of a group."""
    return job.state is State.FAILED and job.task == key.task and not is_follower(job) and group_key(job) == key


def group_key(job: JobRow) -> GroupKey:
    """Return the key of the group of a failed job."""
    error_type, message = _error_of(job)
    return GroupKey(job.task, error_type, _VARIABLE.sub(PLACEHOLDER, message[:PATTERN_LIMIT]))


def _error_of(job: JobRow) -> tuple[str, str]:
    """Return the class and the message of a job's error; the job's reason if its error has another form."""
    try:
        error: Any = json.loads(job.error or "null")
    except ValueError:
        error = None
    if not isinstance(error, dict) or "type" not in error:
        return "", job.reason
    return str(error["type"]), str(error.get("message", ""))
