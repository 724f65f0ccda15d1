"""The public view of a job, the same in the API, the CLI and webhooks; without arguments, which may be secret."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime
from operator import attrgetter
from typing import Any

from onejob.jobs.costs import JobCosts, amount_texts
from onejob.jobs.lifecycle import State
from onejob.jobs.model import JobRow, values_of
from onejob.jobs.timestamps import to_datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The exception of a failed job."""

    type: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The costs of a job by unit: exact decimal numbers as texts."""

    total: dict[str, str]
    attempts: dict[int, dict[str, str]]
    """By the number of the attempt, the newest 20; 0 has the sums of all earlier attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job, as its users see it in Python, over HTTP and in webhooks: without its arguments, which may be secret.

    It is a snapshot. Equal ones have the same ETag over HTTP.
    """

    id: str
    task: str
    """The name of its task."""
    identity: str
    """A hash, which equal jobs share."""
    submitter: str
    """The submitter of the submission that wrote it; "" if unknown."""
    tags: tuple[str, ...]
    """The tags of the submission whose arguments it has."""
    queue: str
    """The queue that its messages are sent to; "" if there is none, or if it was not resolved."""
    state: State
    reason: str
    """Why the job is in its state, as text for people."""
    queued_next: bool
    """Whether the job waits until an equal job, `follows_id`, releases the identity."""
    follows_id: str | None
    """The id of the job that it follows or is queued behind; None for any other job."""
    cancel_requested: bool
    attempt: int
    """The number of its latest run; 0 before the first."""
    crashes: int
    """How many of its runs ended without a word of their worker."""
    duplicate_count: int
    """How many submissions were duplicates of it."""
    created_at: datetime
    run_at: datetime
    """When the job is or was due."""
    started_at: datetime | None
    """The begin of its latest run."""
    finished_at: datetime | None
    costs: Costs | None
    """The costs that its runs have reported; None: there are none."""
    progress: Any
    """The latest report of a run: usually a dict of `done`, `total` and `stage`."""
    result: Any
    """The result of a completed job, as JSON has it."""
    error: Failure | None

    def __hash__(self) -> int:
        return hash(self.id)  # its values may have none


SHORT_LENGTH = 8


def short_id(job_id: str) -> str:
    """Return the end of a job's id, which people can compare: the beginning of a UUIDv7 is a time."""
    return job_id if len(job_id) <= 2 * SHORT_LENGTH else f"…{job_id[-SHORT_LENGTH:]}"


_IS_TIME = re.compile(r"(?:^|_)(?:at|until|since|begin|end)$")


def fields_of(value: Any, *names: str) -> dict[str, Any]:
    """Return the named fields of a value of the ledger (all without names), with times as `datetime`, and 0 as None."""
    found = {name: getattr(value, name) for name in names} if names else values_of(value)
    return {
        name: (to_datetime(each) if each else None) if isinstance(each, float | int) and _IS_TIME.search(name) else each
        for name, each in found.items()
    }


def job_to_dict(job: JobRow) -> dict[str, Any]:
    """Return the fields of the public view of a job, `Job`: JSON values, and times as `datetime`."""
    shown = dict(zip(_NAMES, _read(job), strict=True))
    if job.state is not State.FAILED or not job.error:
        shown["error"] = None
    for name, convert in _CONVERTERS.items():
        if shown[name] is not None:
            shown[name] = convert(shown[name])
    return shown


def public_job(job: JobRow) -> Job:
    """Return the public view of a job."""
    shown = job_to_dict(job)
    costs, error = shown["costs"] and Costs(**shown["costs"]), shown["error"] and Failure(**shown["error"])
    return Job(**shown | {"costs": costs, "error": error})


def _error_of(text: str) -> dict[str, str]:
    error = json.loads(text)
    return {"type": str(error["type"]), "message": str(error["message"])}


def _costs_of(text: str) -> dict[str, Any]:
    costs = JobCosts.of(text)
    attempts = {number: amount_texts(amounts) for number, amounts in costs.attempts.items()}
    return {"total": amount_texts(costs.total), "attempts": attempts}


_NAMES = tuple(field.name for field in fields(Job))
_read = attrgetter(*("cancel" if name == "cancel_requested" else name for name in _NAMES))
_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    **{field.name: to_datetime for field in fields(Job) if str(field.type).startswith("datetime")},
    "cancel_requested": bool, "costs": _costs_of, "progress": json.loads, "result": json.loads, "error": _error_of,
}  # fmt: skip
"""The functions that convert the fields which a view has in another form than the job."""
