"""The request of a run in a worker's parent process, which handles lost children, time limits, revocation, expiry."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any
from weakref import WeakSet

import celery
from billiard.einfo import ExceptionWithTraceback  # type: ignore[attr-defined] # missing in the published types
from celery import Celery, signals
from celery.exceptions import Reject, TimeLimitExceeded, WorkerLostError
from celery.worker import request as celery_request
from celery.worker import state as worker_state
from celery.worker.state import task_ready
from kombu.message import Message
from kombu.serialization import prepare_accept_content
from kombu.utils.encoding import safe_repr

from onejob.celery.app_state import app_state_of
from onejob.celery.messages.payload import encode_failure
from onejob.celery.option_declarations import is_priority
from onejob.celery.results.result_backend import confirm_end
from onejob.celery.run import claim_of, current_run_or_none, draining
from onejob.errors import JobCanceled, JobNotFoundError, JobReleased, StaleTokenError, StoreError
from onejob.jobs.lifecycle import FINAL, State, Transition
from onejob.jobs.model import Cancel, JobRow
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger
from onejob.ledger.sweep import note_canvas_error

logger = logging.getLogger("onejob")
OF_LOST_CHILDREN = (WorkerLostError, SystemExit, KeyboardInterrupt, MemoryError)
"""The errors that the pool reports for a child that left its run. Celery would raise `MemoryError` in this process."""
CANCELED_BY_CELERY = "its worker canceled the run"


CeleryRequest: Any = celery_request.Request  # the published types know a part of the classes only
KombuMessage: Any = Message


class Request(CeleryRequest):  # type: ignore[misc]
    """A Celery request that can compute its run's claim: the child derives its nonce from the request's nonce."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app_state = app_state_of(self.app)
        self.nonce = new_nonce()
        self.seen_by_heartbeat = False
        """Whether an earlier heartbeat has renewed this run, so that it is not just starting or ending."""
        self.timed_out: JobRow | None = None
        """The job, failed, if this run exceeded its hard time limit."""
        self._request_dict["onejob_claim"] = self.nonce
        info = self.delivery_info
        priority = info.get("priority")  # whatever a producer has written there
        place = (str(info.get("exchange")), str(info.get("routing_key")), priority if is_priority(priority) else 0)
        if not isinstance(self.message, LedgerMessage):
            self.app_state.received[place] = self.id

    @property
    def claim(self) -> str:
        """The nonce with which the process of this run has claimed the job."""
        return claim_of(self.nonce, self.worker_pid if self.app_state.can_kill and self.worker_pid else os.getpid())

    # --- hooks of Celery: its main thread calls them in the parent process, some from signal handlers ----------------

    def revoked(self) -> bool:
        """Return whether the message is dropped: it has expired or is revoked, and its job, if any, is canceled.

        A message whose copy runs, or whose job was redriven, is no reason to cancel that job.
        """
        # Called twice: when the message has arrived, and right before the pool gets it (`execute_using_pool`).
        expired = self.expires is not None and datetime.now(self.expires.tzinfo) > self.expires
        if self._already_revoked or not (expired or self.id in worker_state.revoked):
            return self._report_revoked()
        try:
            job = self.app_state.ledger.get_or_none(self.id)
            if job is not None and not expired:
                job = cancel_revoked(self.app_state.ledger, job)
        except (StoreError, JobNotFoundError) as error:
            logger.error("job %s: its expired or revoked message is dropped: %s", self.id, error)  # noqa: TRY400 - no stack
            return self._drop()
        if job is not None and expired:
            return self._drop()  # the ledger has the job's own expiry
        return (job is None or job.state is State.CANCELED) and self._report_revoked()

    def _report_revoked(self) -> bool:
        """Let Celery report a revoked message, and cancel its job, unless a copy runs; return whether it is revoked."""
        if not worker_state.revoked_stamps.keys().isdisjoint(self.stamped_headers) and self._is_in(State.RUNNING):
            return False
        revoked = bool(super().revoked())
        if revoked:
            with log_errors(self.id):
                self.app_state.ledger.cancel(self.id, reason="revoked or expired before it started")
            self.mark_canvas_notified()
        return revoked

    def _drop(self) -> bool:
        """Drop this message only, and return True."""
        task_ready(self)
        self.acknowledge()
        return True

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Send the run a signal. The job ends when the run exits, or when the heartbeat kills it."""
        # Called by `revoke(terminate=True)`; again when a child accepts a message whose id was revoked meanwhile.
        with log_errors(self.id):
            self.app_state.ledger.cancel(self.id, force=True, reason="terminated on request")
        signaled_requests.add(self)
        self.interrupt(JobCanceled(self.id))
        with suppress(NotImplementedError):  # a pool without processes: the run stops at its next progress call
            super().terminate(pool, signal)

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:  # noqa: FBT001, FBT002 - Celery's signature
        """Send the run a signal, and keep the job: the connection was lost, or the worker shuts down cold."""
        signaled_requests.add(self)
        self.interrupt(JobReleased(self.id))
        try:
            super().cancel(pool, signal, emit_retry)
        except NotImplementedError:
            if current_run_or_none() is None:
                raise
            # Called by a signal handler in a body of the solo pool, whose job it would fail.

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001 - Celery's signature
        """Fail the job whose run exceeded its hard time limit; then Celery stores the failure and notifies the canvas.

        If Celery fails, or if the run had ended before its process did, a sweeper lets the canvas be notified.
        """
        # Called by the pool's timer, before the pool kills the child: so the child is killed here.
        if not soft:
            self.fail_timed_out(TimeLimitExceeded(timeout))
            if self.timed_out is None:
                logger.warning("job %s: its process exceeded the hard time limit of %s s in no run", self.id, timeout)
                self._drop()
                return
        super().on_timeout(soft, timeout)
        if self.timed_out is not None and not worker_state.should_terminate:  # in a cold shutdown Celery does neither
            with log_errors(self.id):
                self.app_state.ledger.mark_canvas_notified(self.timed_out)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:  # noqa: FBT001, FBT002 - Celery's signature
        """Recover the job of a child that died; leave every other failure to Celery."""
        # Called for an exception that the child has sent (by `on_success`, with `return_ok`), and by the pool if
        # the child died, was revoked, or exceeded its hard time limit.
        error = exc_info.exception
        error = error.exc if isinstance(error, ExceptionWithTraceback) else error
        ended = self._already_revoked or self._already_cancelled
        if isinstance(error, OF_LOST_CHILDREN) and not ended:
            task_ready(self)
            self.acknowledge()
            return self.handle_lost_child(f"its worker process died ({error})", exc_info)
        if isinstance(error, TimeLimitExceeded) and not return_ok:
            return self.fail_timed_out(error)  # Celery calls `on_timeout` next, and would call the errbacks twice
        if not return_ok and not ended and self._is_in(*FINAL):
            # Celery's tracer failed after the end, most likely at the result backend: a sweep has the canvas notified.
            self._drop()
            self.send_event("task-failed", exception=safe_repr(error), traceback=exc_info.traceback)
            return None
        returned = super().on_failure(exc_info, send_failed_event, return_ok)
        if self._already_revoked:
            self.abandon("terminated on request")
        elif self._already_cancelled:
            self.release(CANCELED_BY_CELERY)
        elif isinstance(error, Reject):
            self._report_rejected(error, exc_info)
        return returned

    def _is_in(self, *states: State) -> bool:
        """Return whether the job of this message is in one of these states; False if the store does not answer."""
        job: JobRow | None = None
        with log_errors(self.id):
            job = self.app_state.ledger.get_or_none(self.id)
        return job is not None and job.state in states

    def _report_rejected(self, error: Reject, exc_info: Any) -> None:
        """Record that the canvas of a job that rejected its message was notified; before Celery 5.7, notify it."""
        if celery.VERSION >= (5, 7):
            self.mark_canvas_notified()
            return
        with log_errors(self.id):
            job = self.app_state.ledger.get(self.id)
            if job.state is State.FAILED:
                self.report_failure(job, error, exc_info)

    # --- transitions by the parent ----------------------------------------------------------------------------------

    def handle_lost_child(self, reason: str, exc_info: Any = None) -> None:
        """Record that the child of this run is dead: the job runs again at once, or becomes a dead letter."""
        with log_errors(self.id):
            job = self.get_own_run()
            if job is None:
                self._have_canvas_notified(reason)
                return
            if job.cancel is Cancel.FORCED:
                self.abandon("terminated on request")
                return
            if self._already_cancelled:
                self.release(CANCELED_BY_CELERY)
                return
            error = WorkerLostError(reason)
            handover = self.app_state.publisher.handover.of(job)
            applied = self.app_state.ledger.crash(job, reason, encode_failure(error), handover=handover)
            crashed = applied.job
            if not applied.applied or crashed is None:  # another thread, or the sweeper of another worker, was first
                return
            logger.warning("job %s: %s; it is %s now", job.id, reason, crashed.state)
            if crashed.state is State.QUEUED and not applied.handed_over:
                self.app_state.publisher.try_publish(crashed)
            elif crashed.state is State.FAILED:
                self.report_failure(crashed, error, exc_info)

    def _have_canvas_notified(self, reason: str) -> None:
        """Let the next sweep notify the canvas of the job that this run ended, if its child died before it did so."""
        job = self.app_state.ledger.get_or_none(self.id)
        if job is not None and job.claim == self.claim and job.state.final and job.canvas_pending:
            note_canvas_error(self.app_state.ledger, job, reason, wake_after=0.0)

    def fail_timed_out(self, error: TimeLimitExceeded) -> None:
        """Kill the child, then fail its job: in this order, so that the identity is held while the run can act."""
        self.kill_child()
        with log_errors(self.id):
            if (job := self.get_own_run()) is not None:
                self.timed_out = self.app_state.ledger.fail(job, encode_failure(error), f"hard time limit: {error}")

    def abandon(self, reason: str) -> None:
        """Cancel the job of this run, whose child is dead."""
        with log_errors(self.id):
            if (job := self.get_own_run()) is not None:
                self.app_state.ledger.abandon(job, reason)
        if self._already_revoked:
            self.mark_canvas_notified()

    def release(self, reason: str) -> None:
        """Release the job of this run, whose child is dead, to the queue: it counts as no crash."""
        with log_errors(self.id):
            if (job := self.get_own_run()) is not None:
                self.app_state.publisher.release(job, reason)

    def get_own_run(self) -> JobRow | None:
        """Return the job if, in the ledger, it is running under this request's claim."""
        job = self.app_state.ledger.get_or_none(self.id)
        return job if job is not None and job.claim == self.claim and job.state is State.RUNNING else None

    def interrupt(self, error: BaseException) -> None:
        """End the body of this run by an error, in a pool that can: it gets a `CancelledError` where it awaits."""
        execution = self._apply_result and self._apply_result()
        if execution is not None and hasattr(execution, "interrupt"):
            execution.interrupt(error)

    def kill_child(self) -> bool:
        """Kill the process of this run with SIGKILL; False if the run has no process of its own, or it has exited."""
        return self._signal_child(signal.SIGKILL) is True

    def is_child_dead(self) -> bool:
        """Return whether the process of this run has exited."""
        return self._signal_child(0) is False

    def _signal_child(self, number: int) -> bool | None:
        """Send the process of this run a signal; False if it has exited, None if it has no process of its own."""
        pid = self.worker_pid
        if not self.app_state.can_kill or not pid or pid == os.getpid():
            return None
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):  # it has exited, and its number may be another user's process
            return False
        return True

    def mark_canvas_notified(self) -> None:
        """Record that Celery has notified the canvas of the job's end, in this parent process."""
        with log_errors(self.id):
            job = self.app_state.ledger.get(self.id)
            if job.state.final and job.canvas_pending:
                confirm_end(self.task.backend, self._context, job)
                self.app_state.ledger.mark_canvas_notified(job)

    def report_failure(self, job: JobRow, error: Exception, exc_info: Any) -> None:
        """Report a failed job to Celery's result backend, which notifies the canvas, and by its signal and event."""
        traceback = getattr(exc_info, "traceback", None)
        self.task.backend.mark_as_failure(self.id, error, request=self._context, store_result=self.store_errors)
        signals.task_failure.send(
            sender=self.task, task_id=self.id, exception=error, args=self.args, kwargs=self.kwargs, traceback=traceback,
            einfo=exc_info,
        )  # fmt: skip
        self.app_state.ledger.mark_canvas_notified(job)
        self.send_event("task-failed", exception=safe_repr(error), traceback=traceback)


signaled_requests: WeakSet[Request] = WeakSet()
"""The runs that were sent a signal. Celery counts them as ended at once; the ledger, when their children are dead."""


def cancel_revoked(ledger: Ledger, job: JobRow) -> JobRow:
    """Cancel a job whose id a worker of Celery remembers as revoked; return the job afterwards.

    A revocation is meant for the run at its time, which no worker knows, and workers remember it for hours. So a
    job that was redriven after an end is left alone: `AsyncResult.revoke` and `onejob jobs cancel` cancel it.
    """
    if job.state.final:
        return job
    if job.attempt and any(entry.event == Transition.REDRIVE for entry in ledger.history(job.id)):
        logger.warning("job %s was redriven: `AsyncResult.revoke` cancels it, a remembered revocation does not", job.id)
        return job
    return ledger.cancel(job.id, reason="revoked")


@contextmanager
def log_errors(job_id: str) -> Iterator[None]:
    """Log the errors of the ledger and the broker in the worker's parent: the job recovers when its lease expires."""
    try:
        yield
    except (JobNotFoundError, StaleTokenError):
        logger.debug("job %s has changed since", job_id)
    except StoreError as error:
        logger.error("job %s: the ledger failed, the job recovers when its lease expires: %s", job_id, error)  # noqa: TRY400 - no stack
    except Exception:
        logger.exception("job %s: its message could not be published, the sweeper will", job_id)


# --- messages of jobs that a worker takes from the ledger itself -----------------------------------------------------


class LedgerMessage(KombuMessage):  # type: ignore[misc]
    """A message that a worker made of a job: no broker has it, so acknowledging or rejecting it reaches no broker."""

    def ack(self, multiple: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - kombu's signature
        """Mark the message as acknowledged."""
        self._state = "ACK"

    def reject(self, requeue: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - kombu's signature
        """Mark the message as rejected: a sweep publishes the job if it still waits."""
        self._state = "REJECTED"

    requeue = reject

    @property
    def payload(self) -> Any:
        """The content, decoded once."""
        return self.body if self.content_type is None else super().payload


def message_of_job(app: Celery, job: JobRow) -> LedgerMessage:
    """Return the message of a job in the form in which a consumer gets it from a broker. Raises as `payload_of`."""
    payload = app_state_of(app).publisher.payload_of(job, job.id)
    properties = payload["properties"]
    return LedgerMessage(
        payload["body"], delivery_tag=job.id, content_type=payload["content-type"],
        content_encoding=payload["content-encoding"], delivery_info=properties["delivery_info"], properties=properties,
        headers=payload["headers"], postencode="utf-8", accept=prepare_accept_content(app.conf.accept_content),
    )  # fmt: skip


# --- revocations: these jobs may have no message to be dropped -------------------------------------------------------


BATCH = 100
"""How many jobs are read at once."""


class Revocations:
    """Handles each id that a worker of Celery remembers as revoked once, for as long as Celery remembers it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._handled: set[str] = set()

    def tick(self) -> None:
        """Cancel the jobs whose ids are new, in batches, until the worker shuts down. Raises `StoreError`."""
        revoked = [str(task_id) for task_id in list(worker_state.revoked)]
        self._handled.intersection_update(revoked)
        new = [task_id for task_id in revoked if task_id not in self._handled]
        for start in range(0, len(new), BATCH):
            if draining.is_set():
                return
            self._cancel(new[start : start + BATCH])

    def _cancel(self, batch: list[str]) -> None:
        """Cancel the live jobs of a batch; the next tick tries jobs again that could not be canceled."""
        jobs = self._ledger.store.get_many(batch)
        self._handled.update(task_id for task_id in batch if task_id not in jobs)
        for job in jobs.values():
            with log_errors(job.id):
                cancel_revoked(self._ledger, job)
                self._handled.add(job.id)
