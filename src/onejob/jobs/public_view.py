"""The public view of a job, the same in the API, the CLI and webhooks; without arguments, which may be secret."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime
from operator import attrgetter
from typing import Any

from onejob.jobs.lifecycle import State
from onejob.jobs.model import Job, values_of
from onejob.jobs.timestamps import to_datetime


@dataclass(kw_only=True)
class ErrorView:
    """The exception of a failed job."""

    type: str
    message: str


@dataclass(kw_only=True)
class JobView:
    """A job. Equal views have the same ETag."""

    id: str
    task: str
    identity: str
    submitter: str
    tags: list[str]
    queue: str
    state: State
    reason: str
    queued_next: bool
    follows_id: str | None
    cancel_requested: bool
    attempt: int
    crashes: int
    duplicate_count: int
    created_at: datetime
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    progress: Any
    result: Any
    error: ErrorView | None


SHORT_LENGTH = 8


def short_id(job_id: str) -> str:
    """Return a job's id, shortened to what people compare: its end, since the beginning of a UUIDv7 is a time."""
    return job_id if len(job_id) <= 2 * SHORT_LENGTH else f"…{job_id[-SHORT_LENGTH:]}"


_IS_TIME = re.compile(r"(?:^|_)(?:at|until|since|begin|end)$")


def fields_of(value: Any, *names: str) -> dict[str, Any]:
    """Return fields of a value of the ledger, all without names; times in seconds as `datetime`, and 0 as None."""
    found = {name: getattr(value, name) for name in names} if names else values_of(value)
    return {
        name: (to_datetime(each) if each else None) if isinstance(each, float | int) and _IS_TIME.search(name) else each
        for name, each in found.items()
    }


def job_to_dict(job: Job) -> dict[str, Any]:
    """Return the public fields of a job, those of `JobView`: JSON values, and times as `datetime`."""
    shown = dict(zip(_NAMES, _read(job), strict=True))
    if job.state is not State.FAILED or not job.error:
        shown["error"] = None
    for name, convert in _CONVERTERS.items():
        if shown[name] is not None:
            shown[name] = convert(shown[name])
    return shown


def _error_of(text: str) -> dict[str, str]:
    error = json.loads(text)
    return {"type": str(error["type"]), "message": str(error["message"])}


_NAMES = tuple(field.name for field in fields(JobView))
_read = attrgetter(*("cancel" if name == "cancel_requested" else name for name in _NAMES))
_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    **{field.name: to_datetime for field in fields(JobView) if str(field.type).startswith("datetime")},
    "tags": list, "cancel_requested": bool, "progress": json.loads, "result": json.loads, "error": _error_of,
}  # fmt: skip
"""How the fields are converted that a job has in another form."""
