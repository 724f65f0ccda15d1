"""What is shown of jobs: their life and what came of them, not their arguments, which may be secret."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from datetime import datetime  # noqa: TC003 - pydantic reads the hints
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from onejob.api.problems import Problem
from onejob.jobs.lifecycle import State  # noqa: TC001 - as above
from onejob.jobs.model import Outcome  # noqa: TC001 - as above
from onejob.jobs.public_view import job_to_dict
from onejob.jobs.timestamps import to_datetime

if TYPE_CHECKING:
    from onejob.jobs.model import Duplicate, Job
    from onejob.jobs.records import Entry


class Failure(BaseModel):
    """What a failed job raised."""

    type: str
    message: str


class JobView(BaseModel):
    """A job as it is now. Two equal views have one ETag."""

    id: str
    task: str
    identity: str
    submitter: str
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
    error: Failure | None


class Nothing(BaseModel):
    """What is sent where there is nothing to say: `{}`."""

    model_config = ConfigDict(extra="forbid")


class Answer(BaseModel):
    """What a submission came to, and the job that serves it."""

    outcome: Outcome
    job: JobView


class Checked(BaseModel):
    """What a submission would have been; nothing was stored."""

    task: str
    identity: str
    fingerprint: str


class JobPage(BaseModel):
    """Some jobs, newest first. `next` is the cursor of the page after it, if there may be one.

    Who asked for a count gets the number of all jobs that match, too.
    """

    jobs: list[JobView]
    next: str | None
    total: int | None = None
    by_state: dict[State, int] | None = None


class Redriven(BaseModel):
    """What became of dead letters that were to be sent again."""

    dry_run: bool
    done: list[str]
    refused: dict[str, str]


class DuplicateView(BaseModel):
    """One submission that met a job."""

    at: datetime
    outcome: Outcome
    answered_by: str
    submitter: str
    source: str
    host: str
    arguments_differ: bool
    rescheduled: bool


class EntryView(BaseModel):
    """One line of a job's history."""

    at: datetime
    event: str
    state: State
    attempt: int
    node: str
    detail: str


class DuplicateStatsView(BaseModel):
    """How often one name has met jobs, and what that saved."""

    name: str
    counts: dict[Outcome, int]
    runs_saved: int
    seconds_saved: float | None


def view_of(job: Job) -> JobView:
    """Return what is shown of a job."""
    return JobView(**job_to_dict(job))


def duplicate_view(duplicate: Duplicate) -> DuplicateView:
    """Return what is shown of a duplicate."""
    return DuplicateView(
        at=to_datetime(duplicate.at), outcome=duplicate.outcome, answered_by=duplicate.answered_by, submitter=duplicate.submitter,
        source=duplicate.source, host=duplicate.host, arguments_differ=duplicate.arguments_differ, rescheduled=duplicate.rescheduled,
    )  # fmt: skip


def entry_view(entry: Entry) -> EntryView:
    """Return what is shown of a line of history."""
    return EntryView(
        at=to_datetime(entry.at), event=entry.event, state=entry.state, attempt=entry.attempt, node=entry.node,
        detail=entry.detail,
    )  # fmt: skip


def tag_of(content: str) -> str:
    """Return the strong ETag of an answer."""
    return f'"{hashlib.sha256(content.encode()).hexdigest()[:32]}"'


def matches(header: str | None, tag: str) -> bool:
    """Tell whether an If-None-Match names a tag, weakly compared, as RFC 9110 says."""
    named = [each.strip().removeprefix("W/") for each in (header or "").split(",")]
    return tag in named or "*" in named


def cursor_of(job: Job) -> str:
    """Return the cursor of the page that goes on after a job."""
    return base64.urlsafe_b64encode(json.dumps([job.created_at, job.id]).encode()).decode().rstrip("=")


def place_of(cursor: str | None) -> dict[str, Any]:
    """Return where a cursor goes on, for a `Query`. Raises `Problem` for what is none of ours."""
    if cursor is None:
        return {}
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        return _place(*json.loads(base64.b64decode(padded, altchars=b"-_", validate=True)))
    except (ValueError, TypeError, RecursionError):
        raise Problem("invalid-request", "the cursor is none that this server gave") from None


def _place(before: object, before_id: object) -> dict[str, Any]:
    if not isinstance(before, float) or not math.isfinite(before):
        raise TypeError
    if not isinstance(before_id, str) or not before_id.isprintable():
        raise TypeError
    return {"before": before, "before_id": before_id}
