"""Delete: a job goes with all that belongs to it, unless it is in another state or holds its identity."""

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


def test_a_deleted_job_leaves_nothing(store: Store) -> None:
    """Row, steps and history of a deleted job are gone."""
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
    """The second deletion finds nothing, and neither does that of an unknown id."""
    end(store, run(store))
    assert store.delete(["job-1"], sources=FINAL)
    assert not store.delete(["job-1"], sources=FINAL)
    assert not store.delete([UNKNOWN], sources=FINAL)


@pytest.mark.parametrize("state", State)
def test_a_job_is_deleted_in_the_sources_only(store: Store, state: State) -> None:
    """A job in another state than the named ones is kept, with everything."""
    steps_to(store, "job-1", state)
    with untouched(store):
        assert not store.delete(["job-1"], sources=ANY - {state})
    assert bool(store.delete(["job-1"], sources=FINAL)) is state.final


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.RETRYING])
def test_a_job_that_holds_its_identity_is_not_deleted(store: Store, state: State) -> None:
    """A holder is kept, whatever the named states."""
    steps_to(store, "job-1", state)
    with untouched(store):
        assert not store.delete(["job-1"], sources=ANY)


def test_an_ended_job_that_holds_its_identity_is_not_deleted(store: Store) -> None:
    """A job that kept its identity past its end is kept until it gives it back."""
    job = apply(store, run(store), Transition.COMPLETE, keeps_identity=True)
    with untouched(store):
        assert not store.delete(["job-1"], sources=FINAL)
    apply(store, job, Transition.CANVAS_NOTIFIED, keeps_identity=False)
    assert store.delete(["job-1"], sources=FINAL)


def test_a_deletion_touches_no_other_job(store: Store) -> None:
    """Jobs with the same identity, before and after, keep their rows, steps and history."""
    end(store, run(store, "job-1", identity="same"))
    last = run(store, "job-2", identity="same")
    store.keep_step(last.id, last.token, "one", "1", sources=RUNNING)
    with untouched(store, "job-2"):
        assert store.delete(["job-1"], sources=FINAL)
    assert submit(store, "job-3", identity="same").id == "job-2"


def test_an_id_can_be_used_again_after_its_deletion(store: Store, clock: ManualClock) -> None:
    """A deleted id starts from nothing: no step, no history, no token of the job before."""
    job = run(store)
    store.keep_step(job.id, job.token, "one", "1", sources=RUNNING)
    end(store, job)
    store.delete([job.id], sources=FINAL)
    clock.advance(1.0)
    again = submit(store)
    assert (again.state, again.token, again.attempt, again.progress) == (State.QUEUED, 0, 0, None)
    assert store.steps(again.id) == {}
    assert events(store) == ["submit"]
    assert read(store) == again


def test_a_follower_outlives_its_leaders_row(store: Store) -> None:
    """The deletion of a leader leaves its followers, which still come to an end by themselves."""
    followed = run(store, identity="same")
    submit_one(store, submission("job-2", identity="same", follows=True), wake_in=1.0)
    end(store, followed)
    with untouched(store, "job-2"):
        assert store.delete(["job-1"], sources=FINAL)
    assert apply(store, read(store, "job-2"), Transition.CANCEL).state is State.CANCELED
    assert store.delete(["job-2"], sources=FINAL)


@pytest.mark.parametrize("other", [State.COMPLETED, State.FAILED, State.CANCELED])
def test_a_deletion_leaves_the_other_ended_jobs(store: Store, other: State) -> None:
    """Of several ended jobs only the named one goes."""
    steps_to(store, "job-1", State.COMPLETED)
    steps_to(store, "job-2", other)
    with untouched(store, "job-2"):
        assert store.delete(["job-1"], sources=FINAL)


def test_many_jobs_are_deleted_at_once(store: Store) -> None:
    """A deletion of many takes those that may go, tells which, and leaves the others as they are."""
    ended = [end(store, run(store, f"ended-{number}")).id for number in range(150)]
    running = run(store, "running")
    with untouched(store, "running"):
        removed = store.delete([*ended, "running", UNKNOWN], sources=FINAL)
    assert sorted(removed) == sorted(ended)
    assert store.find(Query(limit=1000)) == [running]
    assert store.delete([], sources=FINAL) == []


# --- what a key points to -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("passed", "spared"), [(0.0, True), (49.5, True), (50.0, False), (500.0, False)])
def test_a_deletion_can_spare_what_a_key_points_to(
    store: Store, clock: ManualClock, passed: float, spared: bool
) -> None:
    """A sparing deletion leaves a job until its last key is forgotten, when its `wake_at` is due."""
    ended = end(store, run(store, key="key-1", key_for=50.0))
    end(store, run(store, "job-2"))
    clock.advance(passed)
    removed = store.delete(["job-1", "job-2"], sources=FINAL, skip_keyed=True)
    assert sorted(removed) == (["job-2"] if spared else ["job-1", "job-2"])
    if spared:
        assert_changed(store, ended, get(store, "job-1"), wake_at=ended.key_retained_until)
        assert events(store) == ["submit", "claim", "complete"]
    assert (get(store, "job-1") is not None) is spared


def test_a_deletion_does_not_spare_unless_told(store: Store) -> None:
    """A deletion that is not told to spare takes a job with its keys."""
    end(store, run(store, key="key-1", key_for=50.0))
    assert store.delete(["job-1"], sources=FINAL) == ["job-1"]
    assert submit(store, "job-2", key="key-1").id == "job-2"


@pytest.mark.parametrize("state", State)
def test_a_sparing_deletion_wakes_nobody_that_it_may_not_take(store: Store, clock: ManualClock, state: State) -> None:
    """A job in another state than the named ones, or that holds its identity, keeps its alarm, key or not."""
    submit(store, "live", key="key-1", key_for=5000.0)
    job = steps_to(store, "job-1", state)
    assert submit(store, "job-2", identity=job.identity, key="key-2", key_for=5000.0).key_retained_until is not None
    with untouched(store, "job-1", "live"):
        assert store.delete(["job-1", "live"], sources=ANY - {state}, skip_keyed=True) == []


def test_a_sparing_deletion_leaves_a_window(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A job that keeps its identity past its end keeps its alarm, too."""
    ledger.complete(run(store, key="key-1", key_for=50.0), "1", keep=Retention(identity_for=5.0))
    with untouched(store):
        assert store.delete(["job-1"], sources=FINAL, skip_keyed=True) == []


def test_many_are_spared_at_once(store: Store, clock: ManualClock) -> None:
    """Among many jobs a sparing deletion takes those without a key that is kept, and tells which."""
    for number in range(60):
        keys = {"key": str(number), "key_for": 10.0 * (number % 3)} if number % 2 else {}
        end(store, run(store, f"job-{number}", **keys))
    clock.advance(10.0)
    ids = [f"job-{number}" for number in range(60)]
    spared = {job_id for number, job_id in enumerate(ids) if number % 2 and number % 3 == 2}
    assert set(store.delete(ids, sources=FINAL, skip_keyed=True)) == set(ids) - spared
    assert {job.id for job in store.find(Query(limit=1000))} == spared
