"""Dead letters, the jobs that failed for good: their selections, and groups by what their errors have in common."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from onejob.jobs.lifecycle import State
from onejob.jobs.model import Job
from onejob.jobs.records import Query
from onejob.ledger.bulk import NO_LIMIT, Selection, iterate_jobs
from onejob.ledger.reader import JobReader
from onejob.ledger.search import query_of
from onejob.ledger.stuck import is_follower

PLACEHOLDER = "…"
"""Stands in a pattern for a value that differs from job to job."""
PATTERN_LIMIT = 500
"""Characters of a message that are compared."""
GROUP_LIMIT = 100
"""How many groups a page or a response has; the others are counted. A client can cause as many as it submits jobs."""
SAMPLE_LIMIT = 20
"""How many ids a group has at most."""
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
    """What the jobs of a group have in common."""

    task: str
    error_type: str
    """The name of the exception's class."""
    pattern: str
    """The message with `PLACEHOLDER` in place of ids, numbers and quoted texts."""


@dataclass(slots=True)
class FailureGroup:
    """The failed jobs with one key. Times are those of their ends."""

    task: str
    error_type: str
    pattern: str
    message: str
    """The message of the job that failed last."""
    count: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    job_ids: list[str] = field(default_factory=list)
    """Some of its jobs, at most `SAMPLE_LIMIT`: the one that failed last, and then the newest."""
    since: float = 0.0
    """When the oldest of its jobs was submitted."""

    @property
    def key(self) -> GroupKey:
        """What its jobs have in common."""
        return GroupKey(self.task, self.error_type, self.pattern)

    def add(self, job: Job, message: str) -> None:
        """Count a job."""
        at = job.finished_at or job.created_at
        if not self.count or at > self.last_at:
            self.last_at, self.message, self.job_ids = at, message, [job.id, *self.job_ids][:SAMPLE_LIMIT]
        elif len(self.job_ids) < SAMPLE_LIMIT:
            self.job_ids.append(job.id)
        self.first_at = min(self.first_at, at) if self.count else at
        self.count += 1
        self.since = job.created_at  # they are added newest first


def group_failures(ledger: JobReader, *, task: str | None = None, limit: int = 10_000) -> list[FailureGroup]:
    """Return the groups of the newest `limit` dead letters, the one in which a job failed last first.

    Followers are in no group: their failure is that of the job that they follow.
    """
    groups: dict[GroupKey, FailureGroup] = {}
    query = Query(states=frozenset({State.FAILED}), task=task)
    failed = (job for job in iterate_jobs(ledger, query) if not is_follower(job))
    for job in islice(failed, limit):
        key, (_, message) = group_key(job), _error_of(job)
        groups.setdefault(key, FailureGroup(*key, message)).add(job, message)
    return sorted(groups.values(), key=lambda group: group.last_at, reverse=True)


def in_group(job: Job, key: GroupKey) -> bool:
    """Return whether a job is a dead letter of a group."""
    return job.state is State.FAILED and job.task == key.task and not is_follower(job) and group_key(job) == key


def group_key(job: Job) -> GroupKey:
    """Return the key of the group of a failed job."""
    error_type, message = _error_of(job)
    return GroupKey(job.task, error_type, _VARIABLE.sub(PLACEHOLDER, message[:PATTERN_LIMIT]))


def _error_of(job: Job) -> tuple[str, str]:
    """Return the class and the message of a job's error; its reason if it has no error of this form."""
    try:
        error: Any = json.loads(job.error or "null")
    except ValueError:
        error = None
    if not isinstance(error, dict) or "type" not in error:
        return "", job.reason
    return str(error["type"]), str(error.get("message", ""))
