"""Due: the alarms that have rung, each for one sweeper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import State, Transition
from tests.contract.support import (
    LEASE,
    START,
    ManualClock,
    apply,
    assert_changed,
    end,
    events,
    read,
    run,
    steps_to,
    submission,
    submit,
    submit_one,
    untouched,
)

if TYPE_CHECKING:
    from onejob.stores.protocol import Store


def _due(store: Store, limit: int = 100, hold: float = 5.0) -> list[str]:
    return [job.id for job in store.take_due(limit=limit, hold=hold)]


def test_an_alarm_that_has_not_rung_is_left_alone(store: Store, clock: ManualClock) -> None:
    """A job whose `wake_at` is due later is not due."""
    submit(store, wake_in=10.0)
    clock.advance(9.5)
    with untouched(store):
        assert _due(store) == []


@pytest.mark.parametrize("late", [0.0, 100.0])
def test_an_alarm_that_has_rung_is_put_off(store: Store, clock: ManualClock, late: float) -> None:
    """A due job is returned as it then is, with its alarm put off by `hold` and nothing else changed."""
    job = submit(store, wake_in=10.0)
    now = clock.advance(10.0 + late)
    taken = store.take_due(limit=10, hold=7.0)
    assert len(taken) == 1
    assert_changed(store, job, taken[0], wake_at=now + 7.0)


def test_a_due_job_is_taken_once(store: Store, clock: ManualClock) -> None:
    """What one sweeper took, another gets only after `hold`."""
    submit(store, wake_in=1.0)
    clock.advance(1.0)
    assert _due(store, hold=5.0) == ["job-1"]
    assert _due(store) == []
    clock.advance(4.5)
    assert _due(store) == []
    clock.advance(0.5)
    assert _due(store) == ["job-1"]


@pytest.mark.parametrize("state", State)
def test_alarms_ring_in_every_state(store: Store, clock: ManualClock, state: State) -> None:
    """The alarm is one for all states: waiting, running and ended jobs come due alike."""
    job = steps_to(store, "job-1", state)
    clock.advance(LEASE * 2)
    now = clock()
    assert_changed(store, job, store.take_due(limit=10, hold=3.0)[0], wake_at=now + 3.0)


def test_the_limit_is_kept_and_the_oldest_alarms_come_first(store: Store, clock: ManualClock) -> None:
    """No more than `limit` jobs are taken, those whose `wake_at` was due first."""
    for number in (3, 1, 4, 2, 0):
        submit(store, f"job-{number}", wake_in=1.0 + number)
    clock.advance(10.0)
    assert set(_due(store, limit=2)) == {"job-0", "job-1"}
    assert set(_due(store, limit=2)) == {"job-2", "job-3"}
    assert _due(store, limit=2) == ["job-4"]


def test_a_lost_run_does_not_wait_behind_queued_jobs(store: Store, clock: ManualClock) -> None:
    """A run whose lease is over is handed out before all others, however long ago their alarms rang."""
    for number in range(5):
        submit(store, f"queued-{number}", wake_in=1.0)
    end(store, run(store, "ended"))
    lost = [run(store, f"lost-{number}").id for number in range(3)]
    clock.advance(LEASE + 100.0)
    assert set(_due(store, limit=2)) < set(lost)
    third = store.take_due(limit=3, hold=5.0)
    assert [job.state for job in third].count(State.RUNNING) == 1
    assert {job.id for job in third} <= {*lost, *(f"queued-{number}" for number in range(5))}
    assert len(_due(store)) == 9 - 5
    assert _due(store) == []
    clock.advance(5.0)
    assert set(_due(store, limit=3)) == set(lost)


def test_only_runs_come_first(store: Store, clock: ManualClock) -> None:
    """A job that was released, retried or ended is no run any more, and takes its turn among the others."""
    store.renew([(job.id, job.claim) for job in [run(store, "renewed")]], sources=frozenset({State.RUNNING}))
    apply(store, run(store, "released"), Transition.RELEASE, wake_in=50.0)
    apply(store, run(store, "retried"), Transition.RETRY, wake_in=60.0)
    end(store, run(store, "ended"))
    submit(store, "queued", wake_in=40.0)
    clock.advance(100.0)
    order = [_due(store, limit=1)[0] for _ in range(5)]
    assert order == ["renewed", "queued", "released", "retried", "ended"]


def test_a_limit_leaves_the_others_untouched(store: Store, clock: ManualClock) -> None:
    """The alarms beyond the limit stay as they are."""
    submit(store, "job-1", wake_in=1.0)
    submit(store, "job-2", wake_in=2.0)
    clock.advance(5.0)
    with untouched(store, "job-2"):
        assert _due(store, limit=1) == ["job-1"]


def test_a_job_without_an_alarm_is_never_due(store: Store, clock: ManualClock) -> None:
    """A follower that sleeps is not due, however much time passes."""
    submit(store, identity="same", wake_in=1e9)
    submit_one(store, submission("job-2", identity="same", follows=True), wake_in=0.0)
    clock.advance(1e6)
    with untouched(store, "job-1", "job-2"):
        assert _due(store) == []


def test_a_new_alarm_replaces_the_one_before(store: Store, clock: ManualClock) -> None:
    """Only a job's latest `wake_at` is due: a claim, a renewal and a change each replace it."""
    job = run(store, wake_in=1.0)
    clock.advance(LEASE - 1.0)
    assert _due(store) == []
    store.renew([(job.id, job.claim)], sources=frozenset({State.RUNNING}))
    clock.advance(LEASE - 1.0)
    assert _due(store) == []
    apply(store, job, Transition.RETRY, wake_in=2.0)
    clock.advance(2.0)
    assert _due(store) == ["job-1"]


def test_an_end_replaces_the_alarm(store: Store, clock: ManualClock) -> None:
    """After its end a job is due when its retention has passed, not before."""
    end(store, run(store))
    clock.advance(99.5)
    assert _due(store) == []
    clock.advance(0.5)
    assert _due(store) == ["job-1"]


def test_a_deleted_job_is_not_due(store: Store, clock: ManualClock) -> None:
    """The alarm of a deleted job goes with it."""
    end(store, run(store))
    assert store.delete(["job-1"], sources=frozenset({State.COMPLETED}))
    clock.advance(1e6)
    assert _due(store) == []


def test_taking_due_jobs_is_not_written_down(store: Store, clock: ManualClock) -> None:
    """A sweeper's look leaves no line in the history."""
    submit(store)
    clock.advance(LEASE)
    assert _due(store) == ["job-1"]
    assert events(store) == ["submit"]
    assert read(store).wake_at == START + LEASE + 5.0
