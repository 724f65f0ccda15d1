"""What a worker's parent process sees of a run: its child lost, its time up, its job revoked or expired."""

from __future__ import annotations

import logging
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from billiard.einfo import ExceptionWithTraceback  # type: ignore[attr-defined] # missing in the published types
from celery import signals
from celery.exceptions import Reject, TimeLimitExceeded, WorkerLostError
from celery.worker import request as celery_request
from celery.worker.state import task_ready

from onejob.celery.app_state import app_state_of
from onejob.celery.current_job import claim_of
from onejob.celery.failure import encode_failure
from onejob.errors import JobNotFoundError, StaleTokenError, StoreError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Cancel
from onejob.jobs.transitions import new_nonce

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onejob.celery.app_state import AppState
    from onejob.jobs.model import Job

logger = logging.getLogger("onejob")
CANCELED_BY_CELERY = "its worker canceled the run"


CeleryRequest: Any = celery_request.Request  # the published types know a part of the class only


class Request(CeleryRequest):  # type: ignore[misc]
    """A Celery request that knows its claim: the parent chooses the nonce from which its child makes its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.nonce = new_nonce()
        self.seen = False
        """Whether an earlier heartbeat has met this run: then it is not just starting or ending."""
        self._request_dict["onejob_claim"] = self.nonce

    @property
    def claim(self) -> str:
        """The nonce with which the process of this run has claimed the job."""
        return claim_of(self.nonce, self.worker_pid if self.app_state.can_kill and self.worker_pid else os.getpid())

    @property
    def app_state(self) -> AppState:
        """The onejob side of the worker's app."""
        return app_state_of(self.app)

    # --- what Celery tells ------------------------------------------------------------------------------------------

    def revoked(self) -> bool:
        """Tell whether the message is revoked or has expired, and cancel its job then."""
        revoked = bool(super().revoked())
        if revoked:
            with log_errors(self.id):
                self.app_state.ledger.cancel(self.id, reason="revoked or expired before it started")
            self.mark_notified()
        return revoked

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Send the run its signal; the job ends when the run has, or when the heartbeat ends it."""
        with log_errors(self.id):
            self.app_state.ledger.cancel(self.id, force=True, reason="terminated on request")
        signaled.add(self)
        super().terminate(pool, signal)

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:  # noqa: FBT001, FBT002 - Celery's signature
        """Send the run its signal and keep the job: the connection was lost, or the worker stops in a hurry."""
        signaled.add(self)
        super().cancel(pool, signal, emit_retry)

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001 - Celery's signature
        """Fail the job whose run broke its hard time limit."""
        if not soft:
            self.out_of_time(TimeLimitExceeded(timeout))
        super().on_timeout(soft, timeout)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:  # noqa: FBT001, FBT002 - Celery's signature
        """Give back the job of a child that died; everything else is Celery's."""
        error = exc_info.exception
        error = error.exc if isinstance(error, ExceptionWithTraceback) else error
        ended = self._already_revoked or self._already_cancelled
        if isinstance(error, WorkerLostError | SystemExit | KeyboardInterrupt) and not ended:
            task_ready(self)
            self.acknowledge()
            return self.lost(f"its worker process died ({error})", exc_info)
        if isinstance(error, TimeLimitExceeded) and not return_ok:
            return self.out_of_time(error)  # Celery calls `on_timeout` next; it would tell the errbacks twice
        answer = super().on_failure(exc_info, send_failed_event, return_ok)
        if self._already_revoked:
            self.abandon("terminated on request")
        elif self._already_cancelled:
            self.hand_back(CANCELED_BY_CELERY)
        elif isinstance(error, Reject):
            self.mark_notified()
        return answer

    # --- what the parent makes of it --------------------------------------------------------------------------------

    def lost(self, reason: str, exc_info: Any = None) -> None:
        """Tell the ledger that the child of this run is dead: the job runs again at once, or is buried."""
        with log_errors(self.id):
            job = self.my_run()
            if job is None:
                return
            if job.cancel is Cancel.FORCED:
                self.abandon("terminated on request")
                return
            if self._already_cancelled:
                self.hand_back(CANCELED_BY_CELERY)
                return
            error = WorkerLostError(reason)
            after = self.app_state.ledger.crash(job, reason, encode_failure(error)).job
            logger.warning("job %s: %s; it is %s now", job.id, reason, after and after.state)
            if after is not None and after.state is State.QUEUED:
                self.app_state.publisher.publish(after)
            elif after is not None and after.state is State.FAILED:
                self.tell_failure(after, error, exc_info)

    def out_of_time(self, error: TimeLimitExceeded) -> None:
        """End the child first, then its job: no identity is free while its old run still acts."""
        self.kill_child()
        with log_errors(self.id):
            job = self.my_run()
            if job is not None:
                ended = self.app_state.ledger.fail(job, encode_failure(error), f"hard time limit: {error}")
                self.app_state.ledger.mark_canvas_notified(ended)  # Celery tells the canvas right after

    def abandon(self, reason: str) -> None:
        """End the job of this run, whose child is dead, as canceled."""
        with log_errors(self.id):
            job = self.my_run()
            if job is not None:
                self.app_state.ledger.abandon(job, reason)
        if self._already_revoked:
            self.mark_notified()

    def hand_back(self, reason: str) -> None:
        """Give the job of this run, whose child is dead, back to the queue: no attempt is lost."""
        with log_errors(self.id):
            job = self.my_run()
            if job is not None:
                self.app_state.publisher.publish(self.app_state.ledger.release(job, reason))

    def my_run(self) -> Job | None:
        """Return the job if this request's child has claimed it and runs it, as the ledger sees it."""
        job = self.app_state.ledger.get_or_none(self.id)
        mine = job is not None and job.claim == self.claim and job.state is State.RUNNING
        return job if mine else None

    def kill_child(self) -> bool:
        """End the process of this run with SIGKILL, where runs have processes of their own."""
        pid = self.worker_pid
        if not self.app_state.can_kill or not pid or pid == os.getpid():
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def child_is_dead(self) -> bool:
        """Tell whether the process of this run is gone."""
        if not self.app_state.can_kill or not self.worker_pid:
            return False
        try:
            os.kill(self.worker_pid, 0)
        except ProcessLookupError:
            return True
        return False

    def mark_notified(self) -> None:
        """Note that Celery, here in the parent, has told the canvas behind the job its end."""
        with log_errors(self.id):
            job = self.app_state.ledger.get(self.id)
            if job.state.final and job.canvas_pending:
                self.app_state.ledger.mark_canvas_notified(job)

    def tell_failure(self, job: Job, error: Exception, exc_info: Any) -> None:
        """Tell Celery's result backend, and the canvas in it, that the job has failed for good."""
        self.task.backend.mark_as_failure(self.id, error, request=self._context, store_result=self.store_errors)
        signals.task_failure.send(
            sender=self.task,
            task_id=self.id,
            exception=error,
            args=self.args,
            kwargs=self.kwargs,
            traceback=getattr(exc_info, "traceback", None),
            einfo=exc_info,
        )
        self.app_state.ledger.mark_canvas_notified(job)


signaled: WeakSet[Request] = WeakSet()
"""Runs that were sent a signal. Celery counts them as over at once; the ledger, when their children are dead."""


@contextmanager
def log_errors(job_id: str) -> Iterator[None]:
    """Let no trouble of the ledger or the broker harm the worker's parent: the lease heals what it could not do."""
    try:
        yield
    except (JobNotFoundError, StaleTokenError):
        logger.debug("job %s has moved on", job_id)
    except StoreError as error:
        logger.error("job %s: the ledger failed, its lease will heal it: %s", job_id, error)  # noqa: TRY400 - no stack
    except Exception:
        logger.exception("job %s: its message could not be published, the sweeper will", job_id)
