"""Take due: each job whose `wake_at` is due goes to one sweeper."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import State, Transition
from tests.contract.support import (
    LEASE,
    ManualClock,
    apply,
    end,
    read,
    run,
    start,
    steps_to,
    submission,
    submit,
    take_due,
    untouched,
)

if TYPE_CHECKING:
    from onejob.stores.protocol import Store


def _take_due_ids(store: Store, limit: int = 100, hold: float = 5.0) -> list[str]:
    return [job.id for job in take_due(store, limit=limit, hold=hold)]


def test_a_due_job_is_taken_once(store: Store, clock: ManualClock) -> None:
    """A job that one sweeper took is due for another only after `hold`."""
    submit(store, wake_in=1.0)
    clock.advance(1.0)
    assert _take_due_ids(store, hold=5.0) == ["job-1"]
    assert _take_due_ids(store) == []
    clock.advance(4.5)
    assert _take_due_ids(store) == []
    clock.advance(0.5)
    assert _take_due_ids(store) == ["job-1"]


def test_the_limit_is_kept_and_the_earliest_wake_at_is_first(store: Store, clock: ManualClock) -> None:
    """No more than `limit` jobs are taken, those with the earliest `wake_at` first."""
    for number in (3, 1, 4, 2, 0):
        submit(store, f"job-{number}", wake_in=1.0 + number)
    clock.advance(10.0)
    assert set(_take_due_ids(store, limit=2)) == {"job-0", "job-1"}
    assert set(_take_due_ids(store, limit=2)) == {"job-2", "job-3"}
    assert _take_due_ids(store, limit=2) == ["job-4"]


def test_a_lost_run_does_not_wait_behind_queued_jobs(store: Store, clock: ManualClock) -> None:
    """Runs whose lease has expired are taken before all other jobs, whatever `wake_at` those have."""
    for number in range(5):
        submit(store, f"queued-{number}", wake_in=1.0)
    end(store, run(store, "ended"))
    lost = [run(store, f"lost-{number}").id for number in range(3)]
    clock.advance(LEASE + 100.0)
    assert set(_take_due_ids(store, limit=2)) < set(lost)
    third = take_due(store, limit=3, hold=5.0)
    assert [job.state for job in third].count(State.RUNNING) == 1
    assert {job.id for job in third} <= {*lost, *(f"queued-{number}" for number in range(5))}
    assert len(_take_due_ids(store)) == 9 - 5
    assert _take_due_ids(store) == []
    clock.advance(5.0)
    assert set(_take_due_ids(store, limit=3)) == set(lost)


def test_only_runs_have_precedence(store: Store, clock: ManualClock) -> None:
    """A job that was released, retried or ended is not a run, and is taken in the order of `wake_at`."""
    store.renew([(job.id, job.claim) for job in [run(store, "renewed")]], sources=frozenset({State.RUNNING}))
    apply(store, run(store, "released"), Transition.RELEASE, wake_in=50.0)
    apply(store, run(store, "retried"), Transition.RETRY, wake_in=60.0)
    end(store, run(store, "ended"))
    submit(store, "queued", wake_in=40.0)
    clock.advance(100.0)
    order = [_take_due_ids(store, limit=1)[0] for _ in range(5)]
    assert order == ["renewed", "queued", "released", "retried", "ended"]


# --- jobs of other tasks --------------------------------------------------------------------------------------------

OTHERS = frozenset({"other.task", "onejob.webhook"})


@pytest.mark.parametrize("state", State)
def test_waiting_jobs_of_unknown_tasks_are_left_alone(store: Store, clock: ManualClock, state: State) -> None:
    """A job that waits is not changed by a sweeper without its task; a lost run and an ended job are taken by any."""
    steps_to(store, "job-1", state)
    clock.advance(LEASE * 2)
    is_waiting = state in {State.QUEUED, State.RETRYING}
    with untouched(store) if is_waiting else nullcontext():
        taken = store.take_due(tasks=OTHERS, limit=10, hold=5.0)
    assert [job.id for job in taken] == ([] if is_waiting else ["job-1"])


def test_a_waiting_canvas_of_an_unknown_task_is_left_alone(store: Store, clock: ManualClock) -> None:
    """An ended job whose canvas has not been notified is due for sweepers with its task only, until it has been."""
    job = end(store, run(store, canvas=True))
    clock.advance(100.0)
    with untouched(store):
        assert store.take_due(tasks=OTHERS, limit=10, hold=5.0) == []
    assert _take_due_ids(store) == ["job-1"]
    apply(store, job, Transition.CANVAS_NOTIFIED, canvas_pending=False, wake_in=0.0)
    assert [job.id for job in store.take_due(tasks=OTHERS, limit=10, hold=5.0)] == ["job-1"]


def test_the_wake_task_of_a_job_replaces_its_own(store: Store, clock: ManualClock) -> None:
    """A job with a `wake_task` is due for sweepers with that task, whichever its own is."""
    submit(store, "parent")
    start(store, "parent")
    store.follow(submission("after", task="onejob.webhook", wake_task="app.add"), follows_id="parent")
    end(store, read(store, "parent"))
    with untouched(store, "after"):
        assert store.take_due(tasks=OTHERS, limit=10, hold=5.0) == []
    assert _take_due_ids(store) == ["after"]


def test_a_backlog_of_an_unknown_task_starves_no_job(store: Store, clock: ManualClock) -> None:
    """However many jobs of an unknown task are due for longer, the jobs of known tasks are taken at once."""
    store.submit_many([submission(f"foreign-{number}") for number in range(200)], wake_in=1.0)
    submit(store, "own", task="other.task", wake_in=20.0)
    end(store, run(store, "ended"))
    clock.advance(LEASE + 100.0)
    taken = store.take_due(tasks=OTHERS, limit=2, hold=5.0)
    assert {job.id for job in taken} == {"own", "ended"}


def test_the_jobs_of_several_tasks_are_taken_in_one_order(store: Store, clock: ManualClock) -> None:
    """Of several tasks those jobs are taken first that are due for the longest time, up to the limit."""
    for number in range(6):
        submit(store, f"job-{number}", task=("app.add", "other.task", "carried")[number % 3], wake_in=1.0 + number)
    clock.advance(10.0)
    assert set(_take_due_ids(store, limit=4)) == {"job-0", "job-1", "job-2", "job-3"}
    assert set(_take_due_ids(store, limit=4)) == {"job-4", "job-5"}


def test_a_sweeper_without_tasks_takes_no_waiting_job(store: Store, clock: ManualClock) -> None:
    """A sweeper that knows no task recovers lost runs and takes ended jobs, and nothing else."""
    submit(store, "waiting")
    run(store, "lost")
    clock.advance(LEASE * 2)
    assert [job.id for job in store.take_due(tasks=frozenset(), limit=10, hold=5.0)] == ["lost"]
