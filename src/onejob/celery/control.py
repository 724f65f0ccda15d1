"""Operator actions that need the Celery app: redrive a dead letter, broadcast a cancellation."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onejob.celery.app_state import app_state_of
from onejob.celery.broker import timeout_options
from onejob.celery.message import has_canvas, loads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from onejob.jobs.model import Job, WireMessage
    from onejob.ledger.ledger import Ledger

BROKER_TIMEOUT = 2.0
"""Seconds until a connection attempt to the broker fails."""


def redrive(app: Celery | None, ledger: Ledger, job: Job, *, forget_steps: bool, reason: str) -> Job:
    """Queue a dead letter again; its canvas, if any, is notified again when it ends. Raises as `Ledger.redrive`.

    The store pushes its message if it can, and if `ledger` is that of `app`; otherwise a sweeper publishes it.
    """
    canvas = has_canvas(loads(job.options))
    message = push_message(app, ledger, replace(job, retries=0))
    return ledger.redrive(job.id, forget_steps=forget_steps, canvas=canvas, reason=reason, message=message)


def push_message(app: Celery | None, ledger: Ledger, job: Job) -> WireMessage | None:
    """Return the message of a job if the store of `ledger` can push it; None if a sweeper has to publish the job."""
    if app is None or job.wake_task is not None or not app_state_of(app).owns(ledger):
        return None
    return app_state_of(app).publisher.message_of(job)


def broadcast_cancel(app: Celery, job_id: str) -> Exception | None:
    """Tell the workers to kill a run that was canceled by force now, instead of at their next heartbeat.

    Returns the error if the broadcast failed. Without force no broadcast is necessary: the run polls the ledger.
    """
    try:
        with connect_to_broker(app) as connection:
            app.control.revoke(job_id, terminate=True, connection=connection)
    except Exception as error:  # noqa: BLE001 - any transport error: the cancellation is in the ledger
        return error
    return None


@contextmanager
def connect_to_broker(app: Celery) -> Iterator[Any]:
    """Yield a connection to the broker. Raises the transport's error if there is none within `BROKER_TIMEOUT`."""
    with app.connection_for_write(connect_timeout=BROKER_TIMEOUT) as connection:
        timeouts = timeout_options(connection, BROKER_TIMEOUT)
        connection.transport_options = timeouts | (connection.transport_options or {})
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=int(BROKER_TIMEOUT))
        yield connection
