"""The ledger: the use cases on top of a store. Every rule of the lifecycle is decided here, every write fenced."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from onejob.changes import cancel_change, change_of, ending_change, new_nonce, retention
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
from onejob.facts import DROPPED, Fact, changed, claim_refused, claimed, one_line, purged, submitted
from onejob.job import Applied, Cancel, Outcome, Receipt, values_of
from onejob.lifecycle import FINAL, RULES, Event, State
from onejob.policy import Policy
from onejob.store import BATCH_LIMIT, TransactionalStore
from onejob.twins import answers_of, told_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from onejob.facts import Tell
    from onejob.job import Admission, Change, Entry, Job, Keep, Query, Renewal, Spent, Submission, Tally
    from onejob.store import By, Store, Transaction

CANCEL_TRIES = 20


class Ledger:
    """What can be done with jobs. Safe to use from many threads and processes.

    `tell` is called with a `Fact` after each thing that has happened, in the thread in which it happened; what it
    raises, the caller gets. `at_close` is called before the store lets go of its connections.
    """

    def __init__(
        self,
        store: Store,
        policy: Policy | None = None,
        tell: Tell | None = None,
        at_close: Callable[[], object] | None = None,
    ) -> None:
        self.store = store
        self.policy = policy or Policy()
        self.tell = _nobody if tell is None else tell
        self._at_close = at_close

    def joined(self, transaction: Transaction, tell: Tell | None = None) -> Ledger:
        """Return this ledger as a part of somebody else's transaction. Raises `ConfigurationError` if it cannot be.

        What happens in it is true when it is committed, so nobody is told of it, or `tell`, which waits for that.
        """
        if not isinstance(self.store, TransactionalStore):
            msg = (
                "this ledger cannot take part in a transaction of your database: it lives elsewhere. "
                "Keep it in that database (onejob_store='postgresql://...'), or guard your effects with onejob.fence"
            )
            raise ConfigurationError(msg)
        return Ledger(self.store.joined(transaction), self.policy, tell)

    # --- asking for a job -------------------------------------------------------------------------------------------

    def submit(self, new: Submission, *, wake_in: float | None = None) -> Admission:
        """Ask for a job. Raises `StoreUnavailableError` when the store does not answer: then nothing is promised.

        `wake_in`: seconds until a sweeper publishes a job that is due; by default one lease, for a caller that
        publishes it itself.
        """
        wake_in = new.lease if wake_in is None else wake_in
        return self._answered(new, self.store.submit(new, wake_in=wake_in), wake_in)

    def submit_many(self, news: Sequence[Submission], *, patient: bool = True) -> list[Admission]:
        """Ask for many jobs, in a few round trips per thousand; the answers come in the same order.

        Each is whole in itself: when the store does not answer in the middle, the thousands before that are admitted,
        and asking again for all of them is harmless.

        With `patient=False` nobody waits for more than a moment for a row that somebody else holds: `StoreBusyError`.
        """
        answers: list[Admission] = []
        for batch in (news[start : start + BATCH_LIMIT] for start in range(0, len(news), BATCH_LIMIT)):
            alone, twins = told_apart(batch)
            came = dict(zip(alone, self._submit_all([batch[place] for place in alone], patient=patient), strict=True))
            for first, others in twins.items():
                counted = self._count_twins(came[first], [batch[place] for place in others])
                came |= zip(others, counted, strict=True)
            answers += [came[place] for place in range(len(batch))]
        return answers

    def _submit_all(self, news: Sequence[Submission], *, patient: bool) -> list[Admission]:
        wake_in = max(new.lease for new in news)
        found = self.store.submit_many(news, wake_in=wake_in, patient=patient)
        return [self._answered(*each, wake_in) for each in zip(news, found, strict=True)]

    def _count_twins(self, first: Admission, twins: Sequence[Submission]) -> list[Admission]:
        answers = answers_of(first, twins)
        with suppress(StoreError):  # the jobs are admitted, and this must not keep their messages back
            self.store.record(Receipt.of(twins[0], answers[0]), also=[twin.nonce for twin in twins[1:]])
        for answer in answers:
            self.tell(submitted(answer))
        return answers

    def answer(self, new: Submission) -> Admission | None:
        """Have a job that is there answer a submission, with all that comes of it; None when a new job would.

        One that would take over its arguments, or run after it, is not answered. When that job ends at this very moment
        a new one comes of it after all: that one has expired before it can start.
        """
        if new.replaces or self.store.answering(new.identity, new.key) is None:
            return None
        if new.key is not None and self.store.answering("", new.key) is None:
            new = replace(new, key=None)  # which is not to be answered by such a job for as long as keys are kept
        admission = self.store.submit(replace(new, expires_in=0.0), wake_in=new.lease)
        if admission.outcome is not Outcome.ADMITTED:
            self.tell(submitted(admission))
            return admission
        self.end_if_asked(admission.job)
        return None

    def _answered(self, new: Submission, admission: Admission, wake_in: float) -> Admission:
        answer = self._unless_expired(new, admission, wake_in)
        self.tell(submitted(answer))
        return answer

    def _unless_expired(self, new: Submission, admission: Admission, wake_in: float) -> Admission:
        """Submit again if the job that was met has expired, and no sweep has seen it yet."""
        job = admission.job
        if admission.outcome not in {Outcome.ATTACHED, Outcome.REJECTED} or job.expires_at is None:
            return admission
        if new.follows or new.key is not None:  # it shares that job's end, or has been answered by it for good
            return admission
        return self.store.submit(new, wake_in=wake_in) if self.end_if_asked(job).state.final else admission

    def follow(self, new: Submission, *, leader: str) -> Job | None:
        """Ask for a job that is due when another one has ended, and holds no identity; None: there is no such leader.

        A repeated call (the same id) gets the job that is there.
        """
        return self.store.follow(new, leader=leader)

    def record(self, receipt: Receipt) -> None:
        """Keep the receipt of somebody who met a job otherwise than by submitting to this ledger."""
        self.store.record(receipt)

    def spend(self, name: str, *, limit: int, period: float) -> Spent:
        """Count one use of a name, unless `limit` were counted within `period` seconds from the first of them on."""
        return self.store.spend(name, nonce=new_nonce(), limit=limit, period=period)

    def give_back(self, spent: Spent) -> None:
        """Take back a use that was counted and came to nothing. Once for each."""
        self.store.give_back(spent.name, nonce=new_nonce(), until=spent.until)

    # --- a run and its writes ---------------------------------------------------------------------------------------

    def claim(self, job_id: str, *, nonce: str, node: str) -> Applied:
        """Take the right to run a job. A refusal is an answer, too; the job in it says why."""
        rule = RULES[Event.CLAIM]
        answer = self.store.claim(
            job_id, nonce=nonce, node=node, sources=rule.sources, target=rule.target or State.RUNNING
        )
        job = answer.job
        if job is None:
            return answer
        if answer.done:
            self.tell(claimed(job))
            return answer
        if job.state in rule.sources:
            job = self.end_if_asked(job)
        self.tell(claim_refused(job, node))
        return Applied(done=False, job=job)

    def renew(self, claims: Sequence[tuple[str, str]]) -> list[Renewal]:
        """Extend the leases of (job id, nonce) pairs in one call."""
        return self.store.renew(claims, sources=RULES[Event.RENEW].sources) if claims else []

    def report(self, job: Job, progress: str) -> None:
        """Keep a run's progress (JSON). Raises `LeaseLost` or `JobCanceled` when the run has to stop."""
        asked = self.store.report(job.id, job.token, progress, sources=RULES[Event.REPORT].sources)
        if asked is None:
            raise LeaseLost(job.id)
        if asked is not Cancel.NO:
            raise JobCanceled(job.id)

    def steps(self, job: Job) -> Mapping[str, str]:
        """Return the memoised steps of a job: name to JSON."""
        return self.store.steps(job.id)

    def keep_step(self, job: Job, name: str, value: str) -> str:
        """Memoise a step's value (JSON) and return the value that is kept. Raises `LeaseLost`."""
        kept = self.store.keep_step(job.id, job.token, name, value, sources=RULES[Event.REPORT].sources)
        if kept is None:
            raise LeaseLost(job.id)
        return kept

    def free(self, job: Job) -> Job:
        """Give a run's identity back before its end, so that an equal job can be admitted. Raises `StaleTokenError`."""
        return self._run_says(job, Event.FREE, None, keeps_identity=False, detail="a run has started")

    def complete(self, job: Job, result: str, *, keep: Keep | None = None) -> Job:
        """End a run with its result (JSON). Raises `StaleTokenError` when the run is no longer the job's.

        `keep`: for how long the job still holds its identity, so that its result answers equal submissions.
        """
        kept: dict[str, object] = {} if keep is None else {"keeps_identity": job.holds, **values_of(keep)}
        if keep is not None and not job.undelivered:
            kept["wake_in"] = retention(self.policy, State.COMPLETED, holds=True)
        return self._run_says(job, Event.COMPLETE, "completed", result=result, **kept)

    def fail(self, job: Job, error: str, reason: str) -> Job:
        """End a run with an error (JSON), for good. Raises `StaleTokenError`."""
        return self._run_says(job, Event.FAIL, reason, error=error)

    def abandon(self, job: Job, reason: str) -> Job:
        """End a run as canceled. Raises `StaleTokenError`."""
        return self._run_says(job, Event.ABANDON, reason)

    def retry(
        self, job: Job, *, delay: float, payload: str, options: str, retries: int, error: str | None, reason: str
    ) -> Job:
        """Have a job run again in `delay` seconds with a new payload. Raises `StaleTokenError`."""
        return self._run_says(
            job,
            Event.RETRY,
            reason,
            payload=payload,
            options=options,
            retries=retries,
            error=error,
            run_in=delay,
            wake_in=delay if delay > 0 else job.lease,
            published=0,
        )

    def release(self, job: Job, reason: str, *, wake_in: float | None = None) -> Job:
        """Hand a job back to the queue, unharmed. Raises `StaleTokenError`.

        `wake_in`: seconds until a sweeper publishes it; one lease for a caller that publishes it itself.
        """
        wake_in = job.lease if wake_in is None else wake_in
        return self._run_says(job, Event.RELEASE, reason, wake_in=wake_in, published=0)

    def crash(self, job: Job, reason: str, error: str, *, lapsed: bool = False) -> Applied:
        """Note that a run's worker is gone: the job is queued again, or buried at the crash limit.

        With `lapsed` only if the lease has run out. Refused when that run is no longer the job's.
        """
        crashes = job.crashes + 1
        values = {"token": job.token, "lapsed": lapsed, "crashes": crashes}
        if crashes >= self.policy.crash_limit:
            reason = f"{reason}; it was lost with its worker {crashes} times, which is the limit"
            return self.change(job, Event.BURY, reason, error=error, **values)
        return self.change(job, Event.CRASH, reason, wake_in=job.lease, published=0, **values)

    def delivered(self, job: Job) -> None:
        """Note that the canvas behind a job, if there is one, has been told its end."""
        if job.undelivered:
            wake_in = retention(self.policy, job.state, holds=job.holds)
            self.change(job, Event.DELIVER, None, undelivered=False, wake_in=wake_in)

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
            if applied.done and applied.job is not None:
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
            job, Event.REDRIVE, reason, reopens=True, forgets_steps=forget_steps, undelivered=canvas, wake_in=0.0,
            run_in=0.0, retries=0, crashes=0, published=0, cancel=Cancel.NO,
        )  # fmt: skip
        if applied.done and applied.job is not None:
            return applied.job
        now = applied.job or self.get(job_id)
        if now.state is not State.FAILED:
            raise NoDeadLetterError(job_id, now.state)
        holder = self.store.holder(job.identity)
        raise IdentityHeldError(job_id, holder.id if holder else "unknown", holder.state if holder else "gone by now")

    def promote(self, job: Job) -> Job | None:
        """Give a job that waits for its turn its identity; None when another job still holds it."""
        applied = self.change(job, Event.PROMOTE, "it is its turn", reopens=True, wake_in=job.lease)
        return applied.job if applied.done else None

    def drop(self, job_id: str) -> None:
        """Remove a dead letter. Raises `JobNotFoundError` and `NoDeadLetterError`."""
        kept = self.policy.tombstone_retention
        if not self.store.delete([job_id], sources=RULES[Event.REDRIVE].sources, tombstone_for=kept):
            raise NoDeadLetterError(job_id, self.get(job_id).state)
        self.tell(Fact(DROPPED, one_line(job_id)))

    def purge(self, job_ids: Sequence[str]) -> list[str]:
        """Remove ended jobs to which no idempotency key points, and return their ids."""
        kept = self.policy.tombstone_retention
        gone = self.store.delete(job_ids, sources=FINAL, spares=True, tombstone_for=kept)
        if gone:
            self.tell(purged(len(gone)))
        return gone

    def get(self, job_id: str) -> Job:
        """Return a job. Raises `JobNotFoundError`, which is a `JobPurgedError` as long as the purge is remembered."""
        job = self.store.get(job_id)
        if job is not None:
            return job
        gone = self.store.tombstone(job_id)
        if gone is None:
            raise JobNotFoundError(job_id)
        raise JobPurgedError(job_id, gone.state, gone.finished_at, gone.purged_at)

    def find(self, query: Query) -> list[Job]:
        """Return jobs, newest first."""
        return self.store.find(query)

    def counts(self, query: Query) -> dict[State, int]:
        """Return how many jobs match, by each state."""
        return dict.fromkeys(State, 0) | self.store.counts(query)

    def history(self, job_id: str) -> list[Entry]:
        """Return what happened to a job, oldest first."""
        return self.store.history(job_id)

    def receipts(self, job_id: str) -> list[Receipt]:
        """Return the newest receipts of those who met a job, oldest first."""
        return self.store.receipts(job_id)

    def tallies(self, by: By, *, limit: int = 100) -> list[Tally]:
        """Return how many have met jobs, ever, for the `limit` names with the most of them, these first."""
        return self.store.tallies(by, limit=limit)

    def close(self) -> None:
        """Let go of the store's connections."""
        if self._at_close is not None:
            self._at_close()
        self.store.close()

    # --- the one way to a change ------------------------------------------------------------------------------------

    def change(self, job: Job, event: Event, reason: str | None, **values: object) -> Applied:
        """Have an event happen to a job, if the rules and `values` (see `Change`) allow it."""
        return self._settle(change_of(self.policy, job, event, reason, **values))

    def end_if_asked(self, job: Job) -> Job:
        """Cancel a waiting job whose cancellation was asked for, or whose expiry has come."""
        change = ending_change(self.policy, job)
        return job if change is None else self._apply(change).job or job

    def _run_says(self, job: Job, event: Event, reason: str | None, **values: object) -> Job:
        applied = self.change(job, event, reason, token=job.token, **values)
        if not applied.done or applied.job is None:
            raise StaleTokenError(job.id, job.token, "gone" if applied.job is None else str(applied.job.state))
        return applied.job

    def _settle(self, change: Change) -> Applied:
        """Apply a change; a job that comes to wait while its cancellation was asked for is canceled on the spot."""
        applied = self._apply(change)
        job = applied.job
        if not applied.done or job is None or job.cancel is Cancel.NO or job.state not in RULES[Event.CANCEL].sources:
            return applied
        return Applied(done=True, job=self.end_if_asked(job))

    def _apply(self, change: Change) -> Applied:
        applied = self.store.apply(change)
        if applied.done and applied.job is not None:
            self.tell(changed(change, applied.job))
        return applied


def _nobody(_fact: Fact) -> None:
    """Listen to nothing."""
