"""A completion in a transaction with an older snapshot wakes what follows the job, or fails and is repeated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import IsolationLevel, errors

from onejob.celery.current_job import RunningJob
from onejob.celery.submission import build_submission
from onejob.jobs.lifecycle import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.jobs.model import Job, Submission
    from tests.transactions.place import Place


def _submission(place: Place, job_id: str) -> Submission:
    return build_submission(place.effect, ("a",), {}, {}, task_id=job_id)


def _attach(place: Place, _followed: Job) -> None:
    place.ledger.submit(_submission(place, "later"))


def _queue_next(place: Place, _followed: Job) -> None:
    place.ledger.submit(replace(_submission(place, "later"), follows=False, queues_next=True))


def _follow(place: Place, followed: Job) -> None:
    place.ledger.follow(_submission(place, "later"), follows_id=followed.id)


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
@pytest.mark.parametrize("write", [_attach, _queue_next, _follow])
def test_what_follows_is_woken(place: Place, level: IsolationLevel, write: Callable[[Place, Job], None]) -> None:
    """A completion fails if what follows the job was committed after its snapshot; repeated, it wakes what follows."""
    run = RunningJob(place.claim(place.effect.delay("a").id), place.ledger, place.limits)
    connection = psycopg.connect(place.url)
    connection.isolation_level = level
    connection.execute("select 1 from pg_class limit 1")
    write(place, run.job)
    with pytest.raises(errors.SerializationFailure):
        run.complete_in(connection, 1)
    connection.rollback()
    run.complete_in(connection, 1)
    connection.commit()
    connection.close()
    assert place.ledger.get(run.id).state is State.COMPLETED
    woken = place.ledger.get("later")
    assert woken.wake_at is not None
    assert place.sweep() == 1
