"""The ledger of a test: it records submissions and runs, and lets a test act at each point of a run."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

from onejob.celery.messages.payload import decode, loads
from onejob.errors import ConfigurationError, StaleTokenError
from onejob.jobs.handover import BY_CALLER, Handover, by_caller
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Admission, Applied, HandoverOf, IdentityHold, JobRow, Outcome, Submission
from onejob.ledger.ledger import Ledger
from onejob.testing.store import IsolatedStore
from onejob.transactions.sessions import OpenTransaction

_POINT = re.compile(
    r"(before|after)_(start|progress:\d+|step:.+|complete|fail|retry|abandon|release|replace|release_identity)"
)


class WorkerLost(BaseException):
    """The exception that ends a run as its worker's death does: no `except Exception` of a body catches it."""


@dataclass
class RecordedRun:
    """The writes of one run to the ledger."""

    job_id: str
    task: str
    token: int
    attempt: int
    points: list[str] = field(default_factory=list)
    progress: list[Any] = field(default_factory=list)
    retry_in: float | None = None


@dataclass(eq=False)
class Hook:
    """An action that is carried out once, when a run of a task reaches a point; `task` None: a run of any task."""

    point: str
    task: str | None
    action: Callable[[JobRow], object]
    description: str = ""

    def matches(self, point: str, job: JobRow) -> bool:
        """Return whether the hook waits for this point and this job's task."""
        return point == self.point and self.task in {None, job.task}


def parse_point(text: str) -> str:
    """Return the full name of a point. Raises `ConfigurationError` for text that names none."""
    point = text if text.startswith(("before_", "after_")) else f"after_{text}"
    if not _POINT.fullmatch(point):
        raise ConfigurationError(
            f"{text!r} is no point of a run: write before_ or after_ and start, progress:1, step:NAME, complete, fail, "
            "retry, abandon, release or replace, such as 'before_step:charge'"
        )
    return point


@dataclass(eq=False)
class PendingWrite:
    """A write that waits for the end of a user's transaction."""

    transaction: Any
    job: JobRow
    on_commit: Callable[[], object]
    on_rollback: Callable[[], object]
    on_silent_commit: Callable[[], object] = lambda: None
    """A further action at a commit in a test case of Django, in which no callback is called."""
    ended: bool = False

    def __call__(self) -> None:
        """Make the write that the commit makes, once."""
        if not self.ended:
            self.ended = True
            self.on_commit()

    def undo(self) -> None:
        """End the write if its transaction was rolled back."""
        if not self.ended and not self._is_registered():
            self.ended = True
            self.on_rollback()

    def settle(self) -> bool:
        """End the write if its transaction will never call it; return whether it ended here."""
        is_silent = not self.ended and _is_in_test_case_only(self.transaction)
        if is_silent:
            self()
            self.on_silent_commit()
        return is_silent

    def precede_callbacks(self) -> None:
        """Make Django call the write before other callbacks, so that these find it committed, as in production.

        Django forgets all callbacks before it calls the first, so that a later callback would look as if rolled back.
        """
        connection = _django(self.transaction)
        blocks = getattr(connection, "atomic_blocks", ())
        if blocks and not getattr(blocks[0], "_from_testcase", False):  # a test case captures callbacks by their place
            hooks = connection.run_on_commit
            hooks.insert(sum(isinstance(entry[1], PendingWrite) for entry in hooks[:-1]), hooks.pop())

    def _is_registered(self) -> bool:
        session = getattr(self.transaction, "_session", None)
        if session is not None:
            return any(each.call is self for each in session.info.get("onejob", ()))
        return any(entry[1] is self for entry in _django(self.transaction).run_on_commit)


def django_connections() -> list[Any]:
    """Return the connections of Django that this thread has used; none without Django."""
    database: Any = sys.modules.get("django.db")
    return [] if database is None else database.connections.all(initialized_only=True)


def is_in_django_transaction() -> bool:
    """Return whether a block of Django's `atomic` is open, besides those of a test case."""
    blocks = (block for connection in django_connections() for block in connection.atomic_blocks)
    return not all(getattr(block, "_from_testcase", False) for block in blocks)


def _is_in_test_case_only(transaction: Any) -> bool:
    """Return whether the only open blocks of a connection are those of Django's TestCase, where nothing commits."""
    blocks = getattr(_django(transaction), "atomic_blocks", ())
    return bool(blocks) and all(getattr(block, "_from_testcase", False) for block in blocks)


def _django(transaction: Any) -> Any:
    return transaction._connection  # noqa: SLF001 - the wrapper of onejob, which shows the driver's connection only


@dataclass(frozen=True)
class SubmittedJob:
    """A submission: the task and its arguments, the outcome, and the id of the job that answers."""

    task: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outcome: Outcome
    job_id: str
    delay: float
    """Seconds until the job is due: its countdown."""


class RecordingLedger(Ledger):
    """A ledger that records submissions and the writes of runs, and calls `hooks` at the points of runs."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.store: IsolatedStore
        self.submitted: list[SubmittedJob] = []
        self.runs: list[RecordedRun] = []
        self.hooks: list[Hook] = []
        self.pending: list[PendingWrite] = []
        """The writes in users' transactions that may still be open."""
        self.is_completing = False
        """Whether a run is about to complete its job in a user's transaction, which is open."""
        self.after_silent_commit: Callable[[], object] = lambda: None
        """Is called after writes whose commit called nobody."""

    def clear(self) -> None:
        """Forget all records."""
        for records in (self.submitted, self.runs, self.hooks, self.pending):
            records.clear()

    def run_of(self, job: JobRow) -> RecordedRun:
        """Return the record of the run that has a job's token."""
        return next(run for run in reversed(self.runs) if (run.job_id, run.token) == (job.id, job.token))

    def points_of(self, job_id: str | None = None) -> tuple[str, ...]:
        """Return the points that the runs of a job, or of all jobs, have passed, each once and in order."""
        return tuple(dict.fromkeys(point for run in self.runs if job_id in {None, run.job_id} for point in run.points))

    # --- submissions ------------------------------------------------------------------------------------------------

    def submit(self, submission: Submission, *, handover: Handover = BY_CALLER) -> Admission:
        """Submit and record."""
        self.settle()
        admission = super().submit(submission, handover=handover)
        self.record_submitted(submission, admission)
        return admission

    def submit_many(
        self, submissions: Sequence[Submission], *, wait_for_locks: bool = True, handover_of: HandoverOf = by_caller
    ) -> list[Admission]:
        """Submit jobs, and record each submission."""
        self.settle()
        admissions = super().submit_many(submissions, wait_for_locks=wait_for_locks, handover_of=handover_of)
        for submission, admission in zip(submissions, admissions, strict=True):
            self.record_submitted(submission, admission)
        return admissions

    def record_submitted(self, submission: Submission, admission: Admission) -> SubmittedJob:
        """Record a submission and its answer."""
        call, own = decode(submission.payload), admission.follower or admission.job
        submitted = SubmittedJob(call.task, tuple(call.args), call.kwargs, admission.outcome, own.id, submission.delay)
        self.submitted.append(submitted)
        return submitted

    # --- runs -------------------------------------------------------------------------------------------------------

    def claim(self, job_id: str, *, nonce: str, node: str) -> Applied:
        """Claim a job, and record its run."""
        waiting = self.get_or_none(job_id)
        if waiting is not None and not waiting.state.final:
            self.reach("before_start", waiting)
        claimed = super().claim(job_id, nonce=nonce, node=node)
        if claimed.applied and claimed.job is not None:
            job = claimed.job
            self.runs.append(RecordedRun(job.id, job.task, job.token, job.attempt, ["before_start"]))
            self.reach("after_start", job)
        return claimed

    def report(self, job: JobRow, progress: str) -> None:
        """Store the progress of a run, and record it."""
        run = self.run_of(job)
        with self._boundary(f"progress:{len(run.progress) + 1}", job):
            super().report(job, progress)
            run.progress.append(loads(progress))

    def keep_step(self, job: JobRow, name: str, value: str) -> str:
        """Keep a step, and pass its points."""
        with self._boundary(f"step:{name}", job):
            return super().keep_step(job, name, value)

    def _fenced(self, job: JobRow, transition: Transition, reason: str | None, **values: Any) -> JobRow:
        with self._boundary(str(transition), job):
            if transition is Transition.RETRY:
                self.run_of(job).retry_in = values["run_in"]
            return super()._fenced(job, transition, reason, **values)

    def in_transaction(self, transaction: OpenTransaction, emit: Any = None, *, writes: bool = True) -> Ledger:  # noqa: ARG002 - it has no locks
        """Return a ledger whose writes take effect with the commit of a user's transaction, on any database."""
        return SessionLedger(self, transaction, emit)

    @contextmanager
    def _boundary(self, write: str, job: JobRow) -> Iterator[None]:
        self.reach(f"before_{write}", job)
        yield
        self.reach(f"after_{write}", job)

    def reach(self, point: str, job: JobRow) -> None:
        """Record that a run of a job has reached a point, and call the hooks that wait for it."""
        run = next((run for run in self.runs if (run.job_id, run.token) == (job.id, job.token)), None)
        if run is not None:
            run.points.append(point)
        for hook in [*self.hooks]:
            if hook.matches(point, job):
                self.hooks.remove(hook)
                hook.action(job)

    def settle(self) -> None:
        """End the writes in users' transactions that have ended; undo the last writes first."""
        for write in [*reversed(self.pending)]:
            write.undo()
        silent = [write for write in [*self.pending] if write.settle()]
        self.pending = [write for write in self.pending if not write.ended]
        if silent:
            self.after_silent_commit()

    def withdraw(self, job: JobRow) -> None:
        """Remove a job whose transaction was rolled back."""
        self.remove(self.cancel(job.id, reason="its transaction was rolled back"))

    def get_many(self, job_ids: Sequence[str]) -> dict[str, JobRow]:
        """Return jobs, after the end of users' transactions that have ended."""
        if self.pending:
            self.settle()
        return super().get_many(job_ids)


class SessionLedger(Ledger):
    """A ledger whose writes take effect with the commit of a user's transaction."""

    def __init__(self, ledger: RecordingLedger, transaction: Any, emit: Any) -> None:
        if not transaction.has_callbacks:
            raise ConfigurationError(
                "in a test, the ledger takes part in transactions of a SQLAlchemy Session or of Django's connection, "
                "which report their commits: a plain connection does not. Use a Session in this test"
            )
        super().__init__(ledger.store, ledger.settings, emit)
        self._ledger = ledger
        self._transaction = transaction
        if _is_in_test_case_only(transaction):  # outside of a block each statement commits, and Django calls callbacks
            transaction.after_commit = lambda call, **_: call()

    def submit(self, submission: Submission, *, handover: Handover = BY_CALLER) -> Admission:
        """Submit a job; a rollback removes the job, or restores the job that the submission has changed."""
        self._ledger.settle()
        rows = self._ledger.store.rows_of(submission.identity)
        admission = super().submit(submission, handover=handover)
        submitted = self._ledger.record_submitted(submission, admission)

        def undo() -> None:
            self._ledger.submitted.remove(submitted)
            if admission.outcome.makes_job:
                self._ledger.withdraw(admission.job)
            elif admission.outcome is Outcome.REPLACED or admission.rescheduled:
                self._ledger.store.put_back(rows[admission.job.id])

        def make_due() -> None:
            if admission.outcome is Outcome.ADMITTED and submission.delay <= 0:
                self._ledger.change(admission.job, Transition.RUN_NOW, None, run_in=0.0, wake_after=0.0)

        self._await_end(PendingWrite(self._transaction, admission.job, lambda: None, undo, make_due))
        return admission

    def follow(self, submission: Submission, *, follows_id: str) -> JobRow | None:
        """Submit a follower; a rollback removes it."""
        exists = submission.id in self.get_many([submission.id])
        follower = super().follow(submission, follows_id=follows_id)
        if follower is not None and not exists:
            undo = partial(self._ledger.withdraw, follower)
            self._await_end(PendingWrite(self._transaction, follower, lambda: None, undo))
        return follower

    def complete(
        self, job: JobRow, result: str, *, hold: IdentityHold | None = None, request_id: str | None = None
    ) -> JobRow:
        """Complete a job at the commit. Raises `StaleTokenError` if its run is over."""
        with patch.object(self._ledger, "is_completing", new=True):
            self._ledger.reach("before_complete", job)
        now = self._ledger.get(job.id)
        repeated = any(each.job.id == job.id and not each.ended for each in self._ledger.pending)
        if repeated or now.token != job.token or now.state is not State.RUNNING:
            raise StaleTokenError(job.id, job.token, State.COMPLETED if repeated else now.state)

        def complete() -> None:
            unrecorded = Ledger(self.store, self.settings, self._ledger.emit)
            unrecorded.complete(job, result, hold=hold, request_id=request_id)
            self._ledger.reach("after_complete", job)

        self._await_end(PendingWrite(self._transaction, job, complete, lambda: None))
        return now

    def get_many(self, job_ids: Sequence[str]) -> dict[str, JobRow]:
        """Return jobs, also those of the open transaction."""
        return self._ledger.get_many(job_ids)

    def _await_end(self, write: PendingWrite) -> None:
        self._transaction.after_commit(write)  # first: another thread takes an unregistered write for rolled back
        self._ledger.pending.append(write)
        write.precede_callbacks()
