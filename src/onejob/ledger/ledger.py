"""The ledger: the use cases on top of a store. It applies the rules of the lifecycle and fences the writes of runs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, Self, TypeAlias

from onejob import errors
from onejob.jobs.audit_entries import AuditEntry
from onejob.jobs.blocks import BLOCK_LIMIT, PARKED_SECONDS, Block, BlockKind
from onejob.jobs.costs import Amounts, CostWrite, JobCosts, by_key
from onejob.jobs.handover import BY_CALLER, BY_SWEEP, Handover, by_caller, by_sweep, held
from onejob.jobs.history import COMPLETED
from onejob.jobs.ledger_settings import LedgerSettings
from onejob.jobs.lifecycle import FINAL, RULES, State, Transition
from onejob.jobs.limits import NO_KEYS, parked_on_key
from onejob.jobs.model import (
    Admission,
    Applied,
    Cancel,
    Change,
    Duplicate,
    HandoverOf,
    IdentityHold,
    JobRow,
    Outcome,
    Renewal,
    Submission,
    value,
    values_of,
)
from onejob.jobs.timestamps import format_timestamp
from onejob.jobs.transitions import cancel_change, change_of, ending_change, new_nonce, retention
from onejob.jobs.workers import UNREGISTERED, Registration
from onejob.ledger.limit_operations import LimitOperations
from onejob.ledger.needed import needed_by
from onejob.ledger.reader import AUDIT_LIMIT, AUDIT_SECONDS
from onejob.ledger.stuck import follows_another, is_follower
from onejob.observability import events
from onejob.observability.events import Listener
from onejob.stores.protocol import BATCH_LIMIT, WINDOW_OVER, Store, TransactionalStore
from onejob.transactions.sessions import OpenTransaction

Result: TypeAlias = "Admission | errors.StoreError | errors.QuotaExceededError"
Write: TypeAlias = "Callable[[Sequence[Submission]], list[Admission]]"
"""A function that makes the store write submissions, with the options of one call."""
TRIES = 20
"""How often an operation is tried again after another change of its job."""


def _parking(submissions: Sequence[Submission], handover_of: HandoverOf) -> HandoverOf:
    """Return the hand-over of submissions, of which those that wait for room are held until a sweep looks at them."""
    if all(each.parked_on is None for each in submissions):
        return handover_of
    return lambda each: handover_of(each) if each.parked_on is None else held(each.lease)


@value(slots=True, kw_only=True)
class NextRun:
    """The next run of a job, after a run that ends in a retry or in its replacement by another task."""

    payload: str
    options: str
    retries: int
    route: str | None = None
    """The route of the next run; None: the job's own."""
    delay: float = 0.0
    """Seconds until it is due."""
    handover: Handover = BY_CALLER
    """How the job gets to a worker, if it is due at once."""
    limit_keys: str | None = None
    """The keys of the limits of another task; None: of a run of the same task, the job's own, or none."""

    @classmethod
    def again(cls, job: JobRow, *, delay: float, retries: int) -> Self:
        """Return a run of the same task and arguments."""
        return cls(payload=job.payload, options=job.options, retries=retries, delay=delay)

    @classmethod
    def of(cls, submission: Submission) -> Self:
        """Return the run of a submission."""
        return cls(
            payload=submission.payload, options=submission.options, route=submission.route, retries=submission.retries,
            delay=submission.delay, limit_keys=submission.limit_keys,
        )  # fmt: skip

    def applied_to(self, job: JobRow) -> JobRow:
        """Return a job as it is for this run."""
        route = job.route if self.route is None else self.route
        return replace(job, payload=self.payload, options=self.options, retries=self.retries, route=route)

    def changes(self) -> dict[str, object]:
        """Return the values of the change that queues a job for this run."""
        return {
            "payload": self.payload, "options": self.options, "retries": self.retries, "route": self.route,
            "run_in": self.delay, "handover": by_sweep(self.delay) if self.delay > 0 else self.handover,
        }  # fmt: skip


class Ledger(LimitOperations):
    """The operations on jobs. Safe to use from many threads and processes.

    `emit` is called with a `JobEvent` after each transition, in the same thread. It must not raise, as the job has
    changed already: `emit_to` catches errors. `at_close` is called before the store is closed. `request_id`: a caller
    that repeats a change because its reply may be lost passes the same id; it is applied once. `handover`: how the job
    gets to a worker, if it waits afterwards and is due.
    """

    def __init__(
        self, store: Store, settings: LedgerSettings | None = None, emit: Listener | None = None,
        at_close: Callable[[], object] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(store)
        self.settings = settings or LedgerSettings()
        self.emit: Listener = emit or (lambda _event: None)
        self._at_close = at_close

    def in_transaction(
        self, transaction: OpenTransaction, emit: Listener | None = None, *, writes: bool = True
    ) -> Ledger:
        """Return a ledger that works in a user's open transaction. Raises `ConfigurationError` if the store cannot.

        Its writes take effect with the commit, so no events are emitted, except to `emit`, which must wait for the
        commit. Without `writes` it only reads, and takes no lock.
        """
        if not isinstance(self.store, TransactionalStore):
            raise errors.ConfigurationError(
                "this ledger cannot take part in a transaction of your database: it is stored elsewhere. "
                "Keep it in that database (onejob_store='postgresql://...'), or guard your effects with onejob.fence"
            )
        joined = Ledger(self.store.in_transaction(transaction, writes=writes), self.settings, emit)
        joined.freeing = None  # what it frees is free with the commit
        return joined

    # --- submissions ------------------------------------------------------------------------------------------------

    def submit(self, submission: Submission, *, handover: Handover = BY_CALLER) -> Admission:
        """Submit a job. Raises `StoreUnavailableError` if the store does not answer: then the outcome is unknown."""
        if submission.parked_on is not None:
            handover = held(submission.lease if handover.after is None else handover.after)
        return self._report_answers(self.store.submit_many([submission], handover_of=lambda _: handover))[0]

    def submit_many(
        self, submissions: Sequence[Submission], *, wait_for_locks: bool = True, handover_of: HandoverOf = by_caller
    ) -> list[Admission]:
        """Submit many jobs, in a few round trips per `BATCH_LIMIT`; return the admissions in the same order.

        Each submission is atomic. If the store or a quota refuses some, the others are admitted, and
        `PartlySubmittedError` has the result of each; a single one raises its own error. After a
        `StoreUnavailableError` any may be admitted, and submitting all again is harmless.
        Without `wait_for_locks`, a row that another transaction has locked raises `StoreBusyError`. `handover_of`
        returns how the job of a submission gets to a worker, if it is due now and does not wait for room.
        """
        if not submissions:
            return []
        handover_of = _parking(submissions, handover_of)
        write = partial(self.store.submit_many, handover_of=handover_of, wait_for_locks=wait_for_locks)
        if len(submissions) == 1:
            return self._report_answers(write(submissions))
        results: list[Any] = []
        for start in range(0, len(submissions), BATCH_LIMIT):
            results += self._submit_batch(submissions[start : start + BATCH_LIMIT], write)
        return errors.all_written(results)

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
        self._report_answers([each for each in found if isinstance(each, Admission)])
        return [*found]

    def _report_answers(self, admissions: list[Admission]) -> list[Admission]:
        """Emit the events of submissions; make those of the new jobs due that have room on their keys."""
        parked: list[JobRow] = []
        for admission in admissions:
            self.emit(events.submission_event(admission))
            if admission.job.parked_on is not None and admission.outcome is Outcome.ADMITTED:
                parked.append(admission.job)
        if parked:
            self.free_slots([key for job in parked if (key := parked_on_key(job.parked_on)) is not None])
        return admissions

    def _record_coalesced(self, first: Result, duplicates: Sequence[Submission]) -> Sequence[Result]:
        """Record the duplicates of a submission; return their answers, as if they had been submitted one by one."""
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

    def follow(self, submission: Submission, *, follows_id: str) -> JobRow | None:
        """Submit a follower, which is due when another job ends; None if that job does not exist.

        A repeated call (the same id) returns the existing job.
        """
        return self.store.follow(submission, follows_id=follows_id)

    def record(self, duplicate: Duplicate) -> None:
        """Store and count a duplicate that was found without a submission."""
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
        if parked_on_key(job.parked_on) is not None:
            self.give_back(job)  # it may have room by now, and has none on its other keys any more
        if job.state in sources:
            job = self.cancel_if_due(job)
        self.emit(events.claim_refused_event(job, node))
        return Applied(applied=False, job=job)

    def renew(self, claims: Sequence[tuple[str, str]]) -> list[Renewal]:
        """Extend the leases of (job id, nonce) pairs in one call."""
        return self.store.renew(claims, sources=RULES[Transition.RENEW].sources) if claims else []

    def report(self, job: JobRow, progress: str) -> None:
        """Store a run's progress (JSON). Raises `LeaseLost` or `JobCanceled` if the run has to stop."""
        cancel = self.store.report(job.id, job.token, progress, sources=RULES[Transition.UPDATE_PROGRESS].sources)
        if cancel is None:
            raise errors.LeaseLost(job.id)
        if cancel is not Cancel.NO:
            raise errors.JobCanceled(job.id)

    def keep_step(self, job: JobRow, name: str, value: str) -> str:
        """Memoise a step's value (JSON) and return the stored value. Raises `LeaseLost`."""
        kept = self.store.keep_step(job.id, job.token, name, value, sources=RULES[Transition.UPDATE_PROGRESS].sources)
        if kept is None:
            raise errors.LeaseLost(job.id)
        return kept

    def keep_run_log(self, job: JobRow, text: str) -> bool:
        """Write the log of a run, in place of the log before; return False if the run has lost its job."""
        return self.store.keep_run_log(job.id, job.token, text)

    def add_cost(self, job: JobRow, amounts: Amounts) -> JobRow:
        """Add amounts to the costs of a run, and return the job with its costs afterwards.

        The amounts are kept when the call returns, whatever becomes of the run. Raises `LeaseLost`, and
        `InvalidArgumentsError` as `JobCosts.add` does.
        """
        spent, request_id = by_key(job, amounts), new_nonce()
        for _ in range(TRIES):
            costs = JobCosts.of(job.costs).add(job.attempt, amounts).to_json()
            write = CostWrite(
                job_id=job.id, token=job.token, request_id=request_id, expected=job.costs, costs=costs, spent=spent
            )
            answer = self.store.add_cost(write, sources=RULES[Transition.UPDATE_PROGRESS].sources)
            if answer is None:
                raise errors.LeaseLost(job.id)
            job = replace(job, costs=answer.costs)
            if answer.applied:
                self.emit(events.cost_event(job, amounts, answer.duplicates))
                return job
        raise errors.StoreBusyError(f"the costs of job {job.id} were changed {TRIES} times by other threads of its run")

    def release_identity(self, job: JobRow) -> JobRow:
        """Release a run's identity before its end, so that an equal job can be admitted. Raises `StaleTokenError`."""
        values = {"sources": frozenset({State.RUNNING}), "keeps_identity": False, "detail": "a run has started"}
        return self._fenced(job, Transition.RELEASE_IDENTITY, None, **values)

    def complete(
        self, job: JobRow, result: str, *, hold: IdentityHold | None = None, request_id: str | None = None
    ) -> JobRow:
        """Complete a job with the result (JSON) of its run. Raises `StaleTokenError` if the run has lost the job.

        `hold`: how long the job still holds its identity, so that its result answers duplicates.
        """
        kept: dict[str, object] = {} if hold is None else {"keeps_identity": job.holds_identity, **values_of(hold)}
        if hold is not None and not job.canvas_pending:
            kept["wake_after"] = retention(self.settings, State.COMPLETED, holds_identity=True)
        return self._fenced(job, Transition.COMPLETE, COMPLETED, result=result, request_id=request_id, **kept)

    def fail(self, job: JobRow, error: str, reason: str, *, request_id: str | None = None) -> JobRow:
        """End a run with an error (JSON), for good. Raises `StaleTokenError`."""
        return self._fenced(job, Transition.FAIL, reason, error=error, request_id=request_id)

    def abandon(self, job: JobRow, reason: str, *, request_id: str | None = None) -> JobRow:
        """End a run as canceled. Raises `StaleTokenError`."""
        return self._fenced(job, Transition.ABANDON, reason, request_id=request_id)

    def retry(
        self, job: JobRow, next_run: NextRun, *, error: str | None, reason: str, request_id: str | None = None
    ) -> JobRow:
        """End a run with an error (JSON), and queue the job for `next_run`. Raises `StaleTokenError`."""
        values = next_run.changes()
        return self._fenced(job, Transition.RETRY, reason, error=error, request_id=request_id, **values)

    def replace(
        self, job: JobRow, next_run: NextRun, *, canvas: bool, reason: str, request_id: str | None = None
    ) -> JobRow:
        """End a run, and queue its job for another task, without its steps. Raises `StaleTokenError`.

        The job keeps its id, identity, idempotency keys, followers and history, and gets the limits of the other task.
        `canvas`: whether a canvas waits for its end.
        """
        limit_keys = next_run.limit_keys or (None if job.limit_keys is None else NO_KEYS)
        replaced = self._fenced(
            job, Transition.REPLACE, reason, canvas_pending=canvas, crashes=0, forgets_steps=True,
            request_id=request_id, limit_keys=limit_keys, **next_run.changes(),
        )  # fmt: skip
        if job.limit_keys is not None:
            self.give_back(job)  # by its earlier keys
        return replaced

    def release(self, job: JobRow, reason: str, *, handover: Handover = BY_CALLER) -> JobRow:
        """Return a job to the queue without counting a failure. Raises `StaleTokenError`."""
        return self._fenced(job, Transition.RELEASE, reason, handover=handover)

    def crash(
        self, job: JobRow, reason: str, error: str, *, lapsed: bool = False, handover: Handover = BY_CALLER
    ) -> Applied:
        """Record the loss of a run's worker: the job is queued again, or at the crash limit becomes a dead letter.

        `lapsed`: only if the lease has expired. Refused if the run has lost the job.
        """
        crashes = job.crashes + 1
        values = {"token": job.token, "lapsed": lapsed, "crashes": crashes}
        if crashes >= self.settings.crash_limit:
            reason = f"{reason}; it was lost with its worker {crashes} times, which is the limit"
            return self.change(job, Transition.DEAD_LETTER, reason, error=error, **values)
        return self.change(job, Transition.CRASH, reason, handover=handover, **values)

    def mark_canvas_notified(self, job: JobRow) -> None:
        """Record that the canvas of a job, if there is one, was notified of its end."""
        if job.canvas_pending:
            wake_after = retention(self.settings, job.state, holds_identity=job.holds_identity)
            error = "" if job.publish_error else None
            self.change(
                job, Transition.CANVAS_NOTIFIED, None, canvas_pending=False, publish_error=error, wake_after=wake_after
            )

    # --- operators ----------------------------------------------------------------------------------------------------

    def cancel(self, job_id: str, *, force: bool = False, reason: str = "canceled on request") -> JobRow:
        """Cancel a job: at once unless it is running, else by a request to the run (`force`: its worker kills it).

        Returns the job, unchanged if it has ended or was requested to cancel before. Raises `JobNotFoundError`.
        """
        cancel = Cancel.FORCED if force else Cancel.ASKED
        for _ in range(TRIES):
            job = self.get(job_id)
            if job.state.final or (job.state is State.RUNNING and job.cancel >= cancel):
                return job
            applied = self._settle(cancel_change(self.settings, job, cancel, reason))
            if applied.applied and applied.job is not None:
                return applied.job
        return self.get(job_id)

    def run_now(
        self, job_id: str, *, reason: str = "made due", handover_of: Callable[[JobRow], Handover] = lambda _: BY_SWEEP
    ) -> JobRow:
        """Make a delayed or retrying job due at once, and return it; a job that is due already is unchanged.

        `handover_of`: returns how the job gets to a worker. Raises `JobNotFoundError`, and `NotWaitingError` for a job
        that runs, has ended, or waits for the end of another job.
        """
        for _ in range(TRIES):
            job = self.get(job_id)
            if job.state not in RULES[Transition.RUN_NOW].sources:
                raise errors.NotWaitingError(job_id, job.state)
            if job.queued_next or follows_another(job):
                raise errors.NotWaitingError(job_id, job.state, job.follows_id or "")
            if job.run_at <= self.read_clock():
                return job
            applied = self.change(
                job, Transition.RUN_NOW, None, token=job.token, run_in=0.0, handover=handover_of(job), detail=reason,
                published=0, publish_error="",
            )  # fmt: skip
            if applied.applied and applied.job is not None:
                return applied.job
        return self.get(job_id)

    def redrive(
        self, job_id: str, *, forget_steps: bool = False, canvas: bool = False, reason: str = "redriven",
        handover: Handover = BY_SWEEP, payload: str | None = None,
    ) -> JobRow:  # fmt: skip
        """Redrive a dead letter: the failed job is queued again under its id, with its memoised steps.

        `forget_steps`: delete the steps. `canvas`: notify its canvas of the new end. `payload`: replaces the job's
        payload. Raises `JobNotFoundError`, `NoDeadLetterError`, also for a follower, and `IdentityHeldError` if another
        job holds its identity.
        """
        job = self.get(job_id)
        if is_follower(job):
            raise errors.NoDeadLetterError(job_id, job.state, str(job.follows_id))
        applied = self.change(
            job, Transition.REDRIVE, reason, reopens=True, forgets_steps=forget_steps, canvas_pending=canvas,
            handover=handover, run_in=0.0, retries=0, crashes=0, cancel=Cancel.NO, payload=payload,
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

    def rejoin(self, job: JobRow, *, canvas: bool, reason: str = "waits again") -> JobRow | None:
        """Make a failed follower wait again for the end of its followed job, which has been redriven.

        `canvas`: notify its canvas of the new end. Returns None if it has not failed, or was deleted.
        """
        followed = self.store.get_many([str(job.follows_id)]).get(str(job.follows_id))
        applied = self.change(
            job, Transition.REDRIVE, f"{reason} for the end of {job.follows_id}", reopens=True, rejoins=True,
            canvas_pending=canvas, handover=by_sweep(0.0 if followed is None or followed.state.final else job.lease),
            run_in=0.0, retries=0, crashes=0, cancel=Cancel.NO,
        )  # fmt: skip
        return applied.job if applied.applied else None

    def promote(self, job: JobRow) -> JobRow | None:
        """Give the job that is queued next its identity; None if another job still holds it."""
        applied = self.change(job, Transition.PROMOTE, "promoted", reopens=True, wake_after=job.lease)
        return applied.job if applied.applied else None

    def delete(self, job_id: str, *, force: bool = False) -> None:
        """Delete an ended job; its tombstone remains. Raises `JobNotFoundError`, and `JobNotEndedError` for a live job.

        Raises `UniquenessWindowError` for a job that still answers duplicates with its result, and without `force`
        `JobNeededError` for a job that an idempotency key names, that an unfinished follower or webhook follows, or
        whose canvas is still to be notified of its end.
        """
        job = self.get(job_id)
        if job.state.final and job.holds_identity and (job.identity_until or 0.0) <= self.read_clock():
            self.change(job, Transition.RELEASE_IDENTITY, None, keeps_identity=False, detail=WINDOW_OVER)
        if not self._delete(job_id, FINAL, force=force):
            job = self.get(job_id)
            if not job.state.final:
                raise errors.JobNotEndedError(job_id, job.state)
            if job.holds_identity:
                raise errors.UniquenessWindowError(job_id, job.state, format_timestamp(job.identity_until or 0.0))
            raise errors.JobNeededError(job_id, job.state, needed_by(self, job))

    def drop(self, job_id: str, *, force: bool = False) -> None:
        """Delete a dead letter; its tombstone remains.

        Raises `JobNotFoundError`, `NoDeadLetterError`, and without `force` `JobNeededError` as `delete` does.
        """
        if not self._delete(job_id, RULES[Transition.REDRIVE].sources, force=force):
            job = self.get(job_id)
            if job.state is not State.FAILED:
                raise errors.NoDeadLetterError(job_id, job.state)
            raise errors.JobNeededError(job_id, job.state, needed_by(self, job))

    def supersede(self, job_id: str, successor: str) -> None:
        """Delete a dead letter after `successor` was submitted in its place; its idempotency keys name that then.

        Nothing happens if it is no dead letter any more.
        """
        self._delete(job_id, RULES[Transition.REDRIVE].sources, force=True, successor=successor)

    def _delete(
        self, job_id: str, sources: frozenset[State], *, force: bool, successor: str | None = None
    ) -> bool:  # fmt: skip
        deleted = self.store.delete(
            [job_id], sources=sources, skip_needed=not force, successor=successor,
            tombstone_for=self.settings.tombstone_retention,
        )  # fmt: skip
        if deleted:
            self.emit(events.JobEvent(events.DELETED, events.one_line(job_id)))
        return bool(deleted)

    def remove(self, job: JobRow) -> None:
        """Delete an ended job without a tombstone, so that its id is free, unless its state has changed."""
        self.store.delete([job.id], sources=frozenset({job.state}))

    # --- pauses and strikes -------------------------------------------------------------------------------------------

    def add_block(self, block: Block) -> Block:
        """Write a pause or a strike, which workers obey within `OBEYED_WITHIN` seconds, and return it as written.

        Raises `InvalidBlockError` for a block whose time is over, and if there are `BLOCK_LIMIT` blocks already.
        """
        made = replace(block, created_at=self.read_clock())
        if made.is_over(made.created_at):
            raise errors.InvalidBlockError(f"the {made.kind} would be over already: name a later time")
        blocks = self.store.blocks()
        over = [each for each in blocks if each.is_over(made.created_at)]
        for each in over:  # nothing else ends a strike whose time is over
            self.unblock(each)
        if len(blocks) - len(over) >= BLOCK_LIMIT:
            raise errors.InvalidBlockError(f"there are {BLOCK_LIMIT} pauses and strikes already: end one first")
        self.store.put_block(made)
        return made

    def list_blocks(self, kind: BlockKind) -> list[Block]:
        """Return the pauses or the strikes that are not over, oldest first."""
        now = self.read_clock()
        found = [each for each in self.store.blocks() if each.kind is kind and not each.is_over(now)]
        return sorted(found, key=lambda block: (block.created_at, block.id))

    def end_block(self, block_id: str, kind: BlockKind) -> Block:
        """End a pause, whose jobs are due at once, or a strike, and return it. Raises `BlockNotFoundError`."""
        for block in self.store.blocks():
            if block.id == block_id and block.kind is kind:
                self.unblock(block)
                return block
        raise errors.BlockNotFoundError(kind, block_id)

    def park(self, job: JobRow, block: Block) -> Applied:
        """Park a waiting job on a pause that matches it. Refused after a claim."""
        until = PARKED_SECONDS if block.until is None else block.until - self.read_clock()
        applied = self.change(
            job, Transition.PARK, block.description, token=job.token, parked_on=block.id,
            handover=held(min(max(until, 0.0), PARKED_SECONDS)),
        )  # fmt: skip
        if applied.applied and not any(each.id == block.id for each in self.store.blocks()):
            self._unpark(block.id)  # the pause has ended meanwhile
        return applied

    def strike(self, job: JobRow, block: Block) -> Applied:
        """Make a waiting job that a strike matches a dead letter without a run. Refused after a claim."""
        error = json.dumps({"type": "Struck", "message": block.description, "traceback": ""})
        return self.change(job, Transition.STRIKE, block.description, token=job.token, error=error)

    def unblock(self, block: Block) -> None:
        """Delete a block, and make the jobs due that are parked on it; nothing happens if another process did."""
        self.store.delete_block(block.id)
        self._unpark(block.id)

    def _unpark(self, block_id: str) -> None:
        while self.store.unpark(block_id, limit=BATCH_LIMIT, reason=f"pause {block_id} has ended"):
            pass

    # --- sweeps -----------------------------------------------------------------------------------------------------

    def take_due(self, *, tasks: frozenset[str], limit: int, expired_runs: bool = True) -> list[JobRow]:
        """Return jobs whose `wake_at` is due, for one sweeper; others get them after `LedgerSettings.hold` seconds.

        `tasks`: waiting jobs, and jobs with a waiting canvas, are returned of these tasks only. `expired_runs`: whether
        jobs with an expired lease are returned.
        """
        return self.store.take_due(tasks=tasks, limit=limit, hold=self.settings.hold, expired_runs=expired_runs)

    def postpone(self, wake_after: Mapping[str, float], taken: Mapping[str, float]) -> None:
        """Set the seconds until sweeps process waiting jobs, by id; `taken`: see `CoreStore.postpone`."""
        if wake_after:
            self.store.postpone(wake_after, taken=taken)

    def mark_lost(self, job_ids: Sequence[str], *, wake_after: float = 0.0) -> None:
        """Make sweeps publish waiting jobs again, in `wake_after` seconds, because their messages are lost."""
        if job_ids:
            self.store.postpone(dict.fromkeys(job_ids, wake_after), lost=True)

    def purge(self, job_ids: Sequence[str]) -> list[str]:
        """Delete ended jobs to which no idempotency key and no unfinished follower points, and return their ids."""
        tombstone_for = self.settings.tombstone_retention
        purged = self.store.delete(job_ids, sources=FINAL, skip_referenced=True, tombstone_for=tombstone_for)
        if purged:
            self.emit(events.JobEvent(events.PURGED, fields={"count": len(purged)}))
        return purged

    # --- what processes share besides jobs ----------------------------------------------------------------------------

    def keep_event(self, event_id: str, body: str | None, *, keep_for: float) -> str | None:
        """Store an event of webhooks unless it is stored; keep it for `keep_for` seconds or more. `body` None: find it.

        Returns the stored body, or None.
        """
        return self.store.keep_event(event_id, body, keep_for=keep_for)

    def append_audit(self, entry: AuditEntry) -> None:
        """Append an entry to the audit log, which keeps the newest entries."""
        self.store.append_audit(entry, keep=AUDIT_LIMIT, keep_for=AUDIT_SECONDS)

    def heartbeat(self, node: str, *, lasts: float, registration: Registration = UNREGISTERED) -> None:
        """Record the heartbeat of a worker, which lasts `lasts` seconds; 0: the worker has stopped."""
        self.store.heartbeat(node, lasts=lasts, registration=registration)

    def close(self) -> None:
        """Close the store."""
        if self._at_close is not None:
            self._at_close()
        self.store.close()

    # --- applying changes ---------------------------------------------------------------------------------------------

    def change(self, job: JobRow, transition: Transition, reason: str | None, **values: object) -> Applied:
        """Apply a transition to a job, if the rules and the conditions in `values` (see `Change`) hold."""
        return self._settle(change_of(self.settings, job, transition, reason, **values))

    def cancel_if_due(self, job: JobRow) -> JobRow:
        """Cancel a waiting job that has expired, or whose cancellation was requested."""
        change = ending_change(self.settings, job)
        return job if change is None else self._apply(change).job or job

    def _settle(self, change: Change) -> Applied:
        """Apply a change; cancel the job if it then waits and its cancellation was requested."""
        applied = self._apply(change)
        job = applied.job if applied.applied else None
        if job is not None and job.cancel is not Cancel.NO and job.state in RULES[Transition.CANCEL].sources:
            return Applied(applied=True, job=self.cancel_if_due(job))
        return applied

    def _apply(self, change: Change) -> Applied:
        applied = self.store.apply(change)
        if applied.applied and applied.job is not None:
            self.emit(events.transition_event(change.event, applied.job, change))
            if applied.frees and applied.job.limit_keys is not None and (change.target is not None or change.parked_on):
                self.give_back(applied.job)
        return applied

    def _fenced(self, job: JobRow, transition: Transition, reason: str | None, **values: object) -> JobRow:
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
"""A function that returns the fields that equal submissions have in common."""


def _split_duplicates(submissions: Sequence[Submission]) -> tuple[list[int], dict[int, list[int]]]:
    """Return the indexes of the submissions to submit, and the indexes of the duplicates of each.

    If a submission may change a job or needs its own answer, all submissions of its identity are submitted.
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
        if first == index or submissions[first].nonce == submission.nonce:  # an equal nonce is a repeated request
            unique.append(index)
        else:
            duplicates[first].append(index)
    return unique, duplicates
