"""Delete: a job goes with all that belongs to it, unless it is in another state or holds its identity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.job import Query
from onejob.lifecycle import FINAL, Event, State
from tests.contract.support import (
    ANY,
    RUNNING,
    UNKNOWN,
    ManualClock,
    apply,
    end,
    events,
    read,
    run,
    steps_to,
    submission,
    submit,
    untouched,
)

if TYPE_CHECKING:
    from onejob.store import Store


def test_a_deleted_job_leaves_nothing(store: Store) -> None:
    """Row, steps and history of a deleted job are gone."""
    job = run(store)
    store.keep_step(job.id, job.token, "one", "1", sources=RUNNING)
    end(store, job)
    assert store.delete([job.id], sources=FINAL)
    assert store.get(job.id) is None
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
    job = apply(store, run(store), Event.COMPLETE, keeps_identity=True)
    with untouched(store):
        assert not store.delete(["job-1"], sources=FINAL)
    apply(store, job, Event.DELIVER, keeps_identity=False)
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
    leader = run(store, identity="same")
    store.submit(submission("job-2", identity="same", follows=True), wake_in=1.0)
    end(store, leader)
    with untouched(store, "job-2"):
        assert store.delete(["job-1"], sources=FINAL)
    assert apply(store, read(store, "job-2"), Event.CANCEL).state is State.CANCELED
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
