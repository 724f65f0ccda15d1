"""The app of the lost commits: bodies whose sessions reach the database through the proxy."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

import onejob
from chaos.app import EFFECTS, chaos_app
from chaos.effects import APPLIED, engine_of, write

app = chaos_app("commits")
THROUGH = os.environ.get("CHAOS_THROUGH", EFFECTS)
"""The URL of the database of the effects, through the proxy."""
STUBBORN: dict[str, Any] = {
    "autoretry_for": (Exception,),
    "max_retries": 10,
    "default_retry_delay": 0,
    "retry_backoff": False,
}


def session_of(number: int) -> partial[Session]:
    """Return what opens a session on a connection that bears a job's number."""
    return partial(Session, engine_of(THROUGH, application_name=f"number-{number}"))


def apply(number: int) -> None:
    """Apply in one transaction with the completion."""
    job = onejob.current_job()
    with job.transaction(session_of(number)) as session:
        write(session, APPLIED, number, job, os.getpid())
        job.complete_in(session, number)


@app.task(base=onejob.Task)
def apply_once(number: int) -> None:
    """Apply, without handling lost replies."""
    apply(number)


@app.task(base=onejob.Task, **STUBBORN)
def apply_stubbornly(number: int) -> None:
    """Do the same, and try again after any error."""
    apply(number)


@app.task(base=onejob.Task, **STUBBORN)
def apply_blindly(number: int) -> int:
    """Apply in a transaction apart from the completion, and try again after any error, as people do."""
    with session_of(number)() as session, session.begin():
        write(session, APPLIED, number, onejob.current_job(), os.getpid())
    return number
