"""The app of the storms: bodies whose only effect is a row of their own, with the completion or apart from it."""

from __future__ import annotations

import os
import time

import onejob
from chaos.app import EFFECTS, chaos_app
from chaos.effects import APPLIED, STARTED, sessions_of, write

app = chaos_app("storm")
Session = sessions_of(EFFECTS)
BODY_SECONDS = 0.15
"""Seconds that a body takes."""


@app.task(base=onejob.Task)
def apply_apart(number: int) -> int:
    """Apply outside the ledger, as the last act."""
    job = onejob.current_job()
    with Session.begin() as session:
        write(session, STARTED, number, job, os.getpid())
    time.sleep(BODY_SECONDS)
    with Session.begin() as session:
        write(session, APPLIED, number, job, os.getpid())
    return number


@app.task(base=onejob.Task)
def apply_together(number: int) -> None:
    """Apply in one transaction with the completion."""
    job = onejob.current_job()
    with Session.begin() as session:
        write(session, STARTED, number, job, os.getpid())
    with job.transaction(Session) as session:
        write(session, APPLIED, number, job, os.getpid())
        time.sleep(BODY_SECONDS)
        job.complete_in(session, number)


@app.task(base=onejob.Task, autoretry_for=(Exception,), max_retries=None, default_retry_delay=1)
def apply_stubbornly(number: int) -> None:
    """Apply in one transaction with the completion; try again when the database goes away under it."""
    job = onejob.current_job()
    with job.transaction(Session) as session:
        write(session, APPLIED, number, job, os.getpid())
        time.sleep(BODY_SECONDS)
        job.complete_in(session, number)


@app.task(base=onejob.Task, autoretry_for=(Exception,), max_retries=None, default_retry_delay=1, unique_for=7200)
def apply_once(number: int, seconds: float) -> None:
    """Apply so many seconds long in one transaction with the completion, once in two hours."""
    job = onejob.current_job()
    with job.transaction(Session) as session:
        write(session, APPLIED, number, job, os.getpid())
        time.sleep(seconds)
        job.complete_in(session, number)
