"""Delete: a job is deleted with all its data, unless it is in another state or holds its identity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import FINAL, State, Transition
from onejob.jobs.model import Retention
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
    from onejob.ledger.ledger import Ledger
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


def test_a_job_is_deleted_once(store: Store) -> None:
    """A second deletion, and the deletion of an unknown id, delete nothing."""
    end(store, run(store))
    assert store.delete(["job-1"], sources=FINAL)
    assert not store.delete(["job-1"], sources=FINAL)
    assert not store.delete([UNKNOWN], sources=FINAL)


@pytest.mark.parametrize("state", State)
def test_a_job_is_deleted_in_the_sources_only(store: Store, state: State) -> None:
    """A job in a state other than the specified ones is kept, with all its data."""
    steps_to(store, "job-1", state)
    with untouched(store):
        assert not store.delete(["job-1"], sources=ANY - {state})
    assert bool(store.delete(["job-1"], sources=FINAL)) is state.final


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.RETRYING])
def test_a_job_that_holds_its_identity_is_not_deleted(store: Store, state: State) -> None:
    """A holder is kept, whatever states are specified."""
    steps_to(store, "job-1", state)
    with untouched(store):
        assert not store.delete(["job-1"], sources=ANY)


def test_an_ended_job_that_holds_its_identity_is_not_deleted(store: Store) -> None:
    """A job that kept its identity after its end is kept until it releases it."""
    job = apply(store, run(store), Transition.COMPLETE, keeps_identity=True)
    with untouched(store):
        assert not store.delete(["job-1"], sources=FINAL)
    apply(store, job, Transition.CANVAS_NOTIFIED, keeps_identity=False)
    assert store.delete(["job-1"], sources=FINAL)


def test_a_deletion_changes_no_other_job(store: Store) -> None:
    """Earlier and later jobs of the same identity keep their rows, steps and history."""
    end(store, run(store, "job-1", identity="same"))
    last = run(store, "job-2", identity="same")
    store.keep_step(last.id, last.token, "one", "1", sources=RUNNING)
    with untouched(store, "job-2"):
        assert store.delete(["job-1"], sources=FINAL)
    assert submit(store, "job-3", identity="same").id == "job-2"


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


@pytest.mark.parametrize("other", [State.COMPLETED, State.FAILED, State.CANCELED])
def test_a_deletion_leaves_the_other_ended_jobs(store: Store, other: State) -> None:
    """Of several ended jobs only the specified one is deleted."""
    steps_to(store, "job-1", State.COMPLETED)
    steps_to(store, "job-2", other)
    with untouched(store, "job-2"):
        assert store.delete(["job-1"], sources=FINAL)


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


def test_a_deletion_skips_no_keyed_jobs_by_default(store: Store) -> None:
    """A deletion without `skip_referenced` deletes a job with its keys."""
    end(store, run(store, key="key-1", key_for=50.0))
    assert store.delete(["job-1"], sources=FINAL) == ["job-1"]
    assert submit(store, "job-2", key="key-1").id == "job-2"


@pytest.mark.parametrize("state", State)
def test_skip_referenced_changes_no_job_that_cannot_be_deleted(store: Store, clock: ManualClock, state: State) -> None:
    """A job in another state, or that holds its identity, keeps its `wake_at`, with a key or without."""
    submit(store, "live", key="key-1", key_for=5000.0)
    job = steps_to(store, "job-1", state)
    assert submit(store, "job-2", identity=job.identity, key="key-2", key_for=5000.0).key_retained_until is not None
    with untouched(store, "job-1", "live"):
        assert store.delete(["job-1", "live"], sources=ANY - {state}, skip_referenced=True) == []


def test_skip_referenced_changes_no_job_with_a_window(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A job that keeps its identity after its end keeps its `wake_at`, too."""
    ledger.complete(run(store, key="key-1", key_for=50.0), "1", keep=Retention(identity_for=5.0))
    with untouched(store):
        assert store.delete(["job-1"], sources=FINAL, skip_referenced=True) == []


def test_many_jobs_are_skipped_at_once(store: Store, clock: ManualClock) -> None:
    """With `skip_referenced` a deletion of many deletes the jobs without a retained key, and returns their ids."""
    for number in range(60):
        keys = {"key": str(number), "key_for": 10.0 * (number % 3)} if number % 2 else {}
        end(store, run(store, f"job-{number}", **keys))
    clock.advance(10.0)
    ids = [f"job-{number}" for number in range(60)]
    skipped = {job_id for number, job_id in enumerate(ids) if number % 2 and number % 3 == 2}
    assert set(store.delete(ids, sources=FINAL, skip_referenced=True)) == set(ids) - skipped
    assert {job.id for job in store.find(Query(limit=1000))} == skipped
