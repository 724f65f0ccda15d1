"""The immutable values that the ledger, its stores and its users exchange.

Times are seconds since the epoch on the store's clock; durations are seconds. `payload`, `options`, `progress`,
`result` and `error` are JSON, which the ledger does not parse.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum, StrEnum
from functools import cache
from typing import Any, NamedTuple, Self, TypeAlias, dataclass_transform

from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.submitter import Charge


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


class Route(NamedTuple):
    """An exchange, a routing key, and the queue that the message is meant for; "" for none."""

    exchange: str
    routing_key: str
    queue: str

    @classmethod
    def to_queue(cls, queue: str) -> Route:
        """Return the route through the default exchange, which delivers to the queue that the routing key names."""
        return cls("", queue, queue)

    @property
    def is_direct(self) -> bool:
        """Whether the default exchange delivers straight to the queue."""
        return not self.exchange and self.routing_key == self.queue

    def encode(self) -> str:
        """Return the text that a job stores: the name of the queue alone where the rest follows from it."""
        return self.queue if self.is_direct and not self.queue.startswith("[") else json.dumps(self)

    @classmethod
    def decode(cls, text: str) -> Route:
        """Return the route in a text of `encode`."""
        return cls(*json.loads(text)) if text.startswith("[") else cls.to_queue(text)


def is_plain(text: str) -> bool:
    """Return whether an encoded route is the name of a queue, whose workers can take the job from the ledger."""
    return bool(text) and not text.startswith("[")


class Outcome(StrEnum):
    """The outcome of a submission."""

    ADMITTED = "admitted"
    """A new job was written."""
    ATTACHED = "attached"
    """A live job answers it."""
    REPLAYED = "replayed"
    """The retained result of a job answers it."""
    REPLACED = "replaced"
    """A job that waits for its first run answers it, with the arguments of this submission."""
    QUEUED_NEXT = "queued_next"
    """A new job was written, which runs after the one that holds the identity."""
    REJECTED = "rejected"
    """It was refused."""

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
class Job:
    """One piece of requested work: a snapshot of its row.

    Its times (`created_at`, `run_at`, ...) are seconds since the epoch: `datetime.fromtimestamp(job.created_at, UTC)`.
    """

    id: str
    task: str
    identity: str
    fingerprint: str
    submission_nonce: str
    """Nonce of the submission that wrote the row, which distinguishes it from its duplicates."""
    submitter: str
    """The submitter of that submission; "" if unknown."""
    source: str
    """The entry point of that submission: `apply_async`, `http`, ..."""
    payload: str
    """The part of the message that a newer submission may replace: the arguments."""
    options: str
    """How its message is sent: serializer, headers, the canvas that waits for its end."""
    route: str
    """Where its messages are sent, as `Route` encodes it; "" if it was not resolved."""
    priority_rank: int
    """A larger number is more urgent."""
    state: State
    holds_identity: bool
    """Whether the job holds its identity, which is independent of its state."""
    queued_next: bool
    """Whether the job waits for its identity, until the job that it follows releases it."""
    identity_until: float | None
    """Until when a completed job holds its identity; the next submission after that releases it."""
    follows_id: str | None
    """The job that this one follows or is queued behind; None for any other job."""
    token: int
    """Fencing token of the latest claim: strictly increasing, at least the store's clock in microseconds."""
    claim: str
    """Nonce of the latest claim; "" before the first."""
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
    """When a sweep must next process the job. A job that has not ended always has one."""
    published: int
    """How many attempts to publish it sweeps have made: since it was queued or ended, or first failed or succeeded."""
    published_at: float | None
    """When its message was sent last, or a worker took it from the ledger; None for a waiting job whose message a sweep
    has to send, or that workers may take."""
    publish_error: str
    """Why its message could not be sent, or its canvas not be notified of its end; "" if nothing failed."""
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
    """The task whose workers handle the job when it is due; None: its own. A webhook has that of its job."""
    tag_lines: str | None = None
    """Its tags, one on each line; None: it has none."""

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the submission whose arguments it has, by which jobs are found."""
        return tuple(self.tag_lines.split("\n")) if self.tag_lines else ()

    @property
    def queue(self) -> str:
        """The name of the queue that its messages are sent to; "" if there is none, or if it was not resolved."""
        return Route.decode(self.route).queue

    @property
    def run_seconds(self) -> float | None:
        """How long the last run of an ended job took; None before the end, and without a run."""
        return self.finished_at - self.started_at if self.finished_at and self.started_at else None


LARGE_FIELDS = ("payload", "options", "progress", "result")
"""The fields that may have hundreds of kilobytes each, which a list of jobs rarely needs."""


class BrokerMessage(NamedTuple):
    """The message of a job as the broker keeps it, for a store that is on the same server and can push it there."""

    destination: str
    """The key of the broker's list, or the queue whose workers take the job from the ledger."""
    text: str


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
    """Where its messages are sent, as `Route` encodes it."""
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
    """The idempotency key: later submissions with it get this one's answer."""
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
    """As `Job.tag_lines`."""
    charges: tuple[Charge, ...] = ()
    """What the submission is charged with if it writes a new job; over one of these quotas it writes nothing."""


MessageOf: TypeAlias = Callable[[Submission], BrokerMessage | None]
"""Returns the message of a submission for the store to push; None if it has to be sent afterwards."""


@value(slots=True)
class Admission:
    """The answer to a submission: the job that serves it, and the outcome."""

    job: Job
    outcome: Outcome
    follower: Job | None = None
    """The job under the submission's own id, if it is a follower."""
    rescheduled: bool = False
    """Whether this submission changed the job's `run_at` or `priority_rank`."""
    key_reused: bool = False
    """Whether it was rejected because its idempotency key was used with other arguments."""
    sent: bool = False
    """Whether the store has pushed the job's message to the broker."""

    @classmethod
    def repeated(cls, own: Job, followed: Job | None, nonce: str) -> Self:
        """Return the answer to a submission whose id exists already, as job `own`, which may follow another job."""
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
    """The nonce of the submission; "" for a redelivered message, of which only the latest is kept."""
    outcome: Outcome
    answered_by: str
    """The id of the job that answered: `job_id`, or the one that is queued next."""
    source: str
    submitter: str
    host: str
    fingerprint: str
    arguments_differ: bool
    """Whether its arguments differ from those of the job."""
    rescheduled: bool = False
    at: float = 0.0
    """When, on the store's clock."""

    @classmethod
    def of(cls, submission: Submission, admission: Admission, existing: Job | None = None) -> Self:
        """Return the record of a submission; `existing`: the job that held the identity, if another one answers."""
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
    """The same as a time."""
    reopens: bool = False
    """Whether the job takes its identity, and its end, if any, is cleared.

    Refused if another job holds the identity; a holder whose uniqueness window is over releases it."""
    rejoins: bool = False
    """Whether a job that reopens waits again for the end of the job that it follows, and takes no identity."""
    forgets_steps: bool = False
    """Whether the memoised steps are deleted."""
    wake_after: float | None = None
    """Seconds from now to `wake_at`."""
    run_in: float | None = None
    payload: str | None = None
    options: str | None = None
    route: str | None = None
    retries: int | None = None
    crashes: int | None = None
    published: int | None = None
    publishes: bool | None = None
    """Whether the job's message is sent with this change, so that its `published_at` is now; False: it has none."""
    publish_error: str | None = None
    cancel: Cancel | None = None
    canvas_pending: bool | None = None
    result: str | None = None
    error: str | None = None
    reason: str | None = None
    detail: str = ""
    """The detail of the history entry."""
    message: BrokerMessage | None = None
    """What a store that can pushes to the broker if the change is applied and the job waits for a run afterwards.

    A `DeliveringStore` offers the job to the workers of its queue instead."""


@value(slots=True)
class Retention:
    """How long a completed job holds its identity: a duration in seconds, or until a time."""

    identity_for: float | None = None
    identity_until: float | None = None


@value(slots=True)
class Applied:
    """The answer to a change or a claim, and the job afterwards (None if it does not exist)."""

    applied: bool
    job: Job | None
    sent: bool = False
    """Whether the store has pushed the message of the change to the broker."""


@value(slots=True)
class Renewal:
    """The answer to the renewal of one lease: `held` is False after another claim or the job's end."""

    job_id: str
    claim: str
    held: bool
    cancel: Cancel = Cancel.NO
