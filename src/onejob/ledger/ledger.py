"""The ledger: the use cases on top of a store. It applies the rules of the lifecycle and fences the writes of runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, Self, TypeAlias

from onejob import errors
from onejob.jobs.lifecycle import FINAL, RULES, State, Transition
from onejob.jobs.model import (
    Admission,
    Applied,
    BrokerMessage,
    Cancel,
    Change,
    Duplicate,
    Job,
    MessageOf,
    Outcome,
    Renewal,
    Retention,
    Submission,
    value,
    values_of,
)
from onejob.jobs.policy import Policy
from onejob.jobs.records import COMPLETED, UNREGISTERED, AuditEntry, Registration
from onejob.jobs.timestamps import format_timestamp
from onejob.jobs.transitions import cancel_change, change_of, ending_change, retention
from onejob.ledger.reader import AUDIT_LIMIT, AUDIT_SECONDS, JobReader
from onejob.ledger.stuck import follows_another, is_follower
from onejob.observability import events
from onejob.observability.events import Listener
from onejob.stores.protocol import BATCH_LIMIT, WINDOW_OVER, Store, TransactionalStore
from onejob.transactions.sessions import OpenTransaction

Result: TypeAlias = "Admission | errors.StoreError | errors.QuotaExceededError"
Write: TypeAlias = "Callable[[Sequence[Submission]], list[Admission]]"
"""Has the store write submissions, with the options of one call."""
TRIES = 20
"""How often an operation is tried again after another change of its job."""


@value(slots=True, kw_only=True)
class NextRun:
    """What a job runs next, when a run ends in a retry or in its replacement by another task."""

    payload: str
    options: str
    retries: int
    route: str | None = None
    """None: the job's own."""
    delay: float = 0.0
    """Seconds until it is due."""
    wake_after: float | None = None
    """Seconds until a sweeper publishes it; None: as the caller publishes it when it is due."""
    message: BrokerMessage | None = None
    withheld: bool = False
    """Whether workers that take jobs from the ledger do not get it before that sweep."""

    @classmethod
    def again(cls, job: Job, *, delay: float, retries: int) -> Self:
        """Return one more run of the same."""
        return cls(payload=job.payload, options=job.options, retries=retries, delay=delay)

    @classmethod
    def of(cls, submission: Submission) -> Self:
        """Return the run of a submission."""
        return cls(
            payload=submission.payload, options=submission.options, route=submission.route, retries=submission.retries,
            delay=submission.delay,
        )  # fmt: skip

    def applied_to(self, job: Job) -> Job:
        """Return a job as it is for that run."""
        route = job.route if self.route is None else self.route
        return replace(job, payload=self.payload, options=self.options, retries=self.retries, route=route)

    def changes_of(self, job: Job) -> dict[str, object]:
        """Return the values of the change that queues a job for it."""
        wake_after = (self.delay if self.delay > 0 else job.lease) if self.wake_after is None else self.wake_after
        return {
            "payload": self.payload, "options": self.options, "retries": self.retries, "route": self.route,
            "run_in": self.delay, "wake_after": wake_after, "message": self.message,
            "publishes": self.withheld or (self.wake_after is None and self.delay <= 0),
        }  # fmt: skip


class Ledger(JobReader):
    """The operations on jobs. Safe to use from many threads and processes.

    `emit` is called with a `JobEvent` after each transition, in the same thread. It must not raise, as the job has
    changed already: `emit_to` catches errors.
    `at_close` is called before the store is closed.
    `request_id`: the same for each repetition of a change whose reply may have been lost, which is then applied once.
    `message`, of the job afterwards: only for a `MessagePushingStore`. Without it the caller or a sweeper publishes.
    """

    def __init__(
        self, store: Store, policy: Policy | None = None, emit: Listener | None = None,
        at_close: Callable[[], object] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(store)
        self.policy = policy or Policy()
        self.emit: Listener = emit or (lambda _event: None)
        self._at_close = at_close

    def in_transaction(self, transaction: OpenTransaction, emit: Listener | None = None) -> Ledger:
        """Return a ledger that works in a user's open transaction. Raises `ConfigurationError` if the store cannot.

        Its writes take effect with the commit, so no events are emitted, except to `emit`, which must wait for that.
        """
        if not isinstance(self.store, TransactionalStore):
            raise errors.ConfigurationError(
                "this ledger cannot take part in a transaction of your database: it is stored elsewhere. "
                "Keep it in that database (onejob_store='postgresql://...'), or guard your effects with onejob.fence"
            )
        return Ledger(self.store.in_transaction(transaction), self.policy, emit)

    # --- submissions ------------------------------------------------------------------------------------------------

    def submit(self, submission: Submission, *, wake_after: float | None = None) -> Admission:
        """Submit a job. Raises `StoreUnavailableError` if the store does not answer: then the outcome is unknown.

        `wake_after`: seconds until a sweeper publishes a job that is due; None: one lease, as the caller publishes it.
        """
        wake_after = submission.lease if wake_after is None else wake_after
        write = partial(self.store.submit_many, wake_after=wake_after)
        return self._finish(submission, write([submission])[0], write)

    def submit_many(
        self, submissions: Sequence[Submission], *, wait_for_locks: bool = True, message_of: MessageOf | None = None
    ) -> list[Admission]:
        """Submit many jobs, in a few round trips per `BATCH_LIMIT`; return the admissions in the same order.

        Each submission is atomic. If the store or a quota refuses some, the others are admitted, and
        `PartlySubmittedError` has the result of each; a single one raises its own error. After a
        `StoreUnavailableError` any may be admitted, and submitting all again is harmless.
        Without `wait_for_locks`, a row that another transaction has locked raises `StoreBusyError`. `message_of`
        returns the message of a new job for a `MessagePushingStore`.
        """
        if not submissions:
            return []
        wake_after = submissions[0].lease if len(submissions) == 1 else max(each.lease for each in submissions)
        write = partial(
            self.store.submit_many, wake_after=wake_after, wait_for_locks=wait_for_locks, message_of=message_of
        )
        if len(submissions) == 1:
            return [self._finish(submissions[0], write(submissions)[0], write)]
        results: list[Any] = []
        for start in range(0, len(submissions), BATCH_LIMIT):
            results += self._submit_batch(submissions[start : start + BATCH_LIMIT], write)
        return errors.PartlySubmittedError.checked(results)

    def _submit_batch(self, batch: Sequence[Submission], write: Write) -> list[Result]:
        unique, duplicates = _split_duplicates(batch)
        answers = dict(zip(unique, self._submit_all([batch[index] for index in unique], write), strict=True))
        for first, others in duplicates.items():
            recorded = self._record_coalesced(answers[first], [batch[index] for index in others])
            answers |= zip(others, recorded, strict=True)
        return [answers[index] for index in range(len(batch))]

    def _submit_all(self, submissions: Sequence[Submission], write: Write) -> list[Result]:
        try:
            found: Sequence[Any] = write(submissions)
        except errors.StoreUnavailableError:
            raise
        except errors.PartlySubmittedError as error:
            found = error.results
        except (errors.StoreError, errors.QuotaExceededError) as error:
            return [error for _ in submissions]
        results: list[Result] = []
        for submission, each in zip(submissions, found, strict=True):
            try:
                results.append(self._finish(submission, each, write) if isinstance(each, Admission) else each)
            except errors.StoreUnavailableError:
                raise
            except (errors.StoreError, errors.QuotaExceededError) as error:  # of a submission that was written again
                results.append(error)
        return results

    def _record_coalesced(self, first: Result, duplicates: Sequence[Submission]) -> Sequence[Result]:
        """Record the duplicates of a submission; return their answers, as if they came one after the other."""
        if not isinstance(first, Admission):
            return [first for _ in duplicates]
        outcome, job = first.outcome, first.job
        if outcome is Outcome.ADMITTED:
            outcome = Outcome.REJECTED if duplicates[0].rejects else Outcome.ATTACHED
        admissions = [
            Admission(replace(job, duplicate_count=job.duplicate_count + number), outcome)
            for number, _ in enumerate(duplicates, start=1)
        ]
        with suppress(errors.StoreError):  # the jobs are admitted, and an error here must not prevent their publication
            self.store.record(Duplicate.of(duplicates[0], admissions[0]), also=[each.nonce for each in duplicates[1:]])
        for admission in admissions:
            self.emit(events.submission_event(admission))
        return admissions

    def _finish(self, submission: Submission, admission: Admission, write: Write) -> Admission:
        """Return the answer to a submission; it is written again if its job has expired and no sweep has seen it."""
        job = admission.job
        shared = submission.follows or submission.key is not None  # they depend on that job
        if not shared and admission.outcome in {Outcome.ATTACHED, Outcome.REJECTED} and job.expires_at is not None:
            admission = write([submission])[0] if self.cancel_if_due(job).state.final else admission
        self.emit(events.submission_event(admission))
        return admission

    def follow(self, submission: Submission, *, follows_id: str) -> Job | None:
        """Submit a follower, which is due when another job ends; None if that job does not exist.

        A repeated call (the same id) returns the existing job.
        """
        return self.store.follow(submission, follows_id=follows_id)

    def record(self, duplicate: Duplicate) -> None:
        """Store and count a duplicate that was found otherwise than by a submission."""
        self.store.record(duplicate)

    # --- runs -------------------------------------------------------------------------------------------------------

    def claim(self, job_id: str, *, nonce: str, node: str) -> Applied:
        """Claim a job for a run. A refusal raises no error; the returned job shows its reason."""
        sources = RULES[Transition.CLAIM].sources
        claimed = self.store.claim(job_id, nonce=nonce, node=node, sources=sources, target=State.RUNNING)
        job = claimed.job
        if claimed.applied and job is not None:
            self.emit(events.claim_event(job))
        if claimed.applied or job is None:
            return claimed
        if job.state in sources:
            job = self.cancel_if_due(job)
        self.emit(events.claim_refused_event(job, node))
        return Applied(applied=False, job=job)

    def renew(self, claims: Sequence[tuple[str, str]]) -> list[Renewal]:
        """Extend the leases of (job id, nonce) pairs in one call."""
        return self.store.renew(claims, sources=RULES[Transition.RENEW].sources) if claims else []

    def report(self, job: Job, progress: str) -> None:
        """Store a run's progress (JSON). Raises `LeaseLost` or `JobCanceled` if the run has to stop."""
        cancel = self.store.report(job.id, job.token, progress, sources=RULES[Transition.UPDATE_PROGRESS].sources)
        if cancel is None:
            raise errors.LeaseLost(job.id)
        if cancel is not Cancel.NO:
            raise errors.JobCanceled(job.id)

    def keep_step(self, job: Job, name: str, value: str) -> str:
        """Memoise a step's value (JSON) and return the stored value. Raises `LeaseLost`."""
        kept = self.store.keep_step(job.id, job.token, name, value, sources=RULES[Transition.UPDATE_PROGRESS].sources)
        if kept is None:
            raise errors.LeaseLost(job.id)
        return kept

    def release_identity(self, job: Job) -> Job:
        """Release a run's identity before its end, so that an equal job can be admitted. Raises `StaleTokenError`."""
        return self._fenced(job, Transition.RELEASE_IDENTITY, None, keeps_identity=False, detail="a run has started")

    def complete(self, job: Job, result: str, *, keep: Retention | None = None, request_id: str | None = None) -> Job:
        """Complete a job with the result (JSON) of its run. Raises `StaleTokenError` if the run has lost the job.

        `keep`: how long the job still holds its identity, so that its result answers duplicates.
        """
        kept: dict[str, object] = {} if keep is None else {"keeps_identity": job.holds_identity, **values_of(keep)}
        if keep is not None and not job.canvas_pending:
            kept["wake_after"] = retention(self.policy, State.COMPLETED, holds_identity=True)
        return self._fenced(job, Transition.COMPLETE, COMPLETED, result=result, request_id=request_id, **kept)

    def fail(self, job: Job, error: str, reason: str, *, request_id: str | None = None) -> Job:
        """End a run with an error (JSON), for good. Raises `StaleTokenError`."""
        return self._fenced(job, Transition.FAIL, reason, error=error, request_id=request_id)

    def abandon(self, job: Job, reason: str, *, request_id: str | None = None) -> Job:
        """End a run as canceled. Raises `StaleTokenError`."""
        return self._fenced(job, Transition.ABANDON, reason, request_id=request_id)

    def retry(
        self, job: Job, next_run: NextRun, *, error: str | None, reason: str, request_id: str | None = None
    ) -> Job:
        """Have a job run again, after a run that ended with an error (JSON). Raises `StaleTokenError`."""
        values = next_run.changes_of(job)
        return self._fenced(job, Transition.RETRY, reason, error=error, request_id=request_id, **values)

    def replace(self, job: Job, next_run: NextRun, *, canvas: bool, reason: str, request_id: str | None = None) -> Job:
        """Have a job go on as another task, without its steps. Raises `StaleTokenError`.

        Its id, identity, idempotency keys, followers and history stay. `canvas`: whether one waits for its end.
        """
        return self._fenced(
            job, Transition.REPLACE, reason, canvas_pending=canvas, crashes=0, forgets_steps=True,
            request_id=request_id, **next_run.changes_of(job),
        )  # fmt: skip

    def release(
        self, job: Job, reason: str, *, wake_after: float | None = None, message: BrokerMessage | None = None,
        withheld: bool = False,
    ) -> Job:  # fmt: skip
        """Return a job to the queue without counting a failure. Raises `StaleTokenError`.

        `wake_after`: seconds until a sweeper publishes it; one lease for a caller that publishes it itself.
        `withheld`: workers that take jobs from the ledger do not get it before that sweep.
        """
        return self._fenced(
            job, Transition.RELEASE, reason, publishes=wake_after is None or withheld, message=message,
            wake_after=job.lease if wake_after is None else wake_after,
        )  # fmt: skip

    def crash(
        self, job: Job, reason: str, error: str, *, lapsed: bool = False, wake_after: float | None = None,
        message: BrokerMessage | None = None,
    ) -> Applied:  # fmt: skip
        """Record the loss of a run's worker: the job is queued again, or at the crash limit becomes a dead letter.

        With `lapsed` only if the lease has expired. `wake_after`: seconds until a sweeper publishes it; one lease for a
        caller that publishes it itself. Refused if that run has lost the job.
        """
        crashes = job.crashes + 1
        values = {"token": job.token, "lapsed": lapsed, "crashes": crashes}
        if crashes >= self.policy.crash_limit:
            reason = f"{reason}; it was lost with its worker {crashes} times, which is the limit"
            return self.change(job, Transition.DEAD_LETTER, reason, error=error, **values)
        return self.change(
            job, Transition.CRASH, reason, publishes=wake_after is None, message=message,
            wake_after=job.lease if wake_after is None else wake_after, **values,
        )  # fmt: skip

    def mark_canvas_notified(self, job: Job) -> None:
        """Record that the canvas of a job, if there is one, was notified of its end."""
        if job.canvas_pending:
            wake_after = retention(self.policy, job.state, holds_identity=job.holds_identity)
            error = "" if job.publish_error else None
            self.change(
                job, Transition.CANVAS_NOTIFIED, None, canvas_pending=False, publish_error=error, wake_after=wake_after
            )

    # --- operators ----------------------------------------------------------------------------------------------------

    def cancel(self, job_id: str, *, force: bool = False, reason: str = "canceled on request") -> Job:
        """Cancel a job: at once unless it is running, else by a request to the run (`force`: its worker kills it).

        Returns the job, unchanged if it has ended, or its run has such a request. Raises `JobNotFoundError`.
        """
        cancel = Cancel.FORCED if force else Cancel.ASKED
        for _ in range(TRIES):
            job = self.get(job_id)
            if job.state.final or (job.state is State.RUNNING and job.cancel >= cancel):
                return job
            applied = self._settle(cancel_change(self.policy, job, cancel, reason))
            if applied.applied and applied.job is not None:
                return applied.job
        return self.get(job_id)

    def run_now(
        self, job_id: str, *, reason: str = "made due",
        message_of: Callable[[Job], BrokerMessage | None] = lambda _: None,
    ) -> Job:  # fmt: skip
        """Make a delayed or retrying job due at once, and return it; one that is due already is unchanged.

        `message_of`: returns the message that a store which can pushes; without it a sweep publishes the job. Raises
        `JobNotFoundError`, and `NotWaitingError` for a job that runs, has ended, or waits for the end of another one.
        """
        for _ in range(TRIES):
            job = self.get(job_id)
            if job.state not in RULES[Transition.RUN_NOW].sources:
                raise errors.NotWaitingError(job_id, job.state)
            if job.queued_next or follows_another(job):
                raise errors.NotWaitingError(job_id, job.state, job.follows_id or "")
            if job.run_at <= self.read_clock():
                return job
            message = message_of(job)
            applied = self.change(
                job, Transition.RUN_NOW, None, token=job.token, run_in=0.0, wake_after=job.lease if message else 0.0,
                message=message, detail=reason, publishes=message is not None, published=0, publish_error="",
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
        `NoDeadLetterError`, also for a follower, and `IdentityHeldError` if another job holds its identity.
        """
        job = self.get(job_id)
        if is_follower(job):
            raise errors.NoDeadLetterError(job_id, job.state, str(job.follows_id))
        applied = self.change(
            job, Transition.REDRIVE, reason, reopens=True, forgets_steps=forget_steps, canvas_pending=canvas,
            wake_after=job.lease if message else 0.0, run_in=0.0, message=message, retries=0, crashes=0,
            cancel=Cancel.NO, publishes=message is not None,
        )  # fmt: skip
        if applied.applied and applied.job is not None:
            return applied.job
        job = applied.job or self.get(job_id)
        if job.state is not State.FAILED:
            raise errors.NoDeadLetterError(job_id, job.state)
        holder = self.store.find_existing(job.identity, None)
        raise errors.IdentityHeldError(
            job_id, holder.id if holder else "unknown", holder.state if holder else "deleted meanwhile"
        )

    def rejoin(self, job: Job, *, canvas: bool, reason: str = "waits again") -> Job | None:
        """Have a failed follower wait again for the end of the job that it follows, and has been redriven.

        `canvas`: notify its canvas of the new end. Returns None if it has not failed, or was deleted.
        """
        followed = self.store.get_many([str(job.follows_id)]).get(str(job.follows_id))
        applied = self.change(
            job, Transition.REDRIVE, f"{reason} for the end of {job.follows_id}", reopens=True, rejoins=True,
            canvas_pending=canvas, wake_after=0.0 if followed is None or followed.state.final else job.lease,
            run_in=0.0, retries=0, crashes=0, cancel=Cancel.NO, publishes=False,
        )  # fmt: skip
        return applied.job if applied.applied else None

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
                raise errors.JobNotEndedError(job_id, job.state)
            raise errors.UniquenessWindowError(job_id, job.state, format_timestamp(job.identity_until or 0.0))

    def drop(self, job_id: str) -> None:
        """Delete a dead letter; its tombstone remains. Raises `JobNotFoundError` and `NoDeadLetterError`."""
        if not self._delete(job_id, RULES[Transition.REDRIVE].sources):
            raise errors.NoDeadLetterError(job_id, self.get(job_id).state)

    def _delete(self, job_id: str, sources: frozenset[State]) -> bool:
        deleted = self.store.delete([job_id], sources=sources, tombstone_for=self.policy.tombstone_retention)
        if deleted:
            self.emit(events.JobEvent(events.DELETED, events.one_line(job_id)))
        return bool(deleted)

    def remove(self, job: Job) -> None:
        """Delete an ended job without a tombstone, so that its id is free; not if its state has changed."""
        self.store.delete([job.id], sources=frozenset({job.state}))

    # --- sweeps -----------------------------------------------------------------------------------------------------

    def take_due(self, *, tasks: frozenset[str], limit: int, expired_runs: bool = True) -> list[Job]:
        """Return jobs whose `wake_at` is due, for one sweeper; others get them after `Policy.hold` seconds.

        `tasks`: the tasks whose waiting jobs, and jobs with a waiting canvas, are returned besides all others.
        `expired_runs`: whether runs whose lease has expired are.
        """
        return self.store.take_due(tasks=tasks, limit=limit, hold=self.policy.hold, expired_runs=expired_runs)

    def postpone(self, wake_after: Mapping[str, float], taken: Mapping[str, float]) -> None:
        """Have sweeps process jobs that wait, by id, in so many seconds; `taken`: see `CoreStore.postpone`."""
        if wake_after:
            self.store.postpone(wake_after, taken=taken)

    def mark_lost(self, job_ids: Sequence[str], *, wake_after: float = 0.0) -> None:
        """Have sweeps publish waiting jobs again, in so many seconds, because their messages are lost."""
        if job_ids:
            self.store.postpone(dict.fromkeys(job_ids, wake_after), lost=True)

    def purge(self, job_ids: Sequence[str]) -> list[str]:
        """Delete ended jobs to which no idempotency key and no unfinished follower points, and return their ids."""
        tombstone_for = self.policy.tombstone_retention
        purged = self.store.delete(job_ids, sources=FINAL, skip_referenced=True, tombstone_for=tombstone_for)
        if purged:
            self.emit(events.JobEvent(events.PURGED, fields={"count": len(purged)}))
        return purged

    # --- what processes share besides jobs ----------------------------------------------------------------------------

    def keep_event(self, event_id: str, body: str | None, *, keep_for: float) -> str | None:
        """Store an event of webhooks unless it is stored, or with None find it; keep it for at least so many seconds.

        Returns the stored body, or None without one.
        """
        return self.store.keep_event(event_id, body, keep_for=keep_for)

    def append_audit(self, entry: AuditEntry) -> None:
        """Append an entry to the audit log, which keeps the newest ones."""
        self.store.append_audit(entry, keep=AUDIT_LIMIT, keep_for=AUDIT_SECONDS)

    def heartbeat(self, node: str, *, lasts: float, registration: Registration = UNREGISTERED) -> None:
        """Record the heartbeat of a worker, which lasts so many seconds; 0: the worker has stopped."""
        self.store.heartbeat(node, lasts=lasts, registration=registration)

    def close(self) -> None:
        """Close the store."""
        if self._at_close is not None:
            self._at_close()
        self.store.close()

    # --- applying changes ---------------------------------------------------------------------------------------------

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
        job = applied.job if applied.applied else None
        if job is not None and job.cancel is not Cancel.NO and job.state in RULES[Transition.CANCEL].sources:
            return Applied(applied=True, job=self.cancel_if_due(job))
        return applied

    def _apply(self, change: Change) -> Applied:
        applied = self.store.apply(change)
        if applied.applied and applied.job is not None:
            self.emit(events.transition_event(change.event, applied.job, change))
        return applied

    def _fenced(self, job: Job, transition: Transition, reason: str | None, **values: object) -> Job:
        applied = self.change(job, transition, reason, token=job.token, **values)
        if not applied.applied or applied.job is None:
            raise errors.StaleTokenError(
                job.id, job.token, "deleted" if applied.job is None else str(applied.job.state)
            )
        return applied.job


# --- equal submissions of a batch: one of them is submitted, the others are only counted ------------------------------


_read_common = attrgetter(
    "identity", "fingerprint", "task", "delay", "expires_in", "priority_rank", "rejects", "max_wait", "source",
    "submitter", "host", "charges",
)  # fmt: skip
"""Returns what equal submissions have in common."""


def _split_duplicates(submissions: Sequence[Submission]) -> tuple[list[int], dict[int, list[int]]]:
    """Return the indexes of the submissions that have to be submitted, and by such an index those of its duplicates.

    If one submission of an identity may change a job or needs its own answer, all of that identity are submitted.
    """
    special = {
        each.identity
        for each in submissions
        if each.key is not None or each.follows or each.canvas or each.replaces or each.queue_next
    }
    firsts: dict[Hashable, int] = {}
    unique: list[int] = []
    duplicates: dict[int, list[int]] = defaultdict(list)
    for index, submission in enumerate(submissions):
        first = index if submission.identity in special else firsts.setdefault(_read_common(submission), index)
        if first == index or submissions[first].nonce == submission.nonce:  # the latter is a repeated request
            unique.append(index)
        else:
            duplicates[first].append(index)
    return unique, duplicates
