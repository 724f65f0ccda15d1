"""The app of the storms: bodies whose only effect is a row of their own, with the completion or apart from it."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import onejob
from chaos.app import EFFECTS, chaos_app
from chaos.effects import APPLIED, STARTED, async_sessions_of, sessions_of, write

if TYPE_CHECKING:
    from sqlalchemy import Table

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


@onejob.task(app)
async def await_apart(number: int) -> int:
    """Apply outside the ledger, as the last act of a coroutine."""
    job = onejob.current_job()
    await asyncio.to_thread(_write, STARTED, number, job)
    await asyncio.sleep(BODY_SECONDS)
    await asyncio.to_thread(_write, APPLIED, number, job)
    return number


def _write(table: Table, number: int, job: onejob.RunningJob) -> None:
    with Session.begin() as session:
        write(session, table, number, job, os.getpid())


@onejob.task(app)
async def await_together(number: int) -> None:
    """Apply in one transaction with the completion, in a coroutine."""
    job = onejob.current_job()
    await asyncio.to_thread(_write, STARTED, number, job)
    async with job.atransaction(async_sessions_of(EFFECTS)) as session:
        await session.run_sync(write, APPLIED, number, job, os.getpid())
        await asyncio.sleep(BODY_SECONDS)
        await job.acomplete_in(session, number)


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
