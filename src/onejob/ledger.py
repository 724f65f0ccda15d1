"""The ledger: the use cases on top of a store. Every rule of the lifecycle is decided here, every write fenced."""

from __future__ import annotations

import math
import random
import secrets
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from onejob.errors import (
    ConfigurationError,
    IdentityHeldError,
    JobCanceled,
    JobNotFoundError,
    LeaseLost,
    NoDeadLetterError,
    StaleTokenError,
    StoreError,
    StoreUnavailableError,
)
from onejob.job import Admission, Applied, Cancel, Change, Outcome, Query
from onejob.lifecycle import FINAL, RULES, Event, State
from onejob.policy import DAY, Policy
from onejob.store import WINDOW_OVER, TransactionalStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from onejob.job import Entry, Job, Keep, Renewal, Submission
    from onejob.lifecycle import Rule
    from onejob.store import Store, Transaction

CANCEL_TRIES = 20
LONG_DAY = 3600.0
"""Seconds by which a calendar window can be longer than its name says; a job in its window is kept as much longer."""
PUBLISH_FAILURES = 3
"""So many publications that fail in one sweep mean that the broker is away."""


@dataclass(slots=True)
class Swept:
    """What one sweep did, as counts of jobs."""

    published: int = 0
    lapsed: int = 0
    canceled: int = 0
    purged: int = 0
    seen: int = field(default=0, compare=False)
    """How many alarms had rung; as many as the limit when there may be more."""


def new_nonce() -> str:
    """Return 16 random hex digits that name one request."""
    return secrets.token_hex(8)


class Ledger:
    """What can be done with jobs. Safe to use from many threads and processes."""

    def __init__(self, store: Store, policy: Policy | None = None) -> None:
        self.store = store
        self.policy = policy or Policy()

    def joined(self, transaction: Transaction) -> Ledger:
        """Return this ledger as a part of somebody else's transaction. Raises `ConfigurationError` if it cannot be."""
        if not isinstance(self.store, TransactionalStore):
            msg = (
                "this ledger cannot take part in a transaction of your database: it lives elsewhere. "
                "Keep it in that database (onejob_store='postgresql://...'), or guard your effects with onejob.fence"
            )
            raise ConfigurationError(msg)
        return Ledger(self.store.joined(transaction), self.policy)

    # --- asking for a job -------------------------------------------------------------------------------------------

    def submit(self, new: Submission, *, wake_in: float | None = None) -> Admission:
        """Ask for a job. Raises `StoreUnavailableError` when the store does not answer: then nothing is promised.

        `wake_in`: seconds until a sweeper publishes the job; by default when it is due, or in one lease for a caller
        that publishes it itself.
        """
        if new.delay > 0 or wake_in is None:
            wake_in = new.delay if new.delay > 0 else new.lease
        holder, own = self.store.submit(new, wake_in=wake_in)
        if holder.submission == new.nonce:
            return Admission(holder, Outcome.ADMITTED, own)
        asked_at = own.created_at if own else math.inf
        kept = holder.holds and holder.finished_at is not None and asked_at >= holder.finished_at
        return Admission(holder, Outcome.REPLAYED if kept else Outcome.ATTACHED, own)

    # --- a run and its writes ---------------------------------------------------------------------------------------

    def claim(self, job_id: str, *, nonce: str, node: str) -> Applied:
        """Take the right to run a job. A refusal is an answer, too; the job in it says why."""
        rule = RULES[Event.CLAIM]
        claimed = self.store.claim(
            job_id, nonce=nonce, node=node, sources=rule.sources, target=rule.target or State.RUNNING
        )
        if claimed.done or claimed.job is None or claimed.job.state not in rule.sources:
            return claimed
        return Applied(done=False, job=self._end_if_asked(claimed.job))

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
        kept: dict[str, object] = {} if keep is None else {"keeps_identity": job.holds, **asdict(keep)}
        if keep is not None and not job.undelivered:
            kept["wake_in"] = self._retention(State.COMPLETED, holds=True)
        return self._run_says(job, Event.COMPLETE, "completed", result=result, **kept)

    def fail(self, job: Job, error: str, reason: str) -> Job:
        """End a run with an error (JSON), for good. Raises `StaleTokenError`."""
        return self._run_says(job, Event.FAIL, reason, error=error)

    def abandon(self, job: Job, reason: str) -> Job:
        """End a run as canceled. Raises `StaleTokenError`."""
        return self._run_says(job, Event.ABANDON, reason)

    def retry(self, job: Job, *, delay: float, payload: str, retries: int, error: str | None, reason: str) -> Job:
        """Have a job run again in `delay` seconds with a new payload. Raises `StaleTokenError`."""
        return self._run_says(
            job,
            Event.RETRY,
            reason,
            payload=payload,
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
            return self._settle(self._change(job, Event.BURY, reason, error=error, **values))
        return self._settle(self._change(job, Event.CRASH, reason, wake_in=job.lease, published=0, **values))

    def delivered(self, job: Job) -> None:
        """Note that the canvas behind a job, if there is one, has been told its end."""
        if job.undelivered:
            wake_in = self._retention(job.state, holds=job.holds)
            self.store.apply(self._change(job, Event.DELIVER, None, undelivered=False, wake_in=wake_in))

    # --- what anybody may do ----------------------------------------------------------------------------------------

    def cancel(self, job_id: str, *, force: bool = False, reason: str = "canceled on request") -> Job:
        """Cancel a job: at once before a run, by asking the run otherwise (`force`: its worker ends it).

        Returns the job as it is then; a job that has ended stays as it is. Raises `JobNotFoundError`.
        """
        for _ in range(CANCEL_TRIES):
            job = self.get(job_id)
            if job.state.final:
                return job
            applied = self._settle(self._cancel_change(job, Cancel.FORCED if force else Cancel.ASKED, reason))
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
        change = self._change(
            job, Event.REDRIVE, reason, reopens=True, forgets_steps=forget_steps, undelivered=canvas, wake_in=0.0,
            run_in=0.0, retries=0, crashes=0, published=0, cancel=Cancel.NO,
        )  # fmt: skip
        applied = self.store.apply(change)
        if applied.done and applied.job is not None:
            return applied.job
        now = applied.job or self.get(job_id)
        if now.state is not State.FAILED:
            raise NoDeadLetterError(job_id, now.state)
        holder = self._holder(job.identity)
        raise IdentityHeldError(job_id, holder.id if holder else "unknown", holder.state if holder else "gone by now")

    def drop(self, job_id: str) -> None:
        """Remove a dead letter. Raises `JobNotFoundError` and `NoDeadLetterError`."""
        if not self.store.delete([job_id], sources=RULES[Event.REDRIVE].sources):
            raise NoDeadLetterError(job_id, self.get(job_id).state)

    def _holder(self, identity: str) -> Job | None:
        return next((job for job in self.store.find(Query(identity=identity, limit=1000)) if job.holds), None)

    def get(self, job_id: str) -> Job:
        """Return a job. Raises `JobNotFoundError`."""
        job = self.store.get(job_id)
        if job is None:
            raise JobNotFoundError(job_id)
        return job

    def find(self, query: Query) -> list[Job]:
        """Return jobs, newest first."""
        return self.store.find(query)

    def history(self, job_id: str) -> list[Entry]:
        """Return what happened to a job, oldest first."""
        return self.store.history(job_id)

    def close(self) -> None:
        """Let go of the store's connections."""
        self.store.close()

    # --- the sweep --------------------------------------------------------------------------------------------------

    def sweep(self, publish: Callable[[Job], object], *, limit: int = 100) -> Swept:
        """Look at every job whose alarm has rung: publish, expire, recover or purge it.

        `publish` sends a job's message. A job for which it raises is looked at again after `Policy.hold`, and the other
        jobs are not held up by it; but after three failures the broker is taken to be away, and no more are tried. What
        was raised first is raised at the end. Old jobs are purged last, in one call.
        """
        due = self.store.due(limit=limit, hold=self.policy.hold)
        swept, errors = Swept(seen=len(due)), list[Exception]()
        random.shuffle(due)  # a job that always fails is not always the first
        for job in sorted(due, key=lambda job: job.state is not State.RUNNING):
            if len(errors) == PUBLISH_FAILURES:
                break
            try:
                self._sweep_one(job, publish, swept)
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a transport raises
                errors.append(error)
        self._purge([job.id for job in due if job.state.final and not job.undelivered], swept, errors)
        if errors:
            raise errors[0]
        return swept

    def _sweep_one(self, job: Job, publish: Callable[[Job], object], swept: Swept) -> None:
        if job.state is State.RUNNING:
            self._sweep_running(job, publish, swept)
        elif not job.state.final:
            self._sweep_waiting(job, publish, swept)
        elif job.undelivered:
            publish(job)
            swept.published += 1
        elif job.holds:  # its uniqueness window was over long ago, and nobody has asked for the identity since
            self.store.apply(self._change(job, Event.FREE, None, keeps_identity=False, detail=WINDOW_OVER))

    def _purge(self, old: Sequence[str], swept: Swept, errors: list[Exception]) -> None:
        """Delete old jobs at once; when the store refuses, one by one, so that only those stay which it refuses."""
        try:
            swept.purged += len(self.store.delete(old, sources=FINAL)) if old else 0
        except StoreUnavailableError:
            raise
        except StoreError as error:
            if len(old) == 1:
                errors.append(error)
                return
            for job_id in old:
                self._purge([job_id], swept, errors)

    def _sweep_running(self, job: Job, publish: Callable[[Job], object], swept: Swept) -> None:
        applied = self.crash(job, "its lease ran out", LEASE_ERROR, lapsed=True)
        swept.lapsed += applied.done
        if applied.done and applied.job is not None and applied.job.state is State.QUEUED:
            publish(applied.job)
            swept.published += 1

    def _sweep_waiting(self, job: Job, publish: Callable[[Job], object], swept: Swept) -> None:
        job = self._end_if_asked(job)
        if job.state.final:
            swept.canceled += 1
            return
        publish(job)
        wake_in = job.lease * min(2**job.published, self.policy.backoff_limit)
        # The token guards against a claim between the publication and this note of it.
        self.store.apply(
            self._change(
                job,
                Event.PUBLISH,
                None,
                token=job.token,
                wake_in=wake_in,
                published=job.published + 1,
                detail=f"published by the sweeper; again in {wake_in:g} s if nobody takes it",
            )
        )
        swept.published += 1

    # --- the one way to a change ------------------------------------------------------------------------------------

    def _run_says(self, job: Job, event: Event, reason: str | None, **values: object) -> Job:
        applied = self._settle(self._change(job, event, reason, token=job.token, **values))
        if not applied.done or applied.job is None:
            raise StaleTokenError(job.id, job.token, "gone" if applied.job is None else str(applied.job.state))
        return applied.job

    def _change(self, job: Job, event: Event, reason: str | None, **values: object) -> Change:
        rule = RULES[event]
        if rule.target is not None and rule.target.final:
            values = {"ends": True, "keeps_identity": False, "wake_in": self._after_end(job, rule)} | values
        return Change(
            job_id=job.id,
            identity=job.identity,
            request_id=new_nonce(),
            event=event,
            sources=rule.sources,
            target=rule.target,
            reason=reason,
            **({"detail": reason or ""} | values),  # type: ignore[arg-type]
        )

    def _after_end(self, job: Job, rule: Rule) -> float:
        """Return the seconds until an ended job's next alarm: to tell its canvas, or else to purge it."""
        if not job.undelivered:
            return self._retention(rule.target or job.state)
        return job.lease if rule.fenced else 0.0  # the worker of a run tells the canvas; elsewhere nobody would

    def _settle(self, change: Change) -> Applied:
        """Apply a change; a job that comes to wait while its cancellation was asked for is canceled on the spot."""
        applied = self.store.apply(change)
        job = applied.job
        if not applied.done or job is None or job.cancel is Cancel.NO or job.state not in RULES[Event.CANCEL].sources:
            return applied
        return Applied(done=True, job=self._end_if_asked(job))

    def _cancel_change(self, job: Job, cancel: Cancel, reason: str) -> Change:
        if job.state is State.RUNNING:
            asked = max(cancel, job.cancel)
            return self._change(job, Event.ASK_CANCEL, None, cancel=asked, token=job.token, detail=reason)
        return self._change(job, Event.CANCEL, reason)

    def _end_if_asked(self, job: Job) -> Job:
        """Cancel a waiting job whose cancellation was asked for, or whose expiry has come."""
        if job.cancel is not Cancel.NO:
            change = self._change(job, Event.CANCEL, "canceled on request")
        elif job.expires_at is not None:
            change = self._change(job, Event.EXPIRE, "it expired before a run started", overdue=True)
        else:
            return job
        return self.store.apply(change).job or job

    def _retention(self, state: State, *, holds: bool = False) -> float:
        return self.policy.retention.get(state, DAY) + (LONG_DAY if holds else 0.0)


LEASE_ERROR = '{"type": "WorkerLost", "message": "the lease ran out: the worker died or was cut off", "traceback": ""}'
