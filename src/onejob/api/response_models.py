"""Response bodies: jobs with their state and result, without their arguments, which may be secret."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, create_model
from pydantic_core import to_json

from onejob.api.problems import Problem
from onejob.client.jobs import DuplicateCheck
from onejob.client.limits import LimitRow
from onejob.client.schedules import ScheduleEntry
from onejob.jobs.audit_entries import AuditEntry
from onejob.jobs.blocks import Block, BlockKind
from onejob.jobs.history import Entry
from onejob.jobs.lifecycle import State
from onejob.jobs.metric_buckets import Period
from onejob.jobs.model import Duplicate, JobRow, Outcome
from onejob.jobs.public_view import Job, job_to_dict
from onejob.jobs.run_log import RunLog
from onejob.jobs.timestamps import to_datetime
from onejob.ledger import cursor as cursors
from onejob.ledger.cursor import CURSOR_LIMIT, CURSOR_PATTERN
from onejob.ledger.dead_letters import GROUP_LIMIT, FailureGroup
from onejob.ledger.schedules import Missed
from onejob.ledger.stats import QueueLoad
from onejob.stores.protocol import LISTED_HOLDERS

PAGE_LIMIT = 200
"""The maximum number of jobs or other rows of a page."""
BULK_LIMIT = 1000
"""The maximum number of jobs that one request operates on."""


def at_most(count: int) -> Any:
    """Return the annotation of a list with at most `count` items; it documents the limit, and the server keeps it."""
    return Field(json_schema_extra={"maxItems": count})


CursorText = Annotated[str, Field(max_length=CURSOR_LIMIT, json_schema_extra={"pattern": CURSOR_PATTERN})]
Time = Annotated[datetime, BeforeValidator(to_datetime)]
"""A time, which the ledger has in seconds since the epoch."""


class SubmitResponse(BaseModel):
    """The outcome of a submission, and its job."""

    outcome: Outcome
    job: Job


class ValidatedSubmission(BaseModel):
    """A submission that was validated, but not stored."""

    task: str
    identity: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class ListedJob(Job):
    """A job in a list, which has `progress` and `result` only if requested."""

    progress: Any = None
    result: Any = None


class PageEnd(BaseModel):
    """The end of a page. `next` is the cursor of the next page, which may be empty; null if there is none.

    `total` and `by_state` are the numbers of all matching jobs, returned only if requested. With `total_is_capped` they
    count only the newest 10,000 matching jobs, and there may be more.
    """

    next: str | None
    total: int | None = None
    total_is_capped: bool | None = None
    by_state: dict[State, int] | None = None


class JobPage(PageEnd):
    """A page of jobs, newest first. It has at most `limit` jobs, and fewer if these are large: follow `next`."""

    jobs: Annotated[list[ListedJob], at_most(PAGE_LIMIT)]


class BulkView(BaseModel):
    """The ids of the jobs to which an operation was applied, and the reason for each refused one, by id."""

    dry_run: bool
    done: Annotated[list[str], at_most(BULK_LIMIT)]
    refused: dict[str, str]


class BulkPage(BulkView):
    """The result for one portion of the jobs. `next` is the cursor of the next portion; null if there is none."""

    next: str | None


def view_of(kind: Any, name: str, description: str, /, *, without: Collection[str] = (), **others: Any) -> Any:
    """Return the model of a dataclass of the ledger: its fields, times as text; `others` have another type."""
    types = {each.name: each.type for each in fields(kind) if each.name not in without}
    times = {each: Time for each, hint in types.items() if hint == "float" and each.endswith("at")}
    own: dict[str, Any] = {each: (hint, ...) for each, hint in (types | times | others).items()}
    return create_model(name, __doc__=description, __module__=__name__, **own)


DuplicateView = view_of(
    Duplicate, "DuplicateView", "A submission that was answered by an existing job.",
    without={"job_id", "submission_nonce", "fingerprint"},
)  # fmt: skip
RunLogView = view_of(RunLog, "RunLogView", "The log of one attempt of a job: the last 65,536 characters.")
HistoryEntryView = view_of(Entry, "HistoryEntryView", "An entry in the history of a job.")
AuditEntryView = view_of(
    AuditEntry, "AuditEntryView",
    "What an operator did (`kind`: action), or refused requests and logins (access).",
)  # fmt: skip
DuplicateCheckView = view_of(
    DuplicateCheck, "DuplicateCheckView",
    "How a submission would be answered now, and by which job; `hashed_text` is what the identity is the hash of.",
    existing=Job | None,
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


BlockView = view_of(
    Block, "BlockView",
    "A pause or a strike: it matches the jobs of a task, of a queue (empty: any), and with these values of arguments.",
    kind=BlockKind, where=dict[str, str], until=Time | None,
)  # fmt: skip


LimitView = view_of(
    LimitRow, "LimitView",
    "A limit (`customer`), or one of its keys (`customer=42`): how much room it has, and who uses it.\n\n"
    "`value`: how many jobs may run at once, or a rate; null: nothing limits it. `default`: the value of the "
    "definition;\nnull: no task has one. `holders`: the ids of the jobs that have a slot, at most 100; of a rate those "
    "that are about\nto run.",
    until=Time | None, holders=Annotated[list[str], at_most(LISTED_HOLDERS)],
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
    """The groups in which jobs failed last, at most 100; how many other groups there are, and how many jobs they have.

    `searched_to`: dead letters that were submitted before this time were not reached in time; null if all were.
    """

    groups: Annotated[list[FailureGroupView], at_most(GROUP_LIMIT)]
    other_groups: int
    other_jobs: int
    searched_to: datetime | None


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


class CostView(BaseModel):
    """The amounts that the jobs of one task, submitter, tag or day have spent and saved, in one unit.

    Amounts are exact decimal numbers, as texts. Each duplicate that did not run has saved the cost of the job that
    answered it.
    """

    name: str
    unit: str
    spent: str
    saved: str


class DurationsView(BaseModel):
    """The number of observed durations, their sum, and estimated quantiles, in seconds; null without observations."""

    count: int
    sum: float
    p50: float | None
    p95: float | None
    p99: float | None


class FiguresView(BaseModel):
    """Submissions by outcome and runs by end, without zeros; how long runs took, and how long jobs waited for them.

    `seconds_saved`: how long the prevented duplicates would have run, at the mean run time of the newest completed jobs
    of each task; null if no task has any. `failed_share`: the share of ended runs that failed or were lost; null
    without runs.
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
    """The activity from `begin` to `end`: in total, by task, and by minute or hour, oldest first."""

    period: Period
    begin: datetime
    end: datetime
    totals: TotalsView
    tasks: list[TaskFiguresView]
    slots: list[SlotView]


class EntryRun(BaseModel):
    """The job that answers."""

    job_id: str


def job_json(job: JobRow) -> bytes:
    """Return the JSON of a `Job`, without building it."""
    return to_json(job_to_dict(job), inf_nan_mode="null")


def submit_response(outcome: Outcome, job: JobRow) -> bytes:
    """Return the JSON of a `SubmitResponse`, without building it."""
    return to_json({"outcome": outcome, "job": job_to_dict(job)}, inf_nan_mode="null")


def etag_of(content: bytes) -> str:
    """Return the strong ETag of a response body."""
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def etag_matches(header: str | None, etag: str) -> bool:
    """Return whether an If-None-Match header matches an ETag, by weak comparison (RFC 9110, 13.1.2)."""
    etags = [each.strip().removeprefix("W/") for each in (header or "").split(",")]
    return etag in etags or "*" in etags


def decode_cursor(cursor: str | None) -> dict[str, Any]:
    """Return the fields of a `Query` that begins at a cursor. Raises `Problem` for a text of another form."""
    try:
        return cursors.decode_cursor(cursor)
    except ValueError as error:
        raise Problem("invalid-request", str(error)) from None
