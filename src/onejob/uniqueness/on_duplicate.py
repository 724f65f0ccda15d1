"""What a submission does to the job that is in its way: the choices of `on_duplicate`, as data and as one rule.

| choice | to a job that waits for its first run | to a job that has begun | to the kept result of a success |
|---|---|---|---|
| attach | is answered by it | is answered by it | is answered by it |
| raise | is refused | is refused | is refused |
| replace | its newest arguments win | is answered by it | is answered by it |
| run_again | its newest arguments win | queues one more run | is answered by it |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onejob.errors import ConfigurationError
from onejob.jobs.model import Outcome
from onejob.jobs.policy import check_seconds

if TYPE_CHECKING:
    from onejob.jobs.model import Job, Submission

MAX_WAIT = 60.0
"""How long `replace` may put a job off by default, in seconds from its first submission."""


@dataclass(frozen=True, slots=True)
class ConflictPolicy:
    """What a submission wants of a job in its way: see the fields of these names in `Submission`."""

    rejects: bool = False
    replaces: bool = False
    queues_next: bool = False
    max_wait: float = 0.0


CONFLICT_POLICIES: dict[str, ConflictPolicy] = {
    "attach": ConflictPolicy(),
    "raise": ConflictPolicy(rejects=True),
    "replace": ConflictPolicy(replaces=True, max_wait=MAX_WAIT),
    "run_again": ConflictPolicy(replaces=True, queues_next=True),
}


@dataclass(frozen=True, slots=True)
class Resolution:
    """What comes of a submission that meets a job: its outcome, and the job's values afterwards."""

    outcome: Outcome
    takes_over: bool
    """Whether the job takes over the submission's payload, fingerprint and expiry."""
    run_at: float
    priority_rank: int

    def moves(self, job: Job) -> bool:
        """Tell whether the job is due at another time, or more urgent, than before."""
        return self.run_at != job.run_at or self.priority_rank != job.priority_rank


def resolve(job: Job, submission: Submission, *, now: float) -> Resolution:
    """Return what comes of a submission that meets the job which holds its identity.

    A job that has begun is never touched. One that waits for its first run is pulled forward by whoever wants it
    earlier or with more urgency; `max_wait` allows to put it off, too. Every store does the same in its own language.
    """
    if submission.rejects or job.finished_at is not None or job.attempt > 0:
        return Resolution(
            _untouched(job, submission), takes_over=False, run_at=job.run_at, priority_rank=job.priority_rank
        )
    takes_over = submission.replaces and submission.fingerprint != job.fingerprint
    return Resolution(
        Outcome.REPLACED if takes_over else Outcome.ATTACHED,
        takes_over=takes_over,
        run_at=min(now + submission.delay, max(job.run_at, job.created_at + submission.max_wait)),
        priority_rank=max(job.priority_rank, submission.priority_rank),
    )


def _untouched(job: Job, submission: Submission) -> Outcome:
    if submission.rejects:
        return Outcome.REJECTED
    if job.finished_at is not None:
        return Outcome.REPLAYED
    return Outcome.QUEUED_NEXT if submission.queues_next else Outcome.ATTACHED


def conflict_policy_of(
    task: str, on_duplicate: object, max_wait: object, unique_until: object, unique_for: object
) -> ConflictPolicy:
    """Return the reaction that a task's options ask for. Raises `ConfigurationError` for options that cannot work."""
    if not isinstance(on_duplicate, str) or on_duplicate not in CONFLICT_POLICIES:
        msg = f"on_duplicate of task {task} is one of {', '.join(map(repr, CONFLICT_POLICIES))}, not {on_duplicate!r}"
        raise ConfigurationError(msg)
    conflict_policy = CONFLICT_POLICIES[on_duplicate]
    if conflict_policy.queues_next and (unique_until == "started" or unique_for is not None):
        msg = (
            f"task {task} runs again after a run that is under way, so it cannot be unique until it started, "
            "nor for a while after its success: drop unique_until and unique_for, or choose another on_duplicate"
        )
        raise ConfigurationError(msg)
    if max_wait is None:
        return conflict_policy
    if not conflict_policy.max_wait:
        msg = f"max_wait of task {task} bounds on_duplicate='replace', and has no meaning with {on_duplicate!r}"
        raise ConfigurationError(msg)
    check_seconds(f"max_wait of task {task}", max_wait)
    return ConflictPolicy(replaces=True, max_wait=float(max_wait))  # type: ignore[arg-type] # it has just been checked
