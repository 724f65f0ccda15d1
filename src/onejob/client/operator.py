"""The operations that all front ends (Python, HTTP, command line, pages) offer on jobs, dead letters and the schedule.

A front end adds who may carry out an operation, how its answer is shown, and how the audit log records it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import Celery

from onejob import errors
from onejob.celery.messages.broker import connect_to_broker
from onejob.client.blocks import new_block
from onejob.client.jobs import CheckArguments, edit
from onejob.client.limits import new_exception
from onejob.client.operation import Operation
from onejob.client.redrive import handover_of, redrive
from onejob.jobs.blocks import Block, BlockKind
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Admission, JobRow
from onejob.ledger.bulk import BulkResult, Selection, bulk_apply
from onejob.ledger.ledger import Ledger
from onejob.ledger.limits import LimitState, find_limit, list_limits, unknown_limit
from onejob.ledger.needed import needed_by_itself
from onejob.ledger.reader import JobReader
from onejob.observability.logs import log_warning

if TYPE_CHECKING:
    from onejob.client.schedules import ScheduleEntry

NEEDS_APP = "only the Celery app knows {what}: give onejob.Client the app, and not the URL of its ledger"


def deadline(seconds: float) -> Callable[[], bool]:
    """Return a function that tells whether so many seconds are over."""
    ends_at = time.monotonic() + seconds
    return lambda: time.monotonic() >= ends_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Who operates on jobs, on which, and from where."""

    app: Celery | None
    """The app of the jobs' workers, which a forced cancellation notifies at once; None if it is not known."""
    ledger: Ledger
    origin: str
    """Where the operations come from, and whose they are, for the history ("over HTTP by ops")."""
    reader: JobReader | None = None
    """Reads the jobs that the operator sees; None: all."""
    check: Callable[[str, JobRow], object] = lambda _action, _job: None
    """Raises `OneJobError` for an action on one of many jobs that the operator is not permitted."""
    check_answer: Callable[[Admission], object] | None = None
    """Raises `OneJobError` for a job that would answer a submission, and that the operator does not see."""

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def operate(self, operation: Operation, job: JobRow, *, forget_steps: bool = False) -> JobRow | None:
        """Carry out an operation, and return the job afterwards; None after a deletion.

        `job` may be without its `LARGE_FIELDS`, and outdated. `forget_steps`: a redriven job runs its steps again.
        Raises `JobNotFoundError`; what `Operation.check` raises, `NotWaitingError` also for one that waits for a job;
        `IdentityHeldError` and `SupersededError` for a redrive, about an "unknown" job if `reader` does not see it;
        `UniquenessWindowError` for a deletion, and unless it is forced `JobNeededError`.
        """
        app, ledger, reason = self.app, self.ledger, f"{operation.done} {self.origin}"
        match operation:
            case Operation.CANCEL | Operation.FORCE_CANCEL:
                return _cancel(app, ledger, operation, job, reason)
            case Operation.RUN_NOW:
                return ledger.run_now(job.id, reason=reason, handover_of=partial(handover_of, app, ledger))
            case Operation.REDRIVE:
                try:
                    return redrive(app, ledger, ledger.get(job.id), forget_steps=forget_steps, reason=reason)
                except (errors.IdentityHeldError, errors.SupersededError) as error:
                    other = error.holder_id if isinstance(error, errors.IdentityHeldError) else error.newer_id
                    if self.reader is None or self.reader.get_or_none(other) is not None:
                        raise
                    raise type(error)(job.id, "unknown", "not shown") from None
            case Operation.DELETE | Operation.FORCE_DELETE:
                ledger.delete(job.id, force=operation.is_forced)
                return None

    def operate_many(
        self, operation: Operation, selection: Selection, *, forget_steps: bool = False, dry_run: bool = False,
        is_over: Callable[[], bool] | None = None,
    ) -> BulkResult:  # fmt: skip
        """Carry out an operation on each selected job that it applies to. Raises as `operate` and `bulk_apply` do."""
        now = self.ledger.read_clock() if operation is Operation.DELETE else None

        def check(job: JobRow) -> None:
            self.check(operation.permission, job)
            operation.check(job)
            if now is not None and (needed_by := needed_by_itself(job, now)):
                raise errors.JobNeededError(job.id, job.state, needed_by)

        act = partial(self.operate, operation, forget_steps=forget_steps)
        return bulk_apply(self.reader or self.ledger, selection, act, check=check, dry_run=dry_run, is_over=is_over)

    def edit(
        self, job_id: str, *, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None,
        check: CheckArguments = lambda *_: None,
    ) -> Admission:  # fmt: skip
        """Redrive a dead letter with other arguments, which `check` may refuse. Raises as `edit` does."""
        app = self.app_for("the signature of its tasks")
        return edit(app, self.ledger, job_id, args=args, kwargs=kwargs, check=check, check_answer=self.check_answer)

    # --- pauses and strikes -------------------------------------------------------------------------------------------

    def list_blocks(self, kind: BlockKind) -> list[Block]:
        """Return the pauses or the strikes that are not over, oldest first."""
        return self.ledger.list_blocks(kind)

    def block(
        self, kind: BlockKind, *, task: str = "", queue: str = "", where: Mapping[str, str] | None = None,
        until: float | None = None, note: str = "",
    ) -> Block:  # fmt: skip
        """Pause or strike the jobs that match, and return the block. Raises as `new_block` and `add_block`."""
        made = new_block(
            self.app, kind, task=task, queue=queue, where=where, until=until, note=note, created_by=self.origin
        )  # fmt: skip
        return self.ledger.add_block(made)

    def end_block(self, block_id: str, kind: BlockKind) -> Block:
        """End a pause, whose jobs are due then, or a strike, and return it. Raises `BlockNotFoundError`."""
        return self.ledger.end_block(block_id, kind)

    # --- limits -------------------------------------------------------------------------------------------------------

    def list_limits(self) -> list[LimitState]:
        """Return the limits, the exceptions, and the keys that jobs wait for, by key."""
        return list_limits(self.reader or self.ledger)

    def find_limit(self, key: str) -> LimitState:
        """Return the state of a name or a key. Raises `InvalidLimitError` for one that is not known."""
        state = find_limit(self.reader or self.ledger, key)
        if not state.is_known:
            raise unknown_limit(key)
        return state

    def set_limit(self, key: str, text: str, *, until: float | None = None) -> LimitState:
        """Write an exception for a name or a key, and return its state; jobs that have room then are due at once.

        Raises as `new_exception` and `Ledger.set_limit` do.
        """
        self.ledger.set_limit(new_exception(key, text, until=until))
        return self.find_limit(key)

    def clear_limit(self, key: str) -> LimitState:
        """End the exception of a name or a key, if it has one, and return its state. Raises as `find_limit` does."""
        self.find_limit(key)
        self.ledger.clear_limit(key)
        return find_limit(self.reader or self.ledger, key)

    # --- the schedule -------------------------------------------------------------------------------------------------

    def list_schedules(self) -> list[ScheduleEntry]:
        """Return the entries of the schedule, by name. Raises as `list_entries` does."""
        from onejob.client import schedules  # imports celery.beat

        return schedules.list_entries(self.app_for("its schedule"), self.ledger)

    def set_paused(self, entry: str, *, paused: bool) -> ScheduleEntry:
        """Pause an entry of the schedule, or resume it, and return it afterwards. Raises as `set_paused` does."""
        from onejob.client import schedules

        return schedules.set_paused(self.app_for("its schedule"), self.ledger, entry, paused=paused)

    def run_entry(self, entry: str, *, check: Callable[[str], object] = lambda _: None) -> str:
        """Submit the call of an entry now, whose task `check` may refuse, and return the id of the job that answers.

        Raises as `run_entry` does.
        """
        from onejob.client import schedules

        app = self.app_for("its schedule")
        return str(schedules.run_entry(app, entry, check=check, check_answer=self.check_answer).id)

    def app_for(self, what: str) -> Celery:
        """Return the app, which alone knows something. Raises `ConfigurationError` without one."""
        if self.app is None:
            raise errors.ConfigurationError(NEEDS_APP.format(what=what))
        return self.app


def _cancel(app: Celery | None, ledger: Ledger, operation: Operation, job: JobRow, reason: str) -> JobRow:
    operation.check(job)
    forced = operation.is_forced
    canceled = ledger.cancel(job.id, force=forced, reason=reason)
    if canceled.state.final and canceled.state is not State.CANCELED:
        raise errors.JobEndedError(canceled.id, canceled.state)
    if forced and app is not None and not canceled.state.final:  # otherwise the run polls the ledger
        try:
            with connect_to_broker(app) as connection:
                app.control.revoke(job.id, terminate=True, connection=connection)
        except Exception as error:  # noqa: BLE001 - any transport error: the cancellation is in the ledger
            log_warning(
                "job %s is canceled, which its worker will see at its next heartbeat, since the broker failed: %s",
                job.id,
                errors.describe(error),
            )
    return canceled
