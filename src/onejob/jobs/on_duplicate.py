"""The values of `on_duplicate`, and how each resolves a submission that is a duplicate of an existing job.

| value | the job has not started | the job has started | the job has completed, within its window |
|---|---|---|---|
| attach | the job answers | the job answers | its result answers |
| raise | refused | refused | refused |
| replace | the job runs with the new arguments | one more run is queued with them | - |
| run_again | the job runs with the new arguments | one more run is queued with them | - |

`replace` also restarts the countdown of the job that waits (debounce); `run_again` does not postpone it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from onejob.errors import ConfigurationError, InvalidArgumentsError
from onejob.jobs.durations import check_seconds
from onejob.jobs.model import JobRow, Outcome, Submission

DEFAULT = "attach"
"""The value for tasks that set no `on_duplicate`."""
MAX_WAIT = 60.0
"""Default limit for postponing by `replace` (debouncing), in seconds from the job's first submission."""


@dataclass(frozen=True, slots=True)
class ConflictPolicy:
    """How a duplicate submission is handled; see the fields of the same names in `Submission`."""

    rejects: bool = False
    replaces: bool = False
    queue_next: bool = False
    max_wait: float = 0.0


CONFLICT_POLICIES: dict[str, ConflictPolicy] = {
    "attach": ConflictPolicy(),
    "raise": ConflictPolicy(rejects=True),
    "replace": ConflictPolicy(replaces=True, queue_next=True, max_wait=MAX_WAIT),
    "run_again": ConflictPolicy(replaces=True, queue_next=True),
}


CALL_POLICIES = ("attach", "raise")
"""The values that one submission may set instead of its task: they change no job that others have submitted."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """The result of resolving a duplicate: its outcome, and the new values of the existing job."""

    outcome: Outcome
    takes_over: bool
    """Whether the submission's payload, fingerprint and expiry replace the job's payload, fingerprint and expiry."""
    run_at: float
    priority_rank: int
    expires_at: float | None

    def reschedules(self, job: JobRow) -> bool:
        """Return whether `run_at` or the priority of the job changes."""
        return self.run_at != job.run_at or self.priority_rank != job.priority_rank

    def changes(self, job: JobRow) -> bool:
        """Return whether any value of the job changes."""
        return self.takes_over or self.reschedules(job) or self.expires_at != job.expires_at


def resolve(job: JobRow, submission: Submission, *, now: float) -> Resolution:
    """Resolve a submission against the existing job that holds its identity.

    A job that has started does not change. A job that has not started is rescheduled to the earlier time and the
    higher priority; with `max_wait` also to a later time. It expires at the later of the two times, and never if one of
    the submissions never expires. An expired job never comes here: it holds its identity no longer. SQLite calls this
    function; PostgreSQL and Redis have the rule in their own language.
    """
    if submission.rejects or job.finished_at is not None or job.attempt > 0:
        outcome = Outcome.QUEUED_NEXT if submission.queue_next else Outcome.ATTACHED
        if submission.rejects:
            outcome = Outcome.REJECTED
        elif job.finished_at is not None:
            outcome = Outcome.REPLAYED
        return Resolution(
            outcome, takes_over=False, run_at=job.run_at, priority_rank=job.priority_rank, expires_at=job.expires_at
        )
    takes_over = submission.replaces and submission.fingerprint != job.fingerprint
    return Resolution(
        Outcome.REPLACED if takes_over else Outcome.ATTACHED,
        takes_over=takes_over,
        run_at=min(now + submission.delay, max(job.run_at, job.created_at + submission.max_wait)),
        priority_rank=max(job.priority_rank, submission.priority_rank),
        expires_at=_expiry(job, submission, now, takes_over=takes_over),
    )


def _expiry(job: JobRow, submission: Submission, now: float, *, takes_over: bool) -> float | None:
    """Return when the job expires."""
    expires_at = None if submission.expires_in is None else now + submission.expires_in
    if takes_over:
        return expires_at
    if job.expires_at is None:
        return None
    return None if expires_at is None else max(expires_at, job.expires_at)


def call_policy_of(task: str, on_duplicate: object) -> ConflictPolicy:
    """Return the policy that one submission sets for itself. Raises `InvalidArgumentsError` for any other value."""
    if not isinstance(on_duplicate, str) or on_duplicate not in CALL_POLICIES:
        reason = (
            " would give a job that others have submitted other arguments: it is an option of the task"
            if str(on_duplicate) in CONFLICT_POLICIES
            else " is no such option"
        )
        raise InvalidArgumentsError(
            f"on_duplicate={on_duplicate!r:.100} of a submission of {task}{reason}. A submission may have "
            f"{' or '.join(map(repr, CALL_POLICIES))}"
        )
    return CONFLICT_POLICIES[on_duplicate]


def conflict_policy_of(
    task: str, on_duplicate: object, max_wait: object, unique_until: object, unique_for: object
) -> ConflictPolicy:
    """Return the policy that a task's options set. Raises `ConfigurationError` for invalid options.

    `replace` and `run_again` exclude `unique_for`, whose kept result would answer newer arguments, which never run.
    """
    on_duplicate = DEFAULT if on_duplicate is None else on_duplicate
    if not isinstance(on_duplicate, str) or on_duplicate not in CONFLICT_POLICIES:
        values = ", ".join(map(repr, CONFLICT_POLICIES))
        raise ConfigurationError(f"on_duplicate of task {task} must be one of {values}, not {on_duplicate!r}")
    conflict_policy = CONFLICT_POLICIES[on_duplicate]
    if conflict_policy.queue_next and unique_for is not None:
        raise ConfigurationError(
            f"task {task} has on_duplicate={on_duplicate!r}, which excludes unique_for: the kept result would answer "
            "newer arguments, which would never run. Drop unique_for, or choose another on_duplicate"
        )
    if on_duplicate == "run_again" and unique_until == "started":
        raise ConfigurationError(
            f"task {task} has on_duplicate='run_again', which excludes unique_until='started': equal jobs would run at "
            "the same time. Drop unique_until, or choose another on_duplicate"
        )
    if max_wait is None:
        return conflict_policy
    if not conflict_policy.max_wait:
        msg = f"max_wait of task {task} applies only to on_duplicate='replace', not to {on_duplicate!r}"
        raise ConfigurationError(msg)
    check_seconds(f"max_wait of task {task}", max_wait)
    return replace(conflict_policy, max_wait=float(max_wait))  # type: ignore[arg-type] # checked above
