"""Delete: a job is deleted with all its data, unless it is in another state or holds its identity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import FINAL, State, Transition
from onejob.jobs.records import Query
from tests.contract.support import (
    ANY,
    RUNNING,
    UNKNOWN,
    ManualClock,
    apply,
    assert_changed,
    end,
    events,
    get,
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


def test_a_deletion_deletes_all_data_of_a_job(store: Store) -> None:
    """A deletion removes the row, steps and history of the job."""
    job = run(store)
    store.keep_step(job.id, job.token, "one", "1", sources=RUNNING)
    end(store, job)
    assert store.delete([job.id], sources=FINAL)
    assert get(store, job.id) is None
    assert store.steps(job.id) == {}
    assert store.history(job.id) == []
    assert store.find(Query(identity=job.identity)) == []
    assert store.find(Query()) == []


@pytest.mark.parametrize("state", State)
def test_a_job_is_deleted_in_the_sources_only(store: Store, state: State) -> None:
    """A job in a state other than the specified ones is kept, with all its data."""
    steps_to(store, "job-1", state)
    with untouched(store):
        assert not store.delete(["job-1"], sources=ANY - {state})
    assert bool(store.delete(["job-1"], sources=FINAL)) is state.final


def test_an_id_can_be_used_again_after_its_deletion(store: Store, clock: ManualClock) -> None:
    """A new job with a deleted id has no step, no history and no token of the deleted job."""
    job = run(store)
    store.keep_step(job.id, job.token, "one", "1", sources=RUNNING)
    end(store, job)
    store.delete([job.id], sources=FINAL)
    clock.advance(1.0)
    second = submit(store)
    assert (second.state, second.token, second.attempt, second.progress) == (State.QUEUED, 0, 0, None)
    assert store.steps(second.id) == {}
    assert events(store) == ["submit"]
    assert read(store) == second


def test_a_follower_stays_when_its_followed_job_is_deleted(store: Store) -> None:
    """The deletion of a followed job leaves its followers, which can still end."""
    followed = run(store, identity="same")
    submit_one(store, submission("job-2", identity="same", follows=True), wake_in=1.0)
    end(store, followed)
    with untouched(store, "job-2"):
        assert store.delete(["job-1"], sources=FINAL)
    assert apply(store, read(store, "job-2"), Transition.CANCEL).state is State.CANCELED
    assert store.delete(["job-2"], sources=FINAL)


def test_many_jobs_are_deleted_at_once(store: Store) -> None:
    """A deletion of many jobs deletes those that it may, returns their ids, and leaves the others unchanged."""
    ended = [end(store, run(store, f"ended-{number}")).id for number in range(150)]
    running = run(store, "running")
    with untouched(store, "running"):
        removed = store.delete([*ended, "running", UNKNOWN], sources=FINAL)
    assert sorted(removed) == sorted(ended)
    assert store.find(Query(limit=1000)) == [running]
    assert store.delete([], sources=FINAL) == []


# --- retained keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("passed", "skipped"), [(0.0, True), (49.5, True), (50.0, False), (500.0, False)])
def test_a_deletion_can_skip_jobs_with_retained_keys(
    store: Store, clock: ManualClock, passed: float, skipped: bool
) -> None:
    """With `skip_referenced` a deletion leaves a job until its last key expires, and sets `wake_at` to that time."""
    ended = end(store, run(store, key="key-1", key_for=50.0))
    end(store, run(store, "job-2"))
    clock.advance(passed)
    removed = store.delete(["job-1", "job-2"], sources=FINAL, skip_referenced=True)
    assert sorted(removed) == (["job-2"] if skipped else ["job-1", "job-2"])
    if skipped:
        assert_changed(store, ended, get(store, "job-1"), wake_at=ended.key_retained_until)
        assert events(store) == ["submit", "claim", "complete"]
    assert (get(store, "job-1") is not None) is skipped


@pytest.mark.parametrize("state", State)
def test_skip_referenced_changes_no_job_that_cannot_be_deleted(store: Store, clock: ManualClock, state: State) -> None:
    """A job in another state, or that holds its identity, keeps its `wake_at`, with a key or without."""
    submit(store, "live", key="key-1", key_for=5000.0)
    job = steps_to(store, "job-1", state)
    assert submit(store, "job-2", identity=job.identity, key="key-2", key_for=5000.0).key_retained_until is not None
    with untouched(store, "job-1", "live"):
        assert store.delete(["job-1", "live"], sources=ANY - {state}, skip_referenced=True) == []
