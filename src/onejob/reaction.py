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
from onejob.job import Outcome
from onejob.policy import check_seconds

if TYPE_CHECKING:
    from onejob.job import Job, Submission

MAX_WAIT = 60.0
"""How long `replace` may put a job off by default, in seconds from its first submission."""


@dataclass(frozen=True, slots=True)
class Reaction:
    """What a submission wants of a job in its way: see the fields of these names in `Submission`."""

    rejects: bool = False
    replaces: bool = False
    queues_next: bool = False
    max_wait: float = 0.0


REACTIONS: dict[str, Reaction] = {
    "attach": Reaction(),
    "raise": Reaction(rejects=True),
    "replace": Reaction(replaces=True, max_wait=MAX_WAIT),
    "run_again": Reaction(replaces=True, queues_next=True),
}


@dataclass(frozen=True, slots=True)
class Meeting:
    """What comes of a submission that meets a job: its outcome, and the job's values afterwards."""

    outcome: Outcome
    takes_over: bool
    """Whether the job takes over the submission's payload, fingerprint and expiry."""
    run_at: float
    urgency: int

    def moves(self, job: Job) -> bool:
        """Tell whether the job is due at another time, or more urgent, than before."""
        return self.run_at != job.run_at or self.urgency != job.urgency


def meet(job: Job, new: Submission, *, now: float) -> Meeting:
    """Return what comes of a submission that meets the job which holds its identity.

    A job that has begun is never touched. One that waits for its first run is pulled forward by whoever wants it
    earlier or with more urgency; `max_wait` allows to put it off, too. Every store does the same in its own language.
    """
    if new.rejects or job.finished_at is not None or job.attempt > 0:
        return Meeting(_untouched(job, new), takes_over=False, run_at=job.run_at, urgency=job.urgency)
    takes_over = new.replaces and new.fingerprint != job.fingerprint
    return Meeting(
        Outcome.REPLACED if takes_over else Outcome.ATTACHED,
        takes_over=takes_over,
        run_at=min(now + new.delay, max(job.run_at, job.created_at + new.max_wait)),
        urgency=max(job.urgency, new.urgency),
    )


def _untouched(job: Job, new: Submission) -> Outcome:
    if new.rejects:
        return Outcome.REJECTED
    if job.finished_at is not None:
        return Outcome.REPLAYED
    return Outcome.QUEUED_NEXT if new.queues_next else Outcome.ATTACHED


def reaction_of(
    task: str, on_duplicate: object, max_wait: object, unique_until: object, unique_for: object
) -> Reaction:
    """Return the reaction that a task's options ask for. Raises `ConfigurationError` for options that cannot work."""
    if not isinstance(on_duplicate, str) or on_duplicate not in REACTIONS:
        msg = f"on_duplicate of task {task} is one of {', '.join(map(repr, REACTIONS))}, not {on_duplicate!r}"
        raise ConfigurationError(msg)
    reaction = REACTIONS[on_duplicate]
    if reaction.queues_next and (unique_until == "started" or unique_for is not None):
        msg = (
            f"task {task} runs again after a run that is under way, so it cannot be unique until it started, "
            "nor for a while after its success: drop unique_until and unique_for, or choose another on_duplicate"
        )
        raise ConfigurationError(msg)
    if max_wait is None:
        return reaction
    if not reaction.max_wait:
        msg = f"max_wait of task {task} bounds on_duplicate='replace', and has no meaning with {on_duplicate!r}"
        raise ConfigurationError(msg)
    check_seconds(f"max_wait of task {task}", max_wait)
    return Reaction(replaces=True, max_wait=float(max_wait))  # type: ignore[arg-type] # it has just been checked
