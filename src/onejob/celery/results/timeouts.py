"""The message of a `TimeoutError` about a job: its state, and why it is stuck, if it is."""

from __future__ import annotations

from celery import Celery

from onejob.celery.app_state import app_state_of
from onejob.errors import StoreError
from onejob.ledger.stuck import Snapshot, Stuck, why_stuck


def timeout_text(job_id: str, state: str, timeout: float, obstacle: str = "") -> str:
    """Return the message for a job that has not ended after `timeout` seconds; `obstacle`: a text of `obstacle_to`."""
    text = f"job {job_id} has not ended after {timeout:g} s: it was {state} when it was last read"
    return f"{text}. {obstacle}" if obstacle else text


def obstacle_to(app: Celery, job_id: str) -> str:
    """Return why a job of the app's ledger is stuck, as sentences; "" if it is not, or if the store does not answer."""
    app_state = app_state_of(app)
    try:
        job = app_state.ledger.get_or_none(job_id)
        reason = None if job is None else why_stuck(app_state.ledger, job, Snapshot.of(app_state.ledger))
    except StoreError:
        return ""
    if reason is Stuck.NO_WORKER:
        return (
            f"No live worker has this ledger: {app_state.settings.address}. Start one, or compare onejob_store and "
            "onejob_namespace with what the worker shows at its start"
        )
    return "" if reason is None else f"It is stuck: {reason}. `onejob why` says more"
