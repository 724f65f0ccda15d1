"""Replace: a running job goes on as another task, with its id, identity, keys, followers, duplicates and history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onejob.errors import StaleTokenError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Cancel, Outcome
from tests.contract.support import (
    LEASE,
    admission,
    assert_changed,
    assert_legal,
    events,
    queue_next,
    read,
    run,
    start,
    take_due,
    untouched,
)

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store
    from tests.contract.support import ManualClock

NEW: dict[str, Any] = {"payload": '{"task": "other"}', "options": '{"queue": "slow"}', "reason": "replaced by other"}


def replaced(ledger: Ledger, job: Job, **values: Any) -> Job:
    """Replace a job."""
    return ledger.replace(job, canvas=False, **(NEW | values))


def test_a_replaced_job_is_queued_as_the_new_task(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A replaced job is queued with the new payload and options; nothing else of its row changes."""
    job = run(store, retries=3)
    ledger.crash(job, "its worker died", "{}")
    job = start(store)
    now = clock.advance(5.0)
    after = replaced(ledger, job)
    columns = {"state": State.QUEUED, "lease_until": None, "run_at": now, "wake_at": now + LEASE, "retries": 0}
    assert_changed(store, job, after, crashes=0, **columns, **NEW)
    again = start(store)
    assert again.token > job.token
    assert_legal(store.history("job-1"), read(store))


def test_a_replaced_job_keeps_what_it_answers(ledger: Ledger, store: Store) -> None:
    """A replaced job holds its identity, answers its key, and keeps its duplicates, followers and what runs next."""
    job = run(store, identity="same", key="k")
    admission(store, "job-2", identity="same")
    follower = admission(store, "job-3", identity="same", follows=True).follower
    queue_next(store, "job-4")
    replaced(ledger, job)
    assert admission(store, "job-5", identity="same").job.id == "job-1"
    repeated = admission(store, "job-6", identity="other", key="k")
    assert (repeated.job.id, repeated.outcome) == ("job-1", Outcome.ATTACHED)
    assert (read(store).duplicate_count, len(store.duplicates("job-1"))) == (5, 5)
    ledger.complete(start(store), "1")
    assert follower is not None
    assert take_due(store, limit=10, hold=1.0)
    assert read(store, "job-4").holds_identity
    assert events(store) == ["submit", "claim", "replace", "claim", "complete"]


def test_the_new_task_has_steps_of_its_own(ledger: Ledger, store: Store) -> None:
    """The memoised steps of the task that was replaced are deleted."""
    job = run(store)
    ledger.keep_step(job, "one", "1")
    replaced(ledger, job)
    assert store.steps("job-1") == {}


def test_a_delayed_replacement_waits(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A replacement with a delay runs when it is due, and not before."""
    replaced(ledger, run(store), delay=60.0)
    assert take_due(store, limit=1, hold=1.0) == []
    clock.advance(60.0)
    assert [job.id for job in take_due(store, limit=1, hold=1.0)] == ["job-1"]
    assert start(store).attempt == 2


@pytest.mark.parametrize("later", ["running", "completed", "replaced"])
def test_an_overtaken_run_replaces_nothing(ledger: Ledger, store: Store, later: str) -> None:
    """The replacement of a run that has lost its job is refused, whatever became of the job."""
    late = run(store)
    ledger.crash(late, "it was presumed dead", "{}")
    job = start(store)
    if later == "completed":
        ledger.complete(job, "1")
    elif later == "replaced":
        replaced(ledger, job)
    with untouched(store), pytest.raises(StaleTokenError):
        replaced(ledger, late, payload="{}")


def test_a_cancel_request_ends_a_replaced_job(ledger: Ledger, store: Store) -> None:
    """A job whose run was asked to stop is canceled instead of replaced."""
    job = run(store)
    ledger.cancel("job-1")
    assert read(store).cancel is Cancel.ASKED
    assert replaced(ledger, job).state is State.CANCELED
