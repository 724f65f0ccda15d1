"""Response bodies: jobs with their state and result, without their arguments, which may be secret."""

import hashlib
import re
import struct
from collections.abc import Collection
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, create_model
from pydantic_core import to_json

from onejob.api.problems import Problem
from onejob.celery.beat import ScheduleEntry
from onejob.celery.operations import DuplicateCheck
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Duplicate, Job, Outcome
from onejob.jobs.public_view import JobView, job_to_dict
from onejob.jobs.records import AuditEntry, Entry, Period
from onejob.jobs.timestamps import to_datetime
from onejob.ledger.dead_letters import FailureGroup
from onejob.ledger.schedules import Missed
from onejob.ledger.stats import QueueLoad

CURSOR_PATTERN = r"^([0-4][0-9a-f]{15}([0-9a-f]{2})*)?\.[0-9]{1,9}$"
"""The form of a cursor: the bits of a time, and the bytes of an id; and how many jobs to skip after that one.

Every text of this form is the cursor of some position, so the OpenAPI document can say which ones are accepted.
"""
CURSOR_LIMIT = 2100
"""Characters of a cursor: an id has at most 255 characters, of four bytes at most."""

CursorText = Annotated[str, Field(max_length=CURSOR_LIMIT, json_schema_extra={"pattern": CURSOR_PATTERN})]
Time = Annotated[datetime, BeforeValidator(to_datetime)]
"""A time, which the ledger has in seconds since the epoch."""


class SubmitResponse(BaseModel):
    """The outcome of a submission, and its job."""

    outcome: Outcome
    job: JobView


class ValidatedSubmission(BaseModel):
    """A submission that was validated, but not stored."""

    task: str
    identity: str
    fingerprint: str


@dataclass(kw_only=True)
class ListedJob(JobView):
    """A job in a list, which has `progress` and `result` only if requested."""

    progress: Any = None
    result: Any = None


class PageEnd(BaseModel):
    """The end of a page. `next` is the cursor of the next page, which may be empty; null if there is none.

    `total` and `by_state` are the numbers of all matching jobs, returned only if requested. With `total_is_capped` they
    are those of the newest 10,000, and there may be more.
    """

    next: str | None
    total: int | None = None
    total_is_capped: bool | None = None
    by_state: dict[State, int] | None = None


class JobPage(PageEnd):
    """A page of jobs, newest first. It has at most `limit` jobs, and fewer if these are large: follow `next`."""

    jobs: list[ListedJob]


class BulkView(BaseModel):
    """The ids of the jobs to which an operation was applied, and the reason for each refused one, by id."""

    dry_run: bool
    done: list[str]
    refused: dict[str, str]


class BulkPage(BulkView):
    """The result for one portion of the jobs. `next` is the cursor of the next one; null if there is none."""

    next: str | None


def view_of(kind: Any, name: str, description: str, *, without: Collection[str] = (), **others: Any) -> Any:
    """Return the model of a dataclass of the ledger: its fields, times as text; `others` have another type."""
    types = {each.name: each.type for each in fields(kind) if each.name not in without}
    times = {each: Time for each, hint in types.items() if hint == "float" and each.endswith("at")}
    own: dict[str, Any] = {each: (hint, ...) for each, hint in (types | times | others).items()}
    return create_model(name, __doc__=description, __module__=__name__, **own)


DuplicateView = view_of(
    Duplicate, "DuplicateView", "A submission that was answered by an existing job.",
    without={"job_id", "submission_nonce", "fingerprint"},
)  # fmt: skip
HistoryEntryView = view_of(Entry, "HistoryEntryView", "An entry in the history of a job.")
AuditEntryView = view_of(
    AuditEntry, "AuditEntryView",
    "What an operator did (`kind`: action), or refused requests and logins (access).",
)  # fmt: skip
DuplicateCheckView = view_of(
    DuplicateCheck, "DuplicateCheckView",
    "How a submission would be answered now, and by which job; `hashed_text` is what the identity is the hash of.",
    existing=JobView | None,
)  # fmt: skip
QueueLoadView = view_of(
    QueueLoad, "QueueLoadView",
    "The load of a queue: its jobs that are due or run, and its workers. `oldest_due` is in seconds, 0 without one.\n\n"
    "`slots`: how many jobs its workers run at a time, also those of their other queues.",
)  # fmt: skip
ScheduleEntryView = view_of(
    ScheduleEntry, "ScheduleEntryView",
    "An entry of the beat schedule. `last_job` answered the last tick: a job, or a task that is none of onejob's.\n\n"
    "`next_tick_at`: null for a paused entry, for one that no worker has looked at yet, and without further ticks.\n"
    "`error`: why it cannot be computed.",
    missed=Missed, last_tick_at=Time | None, next_tick_at=Time | None,
)  # fmt: skip


class ExplanationView(BaseModel):
    """The history and the present state of a job in sentences, oldest first; `stuck`: why it makes no progress."""

    stuck: str | None
    sentences: list[str]


FailureGroupView: Any = view_of(
    FailureGroup, "FailureGroupView",
    'Dead letters of one task with similar errors: `pattern` is the message with "…" for ids and numbers.\n\n'
    "`message` is that of the newest one, `job_ids` are some of the newest; the times are those of the first and the "
    "last\nfailure.",
    without={"since"},
)  # fmt: skip


class FailureGroupsView(BaseModel):
    """The groups in which jobs failed last, at most 100, and how many others there are, with how many jobs."""

    groups: list[FailureGroupView]
    other_groups: int
    other_jobs: int


class DuplicateStatsView(BaseModel):
    """The duplicates of one task, identity or submitter by outcome and by task, and the runs and seconds they saved.

    `redelivered` is the number of messages that came again, which are no duplicates.
    """

    name: str
    tasks: dict[str, int]
    counts: dict[Outcome, int]
    runs_saved: int = Field(validation_alias="runs")
    seconds_saved: float | None = Field(validation_alias="seconds")
    redelivered: int


class DurationsView(BaseModel):
    """How many durations were observed, their sum and about their quantiles, in seconds; null without observations."""

    count: int
    sum: float
    p50: float | None
    p95: float | None
    p99: float | None


class FiguresView(BaseModel):
    """Submissions by outcome and runs by end, without those that did not occur, and how long they took and waited.

    `seconds_saved`: how long the prevented duplicates would have run, at the mean run time of the newest
    completed jobs of each task; null if no task has any. `failed_share`: of the runs that ended, those that failed or
    were lost; null without runs.
    """

    submissions: dict[Outcome, int]
    duplicates_prevented: int
    seconds_saved: float | None
    runs: dict[str, int]
    failed_share: float | None
    lease_expiries: int
    run_seconds: DurationsView
    wait_seconds: DurationsView


class TotalsView(FiguresView):
    """The figures of all tasks; `redriven`: dead letters that were sent again."""

    redriven: int


class TaskFiguresView(FiguresView):
    """The figures of one task."""

    task: str


class SlotView(TotalsView):
    """The figures of all tasks in one minute or hour."""

    begin: datetime


class ActivityView(BaseModel):
    """What happened from `begin` to `end`: in total, by task, and by minute or hour, oldest first."""

    period: Period
    begin: datetime
    end: datetime
    totals: TotalsView
    tasks: list[TaskFiguresView]
    slots: list[SlotView]


class EntryRun(BaseModel):
    """The job that answers."""

    job_id: str


def job_json(job: Job) -> bytes:
    """Return the JSON of a `JobView`, without building it."""
    return to_json(job_to_dict(job), inf_nan_mode="null")


def submit_response(outcome: Outcome, job: Job) -> bytes:
    """Return the JSON of a `SubmitResponse`, without building it."""
    return to_json({"outcome": outcome, "job": job_to_dict(job)}, inf_nan_mode="null")


def etag_of(content: bytes) -> str:
    """Return the strong ETag of a response body."""
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def etag_matches(header: str | None, etag: str) -> bool:
    """Return whether an If-None-Match header matches an ETag, by weak comparison (RFC 9110, 13.1.2)."""
    etags = [each.strip().removeprefix("W/") for each in (header or "").split(",")]
    return etag in etags or "*" in etags


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position after a job: its `created_at` and id, None for the beginning of the list; and how many to skip."""

    before: float | None
    before_id: str | None
    offset: int = 0

    def encode(self) -> str:
        """Return the cursor as text of the form `CURSOR_PATTERN`."""
        position = b"" if self.before is None else struct.pack(">d", self.before) + (self.before_id or "").encode()
        return f"{position.hex()}.{self.offset}"


def decode_cursor(cursor: str | None) -> dict[str, Any]:
    """Return the fields of a `Query` that begins at a cursor. Raises `Problem` for a text of another form."""
    if cursor is None:
        return {}
    if len(cursor) > CURSOR_LIMIT or re.fullmatch(CURSOR_PATTERN, cursor) is None:
        raise Problem("invalid-request", "the cursor is invalid: use the `next` of a page")
    position, _, offset = cursor.partition(".")
    before = before_id = None
    if position:
        (before,) = struct.unpack(">d", bytes.fromhex(position[:16]))
        before_id = bytes.fromhex(position[16:]).decode(errors="replace").replace("\0", "")
    return {"before": before, "before_id": before_id, "offset": int(offset)}
