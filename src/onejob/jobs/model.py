"""The immutable values that the ledger, its stores and its users exchange.

Times are seconds since the epoch on the store's clock; durations are seconds. `payload`, `options`, `progress`,
`result` and `error` are JSON, which the ledger does not parse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum, StrEnum
from functools import cache
from typing import Any, Self, TypeAlias, dataclass_transform

from onejob.jobs.handover import Handover
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.route import Route
from onejob.jobs.submitter import Budget, Charge


@dataclass_transform(frozen_default=True)
def value(**options: bool) -> Any:
    """Return the decorator of a dataclass whose instances must not be changed, which the type checker enforces.

    The constructor of a frozen dataclass calls a function for each field: a tenth of what a submission computes.
    """
    return dataclass(unsafe_hash=True, **options)


def values_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name; unlike `asdict`, without copies."""
    kind: Any = type(value)
    return {name: getattr(value, name) for name in _field_names(kind)}


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


class Outcome(StrEnum):
    """The outcome of a submission."""

    ADMITTED = "admitted"
    """A new job was written."""
    ATTACHED = "attached"
    """A live job answers the submission."""
    REPLAYED = "replayed"
    """The retained result of a job answers the submission."""
    REPLACED = "replaced"
    """A job that waits for its first run answers the submission, and takes over its arguments."""
    QUEUED_NEXT = "queued_next"
    """A new job was written, which runs after the job that holds the identity."""
    REJECTED = "rejected"
    """The submission was refused."""

    @property
    def makes_job(self) -> bool:
        """Whether a new job was written."""
        return self in {Outcome.ADMITTED, Outcome.QUEUED_NEXT}


class Cancel(IntEnum):
    """Whether the cancellation of a job was requested."""

    NO = 0
    ASKED = 1
    FORCED = 2


@value(slots=True, kw_only=True)
class JobRow:
    """One piece of requested work: a snapshot of its row.

    Its times (`created_at`, `run_at`, ...) are seconds since the epoch: `datetime.fromtimestamp(job.created_at, UTC)`.
    """

    id: str
    task: str
    identity: str
    fingerprint: str
    submission_nonce: str
    """The nonce of the submission that wrote the row, which distinguishes that submission from its duplicates."""
    submitter: str
    """The submitter of the submission that wrote the row; "" if unknown."""
    source: str
    """The entry point of the submission that wrote the row: `apply_async`, `http`, ..."""
    payload: str
    """The part of the message that a newer submission may replace: the arguments."""
    options: str
    """The options of the job's message: serializer, headers, the canvas that waits for the job's end."""
    route: str
    """The route of the job's messages, as `Route` encodes it; "" if it was not resolved."""
    priority_rank: int
    """The rank of the job's priority: a larger number is more urgent."""
    state: State
    holds_identity: bool
    """Whether the job holds its identity, which is independent of its state."""
    queued_next: bool
    """Whether the job waits for its identity, until the job that it follows releases it."""
    identity_until: float | None
    """Until when a completed job holds its identity; the next submission after that releases it."""
    follows_id: str | None
    """The id of the job that this job follows or is queued behind; None if there is none."""
    token: int
    """The fencing token of the latest claim: strictly increasing, at least the store's clock in microseconds."""
    claim: str
    """The nonce of the latest claim; "" before the first claim."""
    node: str
    attempt: int
    retries: int
    crashes: int
    lease: float
    lease_until: float | None
    created_at: float
    run_at: float
    expires_at: float | None
    started_at: float | None
    finished_at: float | None
    wake_at: float | None
    """When a sweep must next process the job; never None for a job that has not ended."""
    published: int
    """How many attempts in a row, all failed or none, sweeps made to publish the job since it was queued or ended."""
    published_at: float | None
    """When the job's message was sent last, a worker took the job from the ledger, or the job was held; None for a
    waiting job that a sweep has to hand over, or that workers may take."""
    publish_error: str
    """Why the job's message could not be sent, or its canvas not be notified of its end; "" if nothing failed."""
    cancel: Cancel
    canvas_pending: bool
    """Whether a canvas (links, chain, chord) is still to be notified of the job's end."""
    key_retained_until: float | None
    """When the last idempotency key that this job answers expires."""
    duplicate_count: int
    """How many submissions were duplicates of this job."""
    progress: str | None
    result: str | None
    error: str | None
    reason: str
    """Why the job is in its state, as text for people."""
    publisher_task: str | None = None
    """The task whose workers handle the job when it is due; None: the job's own task. A webhook has its job's task."""
    tag_lines: str | None = None
    """The tags of the job, one on each line; None if the job has no tags."""
    parked_on: str | None = None
    """The id of the pause that a waiting job is parked on, or `limit:` and a key; None: it is not parked."""
    costs: str | None = None
    """The costs of its attempts, as `JobCosts` writes them; None: no cost was reported."""
    limit_keys: str | None = None
    """The keys of its limits, each with its weight, as `write_uses` writes them; None: it has no limits."""

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the submission whose arguments the job has, by which jobs are found."""
        return tuple(self.tag_lines.split("\n")) if self.tag_lines else ()

    @property
    def is_limited(self) -> bool:
        """Whether a run of the job needs room on keys of limits; a follower has no run of its own."""
        return self.limit_keys is not None and self.follows_id is None

    def has_lost_identity(self, now: float) -> bool:
        """Return whether the job no longer holds its identity: its window is over, or it expired while it waited."""
        until = self.expires_at if self.identity_until is None else self.identity_until
        return until is not None and until <= now

    @property
    def queue(self) -> str:
        """The name of the queue that the job's messages are sent to; "" if there is none, or if it was not resolved."""
        return Route.decode(self.route).queue

    @property
    def run_seconds(self) -> float | None:
        """How long the last run of an ended job took; None before the end, and without a run."""
        return self.finished_at - self.started_at if self.finished_at and self.started_at else None


LARGE_FIELDS = ("payload", "options", "progress", "result")
"""The fields that may have hundreds of kilobytes each, which a list of jobs rarely needs."""


@value(slots=True, kw_only=True)
class Submission:
    """A request for a job."""

    id: str
    task: str
    identity: str
    fingerprint: str
    nonce: str
    payload: str
    lease: float
    options: str = "{}"
    route: str = ""
    """The route of the job's messages, as `Route` encodes it; "" if it was not resolved."""
    priority_rank: int = 0
    delay: float = 0.0
    """Seconds until the job is due."""
    expires_in: float | None = None
    """Seconds until the job expires, unless its first run has started."""
    retries: int = 0
    follows: bool = False
    """Whether a duplicate gets a job of its own, a follower, as a member of a canvas must."""
    canvas: bool = False
    """Whether a canvas (links, chain, chord) waits for this job's end."""
    rejects: bool = False
    """Whether a duplicate is rejected."""
    replaces: bool = False
    """Whether a duplicate replaces the payload of a job that waits for its first run."""
    queue_next: bool = False
    """Whether a duplicate of a job that has started is queued next."""
    max_wait: float = 0.0
    """How far a duplicate may postpone the first run, in seconds from the job's creation, as in a debounce."""
    key: str | None = None
    """The idempotency key: later submissions with the same key get the answer of this submission."""
    key_for: float = 86_400.0
    """How long the key is retained, in seconds."""
    source: str = "submit"
    """The entry point: `apply_async`, `http`, ..."""
    submitter: str = ""
    """The name of the submitter; "" if unknown."""
    host: str = ""
    """The host of the submitter."""
    publisher_task: str | None = None
    """The task whose workers handle the job, if not its own."""
    tag_lines: str | None = None
    """The tags of the job, one on each line; None if the job has no tags."""
    limit_keys: str | None = None
    """The keys of its limits, each with its weight, as `write_uses` writes them; None: it has no limits."""
    parked_on: str | None = None
    """`limit:` and the first key, if a new job that holds its identity is parked on that at first; None: it is not."""
    budgets: tuple[Budget, ...] = ()
    """The budgets of the submitter, with which the submission is compared before the store gets it."""
    charges: tuple[Charge, ...] = ()
    """The quotas that a new job of this submission uses up; a submission over one of these quotas writes nothing."""


HandoverOf: TypeAlias = Callable[[Submission], Handover]
"""Returns how the job of a submission gets to a worker, if the job is due now."""


@value(slots=True)
class Admission:
    """The answer to a submission: the job that serves it, and the outcome."""

    job: JobRow
    outcome: Outcome
    follower: JobRow | None = None
    """The job under the submission's own id, if it is a follower."""
    rescheduled: bool = False
    """Whether this submission changed the job's `run_at` or `priority_rank`."""
    key_reused: bool = False
    """Whether the submission was rejected because its idempotency key was used with other arguments."""
    handed_over: bool = False
    """Whether the job, if it is due, was handed over: its message was pushed, or workers take it from the ledger."""

    @classmethod
    def repeated(
        cls, own: JobRow, followed: JobRow | None, submission: Submission, keyed: tuple[JobRow, bool] | None = None
    ) -> Self:
        """Return the answer to a submission whose id exists already, as job `own`, which may follow another job.

        `keyed`: the job that its idempotency key names, and whether it was named with other arguments. A key answers
        before an id, except to the request that wrote the job; a key that names no job yet is valid for the arguments
        that the job of the id was submitted with.
        """
        answer = cls._of_id(own, followed, submission.nonce)
        if submission.key is None or own.submission_nonce == submission.nonce:
            return answer
        job, reused = keyed or (answer.job, own.fingerprint != submission.fingerprint)
        if job.id == answer.job.id and not reused:
            return answer
        ended = job.finished_at is not None
        outcome = Outcome.REJECTED if reused else Outcome.REPLAYED if ended else Outcome.ATTACHED
        return cls(job, outcome, key_reused=reused)

    def handed_over_by(self, handover: Handover) -> Self:
        """Return the answer of a store that offers jobs: a new or moved job was handed over if it is offered."""
        is_moved = self.outcome is Outcome.ADMITTED or self.rescheduled
        return replace(self, handed_over=True) if is_moved and handover.is_offered(self.job.route) else self

    @classmethod
    def _of_id(cls, own: JobRow, followed: JobRow | None, nonce: str) -> Self:
        if own.queued_next:
            return cls(own, Outcome.QUEUED_NEXT)
        if followed is not None:
            replayed = followed.finished_at is not None and own.created_at >= followed.finished_at
            return cls(followed, Outcome.REPLAYED if replayed else Outcome.ATTACHED, follower=own)
        if own.submission_nonce == nonce:
            return cls(own, Outcome.ADMITTED)
        return cls(own, Outcome.ATTACHED if own.finished_at is None else Outcome.REPLAYED)


@value(slots=True, kw_only=True)
class Duplicate:
    """The record of a duplicate submission, or of a redelivered message."""

    job_id: str
    """The job that held the identity or the idempotency key."""
    submission_nonce: str
    """The nonce of the submission; "" for a redelivered message: only the latest redelivery of a job is kept."""
    outcome: Outcome
    answered_by: str
    """The id of the job that answered: `job_id`, or the id of the job that is queued next."""
    source: str
    submitter: str
    host: str
    fingerprint: str
    arguments_differ: bool
    """Whether the arguments of the submission differ from the arguments of the job."""
    rescheduled: bool = False
    at: float = 0.0
    """The time of the duplicate, on the store's clock."""

    @classmethod
    def of(cls, submission: Submission, admission: Admission, existing: JobRow | None = None) -> Self:
        """Return the record of a submission; `existing`: the job that held the identity, if another job answers."""
        job = existing or admission.job
        return cls(
            job_id=job.id, submission_nonce=submission.nonce, outcome=admission.outcome, answered_by=admission.job.id,
            source=submission.source, submitter=submission.submitter, host=submission.host,
            fingerprint=submission.fingerprint, arguments_differ=submission.fingerprint != job.fingerprint,
            rescheduled=admission.rescheduled,
        )  # fmt: skip

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Build a duplicate from a store's row."""
        convert = {"outcome": Outcome, "arguments_differ": bool, "rescheduled": bool, "at": float}
        return cls(**{f.name: convert.get(f.name, str)(row[f.name]) for f in fields(cls)})


REDELIVERED = "redelivered"
"""The word by which stores count redelivered messages, in place of an outcome."""


@dataclass(frozen=True, slots=True)
class DuplicateCount:
    """The number of all duplicates of a task with one outcome, in the group `name` (see `GroupBy`)."""

    name: str
    task: str
    outcome: Outcome | None
    """None: redelivered messages, which are no submissions."""
    count: int

    @classmethod
    def from_row(cls, name: str, task: str, outcome: str, count: int) -> Self:
        """Build a count from a store's row."""
        return cls(name, task, None if outcome == REDELIVERED else Outcome(outcome), count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """How a purged job had ended."""

    id: str
    state: State
    finished_at: float
    purged_at: float

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Build a tombstone from a store's row."""
        times = {name: float(row[name]) for name in ("finished_at", "purged_at")}
        return cls(id=row["id"], state=State(row["state"]), **times)


@value(slots=True, kw_only=True)
class Change:
    """One compare-and-set on one job, applied if all its conditions hold.

    Conditions: the state is one of `sources`; the token is `token`, and the time to run `seen_run_at` (if given); the
    lease has expired (`lapsed`); the job has expired (`overdue`); its canvas is still to be notified (`unnotified`);
    the identity is free (`reopens`).
    A field that is None leaves its column unchanged, unless noted.
    """

    job_id: str
    identity: str
    request_id: str
    event: Transition
    sources: frozenset[State]
    target: State | None
    token: int | None = None
    seen_run_at: float | None = None
    lapsed: bool = False
    overdue: bool = False
    unnotified: bool = False
    ends: bool = False
    """Whether the job ends: `finished_at` is set, and its followers become due."""
    keeps_identity: bool = True
    identity_for: float | None = None
    """Seconds from now until the identity is released."""
    identity_until: float | None = None
    """The time at which the identity is released."""
    reopens: bool = False
    """Whether the job takes its identity, and its end, if any, is cleared.

    Refused if another job holds the identity; a holder whose uniqueness window is over releases it."""
    rejoins: bool = False
    """Whether a job that reopens waits again for the end of the job that it follows, and takes no identity."""
    forgets_steps: bool = False
    """Whether the memoised steps are deleted."""
    handover: Handover | None = None
    """The hand-over of the job to a worker, or of an ended job's message while its canvas waits; None: as before."""
    wake_after: float | None = None
    """The seconds from now to `wake_at`, unless `handover` has them."""
    run_in: float | None = None
    payload: str | None = None
    options: str | None = None
    route: str | None = None
    retries: int | None = None
    crashes: int | None = None
    published: int | None = None
    publish_error: str | None = None
    cancel: Cancel | None = None
    canvas_pending: bool | None = None
    parked_on: str | None = None
    """The value of `JobRow.parked_on` from now on; "": the job is parked no longer."""
    limit_keys: str | None = None
    """The value of `JobRow.limit_keys` from now on; `NO_KEYS`: the job has no limits any longer."""
    result: str | None = None
    error: str | None = None
    reason: str | None = None
    detail: str = ""
    """The detail of the history entry."""


@value(slots=True)
class IdentityHold:
    """How long a completed job holds its identity: a duration in seconds, or until a time."""

    identity_for: float | None = None
    identity_until: float | None = None


@value(slots=True)
class Applied:
    """The answer to a change or a claim, and the job afterwards (None if it does not exist)."""

    applied: bool
    job: JobRow | None
    handed_over: bool = False
    """Whether the job was handed over with the change: its message was pushed, or workers take it from the ledger."""
    frees: bool = field(default=True, compare=False)
    """Whether jobs may wait for room that the change has given back; False: none waits on a key of the job."""


@value(slots=True)
class Renewal:
    """The answer to the renewal of one lease: `held` is False after another claim or the job's end."""

    job_id: str
    claim: str
    held: bool
    cancel: Cancel = Cancel.NO
