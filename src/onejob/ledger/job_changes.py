"""Changes of jobs that belong to no run: what operators and sweeps do, and how every change is applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.errors import (
    IdentityHeldError,
    JobNotEndedError,
    NoDeadLetterError,
    NotWaitingError,
    UniquenessWindowError,
)
from onejob.jobs.lifecycle import FINAL, RULES, State, Transition
from onejob.jobs.model import Applied, Cancel
from onejob.jobs.policy import Policy
from onejob.jobs.timestamps import format_timestamp
from onejob.jobs.transitions import cancel_change, change_of, ending_change, queued_anew
from onejob.ledger.shared import SharedState
from onejob.ledger.stuck import follows_another
from onejob.observability.events import DELETED, JobEvent, change_event, one_line
from onejob.stores.protocol import WINDOW_OVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.jobs.model import BrokerMessage, Change, Job
    from onejob.observability.events import Listener
    from onejob.stores.protocol import Store

    MessageOf = Callable[[Job], BrokerMessage | None]

TRIES = 20
"""How often an operation is tried again after another change of its job."""


class JobChanges(SharedState):
    """The operations on any job, by the rules of the lifecycle."""

    def __init__(self, store: Store, policy: Policy | None = None, emit: Listener | None = None) -> None:
        super().__init__(store)
        self.policy = policy or Policy()
        self.emit: Listener = emit or (lambda _event: None)

    def cancel(self, job_id: str, *, force: bool = False, reason: str = "canceled on request") -> Job:
        """Cancel a job: at once unless it is running, else by a request to the run (`force`: its worker kills it).

        Returns the job afterwards; a job that has ended is unchanged. Raises `JobNotFoundError`.
        """
        for _ in range(TRIES):
            job = self.get(job_id)
            if job.state.final:
                return job
            cancel = Cancel.FORCED if force else Cancel.ASKED
            applied = self._settle(cancel_change(self.policy, job, cancel, reason))
            if applied.applied and applied.job is not None:
                return applied.job
        return self.get(job_id)

    def run_now(self, job_id: str, *, reason: str = "made due", message_of: MessageOf = lambda _: None) -> Job:
        """Make a delayed or retrying job due at once, and return it; one that is due already is unchanged.

        `message_of`: returns the message that a store which can pushes; without it a sweep publishes the job. Raises
        `JobNotFoundError`, and `NotWaitingError` for a job that runs, has ended, or waits for the end of another one.
        """
        for _ in range(TRIES):
            job = self.get(job_id)
            if job.state not in RULES[Transition.RUN_NOW].sources:
                raise NotWaitingError(job_id, job.state)
            if job.queued_next or follows_another(job):
                raise NotWaitingError(job_id, job.state, job.follows_id or "")
            if job.run_at <= self.read_clock():
                return job
            message = message_of(job)
            applied = self.change(
                job, Transition.RUN_NOW, None, token=job.token, run_in=0.0, wake_after=job.lease if message else 0.0,
                message=message, detail=reason, **queued_anew(publishes=message is not None),
            )  # fmt: skip
            if applied.applied and applied.job is not None:
                return applied.job
        return self.get(job_id)

    def redrive(
        self, job_id: str, *, forget_steps: bool = False, canvas: bool = False, reason: str = "redriven",
        message: BrokerMessage | None = None,
    ) -> Job:  # fmt: skip
        """Redrive a dead letter: the failed job is queued again under its id, with its memoised steps.

        `forget_steps`: delete the steps. `canvas`: notify its canvas of the new end. Raises `JobNotFoundError`,
        `NoDeadLetterError`, and `IdentityHeldError` if another job holds its identity.
        """
        job = self.get(job_id)
        applied = self.change(
            job, Transition.REDRIVE, reason, reopens=True, forgets_steps=forget_steps, canvas_pending=canvas,
            wake_after=job.lease if message else 0.0, run_in=0.0, message=message, retries=0, crashes=0,
            cancel=Cancel.NO, **queued_anew(publishes=message is not None),
        )  # fmt: skip
        if applied.applied and applied.job is not None:
            return applied.job
        job = applied.job or self.get(job_id)
        if job.state is not State.FAILED:
            raise NoDeadLetterError(job_id, job.state)
        holder = self.store.find_existing(job.identity, None)
        raise IdentityHeldError(
            job_id, holder.id if holder else "unknown", holder.state if holder else "deleted meanwhile"
        )

    def promote(self, job: Job) -> Job | None:
        """Give the job that is queued next its identity; None if another job still holds it."""
        applied = self.change(job, Transition.PROMOTE, "promoted", reopens=True, wake_after=job.lease)
        return applied.job if applied.applied else None

    def delete(self, job_id: str) -> None:
        """Delete an ended job; its tombstone remains. Raises `JobNotFoundError`, and `JobNotEndedError` for a live job.

        Raises `UniquenessWindowError` for a job that still answers duplicates with its result.
        """
        job = self.get(job_id)
        if job.state.final and job.holds_identity and (job.identity_until or 0.0) <= self.read_clock():
            self.change(job, Transition.RELEASE_IDENTITY, None, keeps_identity=False, detail=WINDOW_OVER)
        if not self._delete(job_id, FINAL):
            job = self.get(job_id)
            if not job.state.final:
                raise JobNotEndedError(job_id, job.state)
            raise UniquenessWindowError(job_id, job.state, format_timestamp(job.identity_until or 0.0))

    def drop(self, job_id: str) -> None:
        """Delete a dead letter; its tombstone remains. Raises `JobNotFoundError` and `NoDeadLetterError`."""
        if not self._delete(job_id, RULES[Transition.REDRIVE].sources):
            raise NoDeadLetterError(job_id, self.get(job_id).state)

    def _delete(self, job_id: str, sources: frozenset[State]) -> bool:
        deleted = self.store.delete([job_id], sources=sources, tombstone_for=self.policy.tombstone_retention)
        if deleted:
            self.emit(JobEvent(DELETED, one_line(job_id)))
        return bool(deleted)

    def remove(self, job: Job) -> None:
        """Delete an ended job without a tombstone, so that its id is free; not if its state has changed."""
        self.store.delete([job.id], sources=frozenset({job.state}))

    # --- applying changes -------------------------------------------------------------------------------------------

    def change(self, job: Job, transition: Transition, reason: str | None, **values: object) -> Applied:
        """Apply a transition to a job, if the rules and the conditions in `values` (see `Change`) hold."""
        return self._settle(change_of(self.policy, job, transition, reason, **values))

    def cancel_if_due(self, job: Job) -> Job:
        """Cancel a waiting job that has expired, or whose cancellation was requested."""
        change = ending_change(self.policy, job)
        return job if change is None else self._apply(change).job or job

    def _settle(self, change: Change) -> Applied:
        """Apply a change; cancel the job if it is waiting then and its cancellation was requested."""
        applied = self._apply(change)
        job = applied.job
        if (
            not applied.applied
            or job is None
            or job.cancel is Cancel.NO
            or job.state not in RULES[Transition.CANCEL].sources
        ):
            return applied
        return Applied(applied=True, job=self.cancel_if_due(job))

    def _apply(self, change: Change) -> Applied:
        applied = self.store.apply(change)
        if applied.applied and applied.job is not None:
            self.emit(change_event(change, applied.job))
        return applied
