"""The ledger: the use cases on top of a store. Every rule of the lifecycle is decided here, every write fenced."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from onejob.errors import (
    ConfigurationError,
    IdentityHeldError,
    JobCanceled,
    JobNotFoundError,
    JobPurgedError,
    LeaseLost,
    NoDeadLetterError,
    StaleTokenError,
    StoreError,
)
from onejob.jobs.lifecycle import FINAL, RULES, State, Transition
from onejob.jobs.model import Applied, Cancel, Duplicate, Outcome, values_of
from onejob.jobs.policy import Policy
from onejob.jobs.timestamps import format_timestamp
from onejob.jobs.transitions import cancel_change, change_of, ending_change, new_nonce, retention
from onejob.ledger.coalesce import duplicate_admissions, split_duplicates
from onejob.observability.events import (
    DROPPED,
    JobEvent,
    change_event,
    claim_event,
    claim_refused_event,
    one_line,
    purge_event,
    submission_event,
)
from onejob.stores.protocol import BATCH_LIMIT, TransactionalStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from onejob.jobs.model import (
        Admission,
        Change,
        DuplicateCount,
        Entry,
        Job,
        Query,
        QuotaUse,
        Renewal,
        Retention,
        Submission,
    )
    from onejob.observability.events import Listener
    from onejob.stores.protocol import GroupBy, Store, Transaction

CANCEL_TRIES = 20


class Ledger:
    """What can be done with jobs. Safe to use from many threads and processes.

    `tell` is called with a `JobEvent` after each thing that has happened, in the thread in which it happened; what it
    raises, the caller gets. `at_close` is called before the store lets go of its connections.
    """

    def __init__(
        self, store: Store, policy: Policy | None = None, emit: Listener | None = None,
        at_close: Callable[[], object] | None = None,
    ) -> None:  # fmt: skip
        self.store = store
        self.policy = policy or Policy()
        self.emit: Listener = emit or (lambda _fact: None)
        self._at_close = at_close

    def in_transaction(self, transaction: Transaction, emit: Listener | None = None) -> Ledger:
        """Return this ledger as a part of somebody else's transaction. Raises `ConfigurationError` if it cannot be.

        What happens in it is true when it is committed, so nobody is told of it, or `tell`, which waits for that.
        """
        if not isinstance(self.store, TransactionalStore):
            msg = (
                "this ledger cannot take part in a transaction of your database: it lives elsewhere. "
                "Keep it in that database (onejob_store='postgresql://...'), or guard your effects with onejob.fence"
            )
            raise ConfigurationError(msg)
        return Ledger(self.store.in_transaction(transaction), self.policy, emit)

    # --- asking for a job -------------------------------------------------------------------------------------------

    def submit(self, submission: Submission, *, wake_in: float | None = None) -> Admission:
        """Ask for a job. Raises `StoreUnavailableError` when the store does not answer: then nothing is promised.

        `wake_in`: seconds until a sweeper publishes a job that is due; None: one lease, as the caller publishes it.
        """
        wake_in = submission.lease if wake_in is None else wake_in
        return self._answered(submission, self._submit(submission, wake_in), wake_in)

    def submit_many(self, submissions: Sequence[Submission], *, wait_for_locks: bool = True) -> list[Admission]:
        """Ask for many jobs, in a few round trips per thousand; the answers come in the same order.

        Each is whole in itself: when the store does not answer in the middle, the thousands before that are admitted,
        and asking again for all of them is harmless. With `patient=False` no row that another transaction holds is
        waited for longer than a moment: `StoreBusyError`.
        """
        answers: list[Admission] = []
        for batch in (submissions[start : start + BATCH_LIMIT] for start in range(0, len(submissions), BATCH_LIMIT)):
            alone, repeats = split_duplicates(batch)
            came = dict(
                zip(
                    alone,
                    self._submit_all([batch[place] for place in alone], wait_for_locks=wait_for_locks),
                    strict=True,
                )
            )
            for first, others in repeats.items():
                counted = self._count_repeats(came[first], [batch[place] for place in others])
                came |= zip(others, counted, strict=True)
            answers += [came[place] for place in range(len(batch))]
        return answers

    def _submit_all(self, submissions: Sequence[Submission], *, wait_for_locks: bool) -> list[Admission]:
        wake_in = max(submission.lease for submission in submissions)
        found = self.store.submit_many(submissions, wake_in=wake_in, wait_for_locks=wait_for_locks)
        return [self._answered(*each, wake_in) for each in zip(submissions, found, strict=True)]

    def _count_repeats(self, first: Admission, repeats: Sequence[Submission]) -> list[Admission]:
        answers = duplicate_admissions(first, repeats)
        with suppress(StoreError):  # the jobs are admitted, and this must not keep their messages back
            self.store.record(Duplicate.of(repeats[0], answers[0]), also=[repeat.nonce for repeat in repeats[1:]])
        for answer in answers:
            self.emit(submission_event(answer))
        return answers

    def attach_existing(self, submission: Submission) -> Admission | None:
        """Have a job that is there answer a submission, with all that comes of it; None when a new job would.

        One that would take over its arguments, or run after it, is not answered. When that job ends at this very moment
        a new one comes of it after all: that one has expired before it can start.
        """
        if submission.replaces or self.store.find_existing(submission.identity, submission.key) is None:
            return None
        if submission.key is not None and self.store.find_existing("", submission.key) is None:
            submission = replace(
                submission, key=None
            )  # which is not to be answered by such a job for as long as keys are kept
        admission = self._submit(replace(submission, expires_in=0.0), submission.lease)
        if admission.outcome is not Outcome.ADMITTED:
            self.emit(submission_event(admission))
            return admission
        self.cancel_if_due(admission.job)
        return None

    def _submit(self, submission: Submission, wake_in: float) -> Admission:
        return self.store.submit_many([submission], wake_in=wake_in)[0]

    def _answered(self, submission: Submission, admission: Admission, wake_in: float) -> Admission:
        answer = self._unless_expired(submission, admission, wake_in)
        self.emit(submission_event(answer))
        return answer

    def _unless_expired(self, submission: Submission, admission: Admission, wake_in: float) -> Admission:
        """Submit again if the job that was met has expired, and no sweep has seen it yet."""
        job = admission.job
        shared = submission.follows or submission.key is not None  # that job's end, or its answer for good
        if shared or admission.outcome not in {Outcome.ATTACHED, Outcome.REJECTED} or job.expires_at is None:
            return admission
        return self._submit(submission, wake_in) if self.cancel_if_due(job).state.final else admission

    def follow(self, submission: Submission, *, follows_id: str) -> Job | None:
        """Ask for a job that is due when another one has ended, and holds no identity; None: there is no such leader.

        A repeated call (the same id) gets the job that is there.
        """
        return self.store.follow(submission, follows_id=follows_id)

    def record(self, duplicate: Duplicate) -> None:
        """Keep the duplicate of somebody who met a job otherwise than by submitting to this ledger."""
        self.store.record(duplicate)

    def consume(self, name: str, *, limit: int, period: float) -> QuotaUse:
        """Count one use of a name, unless `limit` were counted within `period` seconds from the first of them on."""
        return self.store.consume(name, nonce=new_nonce(), limit=limit, period=period)

    def refund(self, use: QuotaUse) -> None:
        """Take back a use that was counted and came to nothing. Once for each."""
        self.store.consume(use.name, nonce=new_nonce(), limit=0, period=0.0, amount=-1, until=use.until)

    # --- a run and its writes ---------------------------------------------------------------------------------------

    def claim(self, job_id: str, *, nonce: str, node: str) -> Applied:
        """Take the right to run a job. A refusal is an answer, too; the job in it says why."""
        sources = RULES[Transition.CLAIM].sources
        answer = self.store.claim(job_id, nonce=nonce, node=node, sources=sources, target=State.RUNNING)
        job = answer.job
        if answer.applied and job is not None:
            self.emit(claim_event(job))
        if answer.applied or job is None:
            return answer
        if job.state in sources:
            job = self.cancel_if_due(job)
        self.emit(claim_refused_event(job, node))
        return Applied(applied=False, job=job)

    def renew(self, claims: Sequence[tuple[str, str]]) -> list[Renewal]:
        """Extend the leases of (job id, nonce) pairs in one call."""
        return self.store.renew(claims, sources=RULES[Transition.RENEW].sources) if claims else []

    def report(self, job: Job, progress: str) -> None:
        """Keep a run's progress (JSON). Raises `LeaseLost` or `JobCanceled` when the run has to stop."""
        asked = self.store.report(job.id, job.token, progress, sources=RULES[Transition.UPDATE_PROGRESS].sources)
        if asked is None:
            raise LeaseLost(job.id)
        if asked is not Cancel.NO:
            raise JobCanceled(job.id)

    def steps(self, job: Job) -> Mapping[str, str]:
        """Return the memoised steps of a job: name to JSON."""
        return self.store.steps(job.id)

    def keep_step(self, job: Job, name: str, value: str) -> str:
        """Memoise a step's value (JSON) and return the value that is kept. Raises `LeaseLost`."""
        kept = self.store.keep_step(job.id, job.token, name, value, sources=RULES[Transition.UPDATE_PROGRESS].sources)
        if kept is None:
            raise LeaseLost(job.id)
        return kept

    def release_identity(self, job: Job) -> Job:
        """Give a run's identity back before its end, so that an equal job can be admitted. Raises `StaleTokenError`."""
        return self._fenced(job, Transition.RELEASE_IDENTITY, None, keeps_identity=False, detail="a run has started")

    def complete(self, job: Job, result: str, *, keep: Retention | None = None) -> Job:
        """End a run with its result (JSON). Raises `StaleTokenError` when the run is no longer the job's.

        `keep`: for how long the job still holds its identity, so that its result answers equal submissions.
        """
        kept: dict[str, object] = {} if keep is None else {"keeps_identity": job.holds_identity, **values_of(keep)}
        if keep is not None and not job.canvas_pending:
            kept["wake_in"] = retention(self.policy, State.COMPLETED, holds_identity=True)
        return self._fenced(job, Transition.COMPLETE, "completed", result=result, **kept)

    def fail(self, job: Job, error: str, reason: str) -> Job:
        """End a run with an error (JSON), for good. Raises `StaleTokenError`."""
        return self._fenced(job, Transition.FAIL, reason, error=error)

    def abandon(self, job: Job, reason: str) -> Job:
        """End a run as canceled. Raises `StaleTokenError`."""
        return self._fenced(job, Transition.ABANDON, reason)

    def retry(
        self, job: Job, *, delay: float, payload: str, options: str, retries: int, error: str | None, reason: str
    ) -> Job:
        """Have a job run again in `delay` seconds with a new payload. Raises `StaleTokenError`."""
        wake_in = delay if delay > 0 else job.lease
        return self._fenced(
            job, Transition.RETRY, reason, payload=payload, options=options, retries=retries, error=error, run_in=delay,
            wake_in=wake_in, published=0,
        )  # fmt: skip

    def release(self, job: Job, reason: str, *, wake_in: float | None = None) -> Job:
        """Hand a job back to the queue, unharmed. Raises `StaleTokenError`.

        `wake_in`: seconds until a sweeper publishes it; one lease for a caller that publishes it itself.
        """
        wake_in = job.lease if wake_in is None else wake_in
        return self._fenced(job, Transition.RELEASE, reason, wake_in=wake_in, published=0)

    def crash(self, job: Job, reason: str, error: str, *, lapsed: bool = False) -> Applied:
        """Note that a run's worker is gone: the job is queued again, or buried at the crash limit.

        With `lapsed` only if the lease has run out. Refused when that run is no longer the job's.
        """
        crashes = job.crashes + 1
        values = {"token": job.token, "lapsed": lapsed, "crashes": crashes}
        if crashes >= self.policy.crash_limit:
            reason = f"{reason}; it was lost with its worker {crashes} times, which is the limit"
            return self.change(job, Transition.DEAD_LETTER, reason, error=error, **values)
        return self.change(job, Transition.CRASH, reason, wake_in=job.lease, published=0, **values)

    def mark_canvas_notified(self, job: Job) -> None:
        """Note that the canvas behind a job, if there is one, has been told its end."""
        if job.canvas_pending:
            wake_in = retention(self.policy, job.state, holds_identity=job.holds_identity)
            self.change(job, Transition.CANVAS_NOTIFIED, None, canvas_pending=False, wake_in=wake_in)

    # --- what anybody may do ----------------------------------------------------------------------------------------

    def cancel(self, job_id: str, *, force: bool = False, reason: str = "canceled on request") -> Job:
        """Cancel a job: at once before a run, by asking the run otherwise (`force`: its worker ends it).

        Returns the job as it is then; a job that has ended stays as it is. Raises `JobNotFoundError`.
        """
        for _ in range(CANCEL_TRIES):
            job = self.get(job_id)
            if job.state.final:
                return job
            asked = Cancel.FORCED if force else Cancel.ASKED
            applied = self._settle(cancel_change(self.policy, job, asked, reason))
            if applied.applied and applied.job is not None:
                return applied.job
        return self.get(job_id)

    def redrive(
        self, job_id: str, *, forget_steps: bool = False, canvas: bool = False, reason: str = "redriven"
    ) -> Job:
        """Send a dead letter again: the failed job is queued as if new, under its id, with the steps it has done.

        `forget_steps`: it begins from nothing. `canvas`: its end is to be told again to what waits behind it. A sweeper
        publishes it. Raises `JobNotFoundError`, `NoDeadLetterError`, and `IdentityHeldError` when another job is live
        for its identity.
        """
        job = self.get(job_id)
        applied = self.change(
            job, Transition.REDRIVE, reason, reopens=True, forgets_steps=forget_steps, canvas_pending=canvas, wake_in=0.0,
            run_in=0.0, retries=0, crashes=0, published=0, cancel=Cancel.NO,
        )  # fmt: skip
        if applied.applied and applied.job is not None:
            return applied.job
        now = applied.job or self.get(job_id)
        if now.state is not State.FAILED:
            raise NoDeadLetterError(job_id, now.state)
        holder = self.store.find_existing(job.identity, None)
        raise IdentityHeldError(job_id, holder.id if holder else "unknown", holder.state if holder else "gone by now")

    def promote(self, job: Job) -> Job | None:
        """Give a job that waits for its turn its identity; None when another job still holds it."""
        applied = self.change(job, Transition.PROMOTE, "promoted", reopens=True, wake_in=job.lease)
        return applied.job if applied.applied else None

    def drop(self, job_id: str) -> None:
        """Remove a dead letter. Raises `JobNotFoundError` and `NoDeadLetterError`."""
        kept = self.policy.tombstone_retention
        if not self.store.delete([job_id], sources=RULES[Transition.REDRIVE].sources, tombstone_for=kept):
            raise NoDeadLetterError(job_id, self.get(job_id).state)
        self.emit(JobEvent(DROPPED, one_line(job_id)))

    def remove(self, job: Job) -> None:
        """Remove an ended job without a trace, so that another one can have its id; not one that has changed since."""
        self.store.delete([job.id], sources=frozenset({job.state}))

    def take_due(self, *, limit: int) -> list[Job]:
        """Return jobs whose `wake_at` has come, for one sweeper: the next one gets them after `Policy.hold` seconds."""
        return self.store.take_due(limit=limit, hold=self.policy.hold)

    def purge(self, job_ids: Sequence[str]) -> list[str]:
        """Remove ended jobs to which no idempotency key points, and return their ids."""
        kept = self.policy.tombstone_retention
        gone = self.store.delete(job_ids, sources=FINAL, skip_keyed=True, tombstone_for=kept)
        if gone:
            self.emit(purge_event(len(gone)))
        return gone

    def get(self, job_id: str) -> Job:
        """Return a job. Raises `JobNotFoundError`, which is a `JobPurgedError` as long as the purge is remembered."""
        job = self.get_or_none(job_id)
        if job is not None:
            return job
        gone = self.store.tombstone(job_id)
        if gone is None:
            raise JobNotFoundError(job_id)
        raise JobPurgedError(job_id, gone.state, format_timestamp(gone.finished_at), format_timestamp(gone.purged_at))

    def get_or_none(self, job_id: str) -> Job | None:
        """Return a job; None when there is none, or none any more."""
        return self.store.get_many([job_id]).get(job_id)

    def find(self, query: Query) -> list[Job]:
        """Return jobs, newest first."""
        return self.store.find(query)

    def counts(self, query: Query) -> dict[State, int]:
        """Return how many jobs match, by each state."""
        return dict.fromkeys(State, 0) | self.store.counts(query)

    def history(self, job_id: str) -> list[Entry]:
        """Return what happened to a job, oldest first."""
        return self.store.history(job_id)

    def duplicates(self, job_id: str) -> list[Duplicate]:
        """Return the newest duplicates of those who met a job, oldest first."""
        return self.store.duplicates(job_id)

    def duplicate_counts(self, by: GroupBy, *, limit: int = 100) -> list[DuplicateCount]:
        """Return how many have met jobs, ever, for the `limit` names with the most of them, these first."""
        return self.store.duplicate_counts(by, limit=limit)

    def increment(self, amounts: Mapping[str, float]) -> None:
        """Add to the running totals by name, which all processes share."""
        self.store.increment(amounts)

    def heartbeat(self, node: str, *, lasts: float) -> None:
        """Keep the heartbeat of a worker for so many seconds; 0: the worker has stopped."""
        self.store.heartbeat(node, lasts=lasts)

    def close(self) -> None:
        """Let go of the store's connections."""
        if self._at_close is not None:
            self._at_close()
        self.store.close()

    # --- the one way to a change ------------------------------------------------------------------------------------

    def change(self, job: Job, event: Transition, reason: str | None, **values: object) -> Applied:
        """Have an event happen to a job, if the rules and `values` (see `Change`) allow it."""
        return self._settle(change_of(self.policy, job, event, reason, **values))

    def cancel_if_due(self, job: Job) -> Job:
        """Cancel a waiting job whose cancellation was asked for, or whose expiry has come."""
        change = ending_change(self.policy, job)
        return job if change is None else self._apply(change).job or job

    def _fenced(self, job: Job, event: Transition, reason: str | None, **values: object) -> Job:
        applied = self.change(job, event, reason, token=job.token, **values)
        if not applied.applied or applied.job is None:
            raise StaleTokenError(job.id, job.token, "gone" if applied.job is None else str(applied.job.state))
        return applied.job

    def _settle(self, change: Change) -> Applied:
        """Apply a change; a job that comes to wait while its cancellation was asked for is canceled on the spot."""
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
