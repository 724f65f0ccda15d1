"""A pool passes a message to another child when the first one dies before it could report its start."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import celery
import pytest
from celery.app.task import Context

import onejob
from onejob.celery.app_state import app_state_of
from onejob.celery.current_job import claim_of
from onejob.celery.worker.execute import Refusal, _claim
from onejob.jobs.transitions import new_nonce

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onejob.jobs.model import Job

DEAD = 4_000_000
"""A process id beyond those that Linux and macOS give."""


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Any]:
    """Return a task whose ledger is a file of this test."""
    app = celery.Celery("shop", broker="memory://", set_as_current=False)
    app.conf.onejob_store = f"sqlite:///{tmp_path / 'ledger.db'}"

    @app.task(base=onejob.Task, name="shop.invoice", shared=False)
    def invoice(order_id: int) -> None:
        """Do nothing."""

    yield invoice
    app_state_of(app).ledger.close()


def began(task: Any, message: str, pid: int) -> Job:
    """Submit a job and have a process claim it for a message."""
    job = task.delay(42).job
    claimed = app_state_of(task.app).ledger.claim(job.id, nonce=claim_of(message, pid), node="north").job
    assert claimed is not None
    return claimed


def claim(task: Any, job: Job, message: str) -> Any:
    """Claim a job for a message, as this process; return the job, or what the parent gets instead."""
    task.__trace__ = lambda _id, _args, _kwargs, request: (_claim(task, Context(request), app_state_of(task.app)),)
    return task.__trace__(job.id, [], {}, {"id": job.id, "onejob_claim": message, "hostname": "north"})[0]


def test_a_message_handed_on_starts_a_new_attempt(task: Any) -> None:
    """A child that gets the message of a dead sibling counts its death, and runs under a token of its own."""
    message = new_nonce()
    first = began(task, message, DEAD)
    second = claim(task, first, message)
    assert (second.attempt, second.crashes) == (2, 1)
    assert second.token > first.token
    assert second.claim == claim_of(message, os.getpid())


def test_another_message_takes_nothing(task: Any) -> None:
    """A copy of a message, from the broker and not from the pool, is refused while the job runs."""
    first = began(task, new_nonce(), DEAD)
    assert isinstance(claim(task, first, new_nonce()), Refusal)
    assert app_state_of(task.app).ledger.get(first.id).token == first.token
