"""What an operator does from any door: send dead letters again, and have the workers hear of a cancellation at once."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from onejob.celery.message import waits_for_end
from onejob.celery.publisher import bounds_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger

BROKER_SECONDS = 2.0
"""How long the broker may take to let somebody in."""


def redrive(ledger: Ledger, job: Job, *, forget_steps: bool, reason: str) -> Job:
    """Send a dead letter again, and have what waits for its end told that once more. Raises as `Ledger.redrive`."""
    return ledger.redrive(job.id, forget_steps=forget_steps, canvas=waits_for_end(job.options), reason=reason)


def broadcast_cancel(app: Celery, job_id: str) -> Exception | None:
    """Have the workers end a run that was canceled by force at once, not with the next heartbeat.

    Returns why they could not be told, if so. A run that is only asked to stop asks the ledger itself.
    """
    try:
        with broker(app) as connection:
            app.control.revoke(job_id, terminate=True, connection=connection)
    except Exception as error:  # noqa: BLE001 - whatever the transport raises: the ledger knows
        return error
    return None


@contextmanager
def broker(app: Celery) -> Iterator[Any]:
    """Yield a connection to the broker. Raises what the transport raises when it does not answer in time."""
    with app.connection_for_write(connect_timeout=BROKER_SECONDS) as connection:
        connection.transport_options = bounds_of(connection, BROKER_SECONDS) | (connection.transport_options or {})
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=int(BROKER_SECONDS))
        yield connection
