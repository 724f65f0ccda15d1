"""The frozen values that travel between the ledger, its stores and its users.

Times are seconds since the epoch on the store's clock; durations are seconds. Texts named `payload`, `options`,
`result` and `error` are JSON that the ledger never looks into.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntEnum, StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from onejob.jobs.lifecycle import State, Transition

if TYPE_CHECKING:
    from collections.abc import Mapping


def values_of(value: Any) -> dict[str, Any]:
    """Return the fields of one of these values by name."""
    kind: Any = type(value)
    return {name: getattr(value, name) for name in _names_of(kind)}


@cache
def _names_of(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


class Outcome(StrEnum):
    """The answer to a submission."""

    ADMITTED = "admitted"
    """No job was in its way: there is a new one."""
    ATTACHED = "attached"
    """A live job answers."""
    REPLAYED = "replayed"
    """The kept end of a job answers."""
    REPLACED = "replaced"
    """A job that waits for its first run answers, with the arguments of this submission."""
    QUEUED_NEXT = "queued_next"
    """There is a new job, which runs after the one in its way."""
    REJECTED = "rejected"
    """Nothing came of it."""

    @property
    def makes_job(self) -> bool:
        """Whether there is a new job because of the submission."""
        return self in {Outcome.ADMITTED, Outcome.QUEUED_NEXT}


class Cancel(IntEnum):
    """What has been asked of a running job."""

    NO = 0
    ASKED = 1
    FORCED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One piece of requested work, as the ledger knows it at one moment."""

    id: str
    task: str
    identity: str
    fingerprint: str
    submission_nonce: str
    """Nonce of the submission that wrote the row: tells the admitted one from its duplicates."""
    submitter: str
    """Who sent that submission, as the caller calls itself; empty when nobody has said."""
    payload: str
    """What is run: the part of a message for which a newer submission's can be taken."""
    options: str
    """How its message is sent, and what waits for its end."""
    priority_rank: int
    """A larger number wants its message to be taken earlier."""
    state: State
    holds_identity: bool
    """Whether the job holds its identity: a fact of its own, not a synonym of a state."""
    queued_next: bool
    """Whether the job waits for its identity, which it gets when its leader gives it up."""
    identity_until: float | None
    """When a completed job that still holds its identity gives it up to whoever asks for it."""
    follows_id: str | None
    """The job whose end this one waits for and shares; None for a job that runs by itself."""
    token: int
    """Fencing token of the latest claim: strictly growing, at least the store's clock in microseconds."""
    claim: str
    """Nonce of the latest claim; empty before the first."""
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
    """When the sweeper must next look at the job."""
    published: int
    """How often the sweeper has published it since it was last queued."""
    cancel: Cancel
    canvas_pending: bool
    """Whether a canvas behind the job (links, chain, chord) still has to be told its end."""
    key_retained_until: float | None
    """When the last idempotency key that this job answers is forgotten."""
    duplicate_count: int
    """How many submissions have met this job."""
    progress: str | None
    result: str | None
    error: str | None
    reason: str
    """Why the job is in its state, for people."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Build a job from a store's row: text or numbers in, typed values out; None and "" mean absent."""
        return cls(**{name: convert(row[name]) for name, convert in _CONVERTERS.items()})


_BY_ANNOTATION: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": lambda raw: bool(int(raw)),
    "State": State,
    "Cancel": lambda raw: Cancel(int(raw)),
    "str | None": lambda raw: None if raw is None or raw == "" else str(raw),
    "float | None": lambda raw: None if raw is None or raw == "" else float(raw),
}
_CONVERTERS = {f.name: _BY_ANNOTATION[str(f.type)] for f in fields(Job)}


@dataclass(frozen=True, slots=True, kw_only=True)
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
    priority_rank: int = 0
    delay: float = 0.0
    """Seconds until the job is due."""
    expires_in: float | None = None
    """Seconds until the first run may no longer start; once it has started, the job no longer expires."""
    retries: int = 0
    follows: bool = False
    """Whether a duplicate must come to an end under its own id, as a member of a canvas must."""
    canvas: bool = False
    """Whether links, a chain or a chord wait for this job's end."""
    rejects: bool = False
    """Whether the submission wants nothing of a job that is in its way."""
    replaces: bool = False
    """Whether a job in its way that waits for its first run takes over its payload."""
    queues_next: bool = False
    """Whether it wants a run of its own after a job in its way that has begun."""
    max_wait: float = 0.0
    """How far it may put such a job's first run off, in seconds from that job's submission."""
    key: str | None = None
    """The idempotency key: another submission with it gets this one's answer."""
    key_for: float = 86_400.0
    """How long the key is kept, in seconds."""
    source: str = "submit"
    """How the request came in."""
    submitter: str = ""
    """Who asks, as the caller calls itself."""
    host: str = ""
    """The machine that asks."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to a submission: the job that serves it, and what it came to."""

    job: Job
    outcome: Outcome
    follower: Job | None = None
    """The job under the submission's own id, when that id must come to an end, too."""
    rescheduled: bool = False
    """Whether the job is due at another time, or more urgent, because of this submission."""
    key_reused: bool = False
    """Whether it was rejected because its idempotency key belongs to a submission with other arguments."""

    @classmethod
    def again(cls, own: Job, follows_id: Job | None, nonce: str) -> Self:
        """Return the answer to a submission whose id is in the ledger already, as `own`, with the job it follows."""
        if own.queued_next:
            return cls(own, Outcome.QUEUED_NEXT)
        if follows_id is not None:
            late = (
                follows_id.holds_identity
                and follows_id.finished_at is not None
                and own.created_at >= follows_id.finished_at
            )
            return cls(follows_id, Outcome.REPLAYED if late else Outcome.ATTACHED, follower=own)
        if own.submission_nonce == nonce:
            return cls(own, Outcome.ADMITTED)
        return cls(own, Outcome.REPLAYED if own.holds_identity and own.finished_at is not None else Outcome.ATTACHED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """What is kept of one submission that met a job, or of one message that came for a job which needed none."""

    job_id: str
    """The job that was in the way."""
    submission_nonce: str
    """The nonce of the submission; empty for a message that came again, of which the latest is kept."""
    outcome: Outcome
    answered_by: str
    """The id of the job that answered: the one in the way, or the one that runs after it."""
    source: str
    submitter: str
    host: str
    fingerprint: str
    arguments_differ: bool
    """Whether its arguments were others than those of the job in the way."""
    rescheduled: bool = False
    at: float = 0.0
    """When, on the store's clock."""

    @classmethod
    def of(cls, submission: Submission, answer: Admission, in_the_way: Job | None = None) -> Self:
        """Return the duplicate of a duplicate; the job in its way is the one that answers it, unless another is given."""
        job = in_the_way or answer.job
        return cls(
            job_id=job.id, submission_nonce=submission.nonce, outcome=answer.outcome, answered_by=answer.job.id, source=submission.source,
            submitter=submission.submitter, host=submission.host, fingerprint=submission.fingerprint,
            arguments_differ=submission.fingerprint != job.fingerprint, rescheduled=answer.rescheduled,
        )  # fmt: skip

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Build a duplicate from a store's row."""
        convert = {"outcome": Outcome, "arguments_differ": bool, "rescheduled": bool, "at": float}
        return cls(**{f.name: convert.get(f.name, str)(row[f.name]) for f in fields(cls)})


@dataclass(frozen=True, slots=True)
class DuplicateCount:
    """How many submissions of one kind have met jobs of a task, ever. `name` is what they were counted by."""

    name: str
    task: str
    outcome: Outcome
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """What a quota says to one more use of a name."""

    name: str
    counted: bool
    """Whether the use is one of those that are allowed."""
    left: int
    """How many more are."""
    until: float
    """When the window ends: it began with the first use that was counted in it."""
    seconds: float
    """How long that is from now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One compare-and-set on one job: applied whole when its conditions hold, or refused.

    Conditions: the state is one of `sources`; the token is `token` (when given); the lease has run out (`lapsed`); the
    expiry has come (`overdue`); the identity is free (`reopens`).
    A field that is None leaves its column as it is, unless noted.
    """

    job_id: str
    identity: str
    request_id: str
    event: Transition
    sources: frozenset[State]
    target: State | None
    token: int | None = None
    lapsed: bool = False
    overdue: bool = False
    ends: bool = False
    """Whether no further run starts: the job gets its `finished_at` and its followers' alarms ring."""
    keeps_identity: bool = True
    identity_for: float | None = None
    """Seconds from now for which the identity is kept at most."""
    identity_until: float | None = None
    """The same as a moment."""
    reopens: bool = False
    """Whether the job takes its identity (refused when another job holds it), and forgets its end, if it had one."""
    forgets_steps: bool = False
    """Whether the memoised steps go."""
    wake_in: float | None = None
    """Seconds from now to the job's next alarm."""
    run_in: float | None = None
    payload: str | None = None
    options: str | None = None
    retries: int | None = None
    crashes: int | None = None
    published: int | None = None
    cancel: Cancel | None = None
    canvas_pending: bool | None = None
    result: str | None = None
    error: str | None = None
    reason: str | None = None
    detail: str = ""
    """What the history says about it."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a completed job still holds its identity: so many seconds, or until a moment since the epoch."""

    identity_for: float | None = None
    identity_until: float | None = None


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of a change or a claim: whether it holds, and the job afterwards (None: no such job)."""

    applied: bool
    job: Job | None


@dataclass(frozen=True, slots=True)
class Renewal:
    """The store's answer about one lease: `held` is False when another run or an end took the job away."""

    job_id: str
    claim: str
    held: bool
    cancel: Cancel = Cancel.NO


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a job's history."""

    at: float
    event: str
    state: State
    attempt: int
    node: str
    detail: str


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker's node that lives, and when it gave its latest sign of it."""

    name: str
    seen_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """What is remembered of a job that had ended and was purged."""

    id: str
    state: State
    """How it had ended."""
    finished_at: float
    purged_at: float

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Build a tombstone from a store's row."""
        timestamps = {name: float(row[name]) for name in ("finished_at", "purged_at")}
        return cls(id=row["id"], state=State(row["state"]), **timestamps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What to list, newest first; jobs of the same moment by their ids, the largest first."""

    states: frozenset[State] = field(default_factory=frozenset)
    task: str | None = None
    identity: str | None = None
    reason: str | None = None
    """A part of the reason why a job is in its state, upper and lower case of ASCII letters alike."""
    submitter: str | None = None
    """Who asked for the job first; "" for jobs of those who have not said."""
    since: float | None = None
    """Only jobs submitted at this moment or later."""
    until: float | None = None
    """Only jobs submitted before this moment."""
    before: float | None = None
    """The `created_at` to continue from: only jobs submitted earlier."""
    before_id: str | None = None
    """With `before`, the job to continue after: also those of that very moment whose ids are smaller."""
    offset: int = 0
    """How many of the jobs that match to pass over."""
    limit: int = 50
