"""Followers: duplicates that end under their own id have no `wake_at` until the followed job ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import State, Transition
from tests.contract.support import (
    ENDINGS,
    ManualClock,
    admission,
    assert_changed,
    claim,
    end,
    events,
    get,
    holders,
    read,
    run,
    submit,
    take_due,
    untouched,
)

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from onejob.stores.protocol import Store


def submit_follower(store: Store, job_id: str = "job-2", identity: str = "same") -> Job:
    """Submit a duplicate that follows."""
    answer = admission(store, job_id, identity=identity, follows=True)
    assert answer.follower is not None
    assert answer.follower.follows_id == answer.job.id
    return answer.follower


@pytest.fixture
def followed(store: Store) -> Job:
    """Return a running job that holds the identity `same`."""
    return run(store, identity="same")


@pytest.mark.parametrize("event", ENDINGS)
@pytest.mark.usefixtures("followed")
def test_an_end_wakes_all_followers(store: Store, clock: ManualClock, event: Transition) -> None:
    """Any end of the followed job's run sets `wake_at` of all its followers to now, and changes nothing else."""
    followers = [submit_follower(store, f"job-{number}") for number in range(2, 5)]
    now = clock.advance(5.0)
    end(store, read(store), event)
    for follower in followers:
        assert_changed(store, follower, get(store, follower.id), wake_at=now)
    assert {job.id for job in take_due(store, limit=10, hold=5.0)} == {"job-2", "job-3", "job-4"}


def test_a_follower_does_not_follow_the_next_holder(store: Store, clock: ManualClock, followed: Job) -> None:
    """A follower follows the job that its submission returned, not the next job with that identity."""
    submit_follower(store)
    end(store, followed)
    clock.advance(1.0)
    second = run(store, "job-3", identity="same")
    with untouched(store, "job-2"):
        end(store, second)


def test_a_woken_follower_runs_to_its_own_end(store: Store, clock: ManualClock, followed: Job) -> None:
    """A follower ends like any job, under its own id, and does not change which job holds the identity."""
    submit_follower(store)
    end(store, followed)
    clock.advance(1.0)
    assert claim(store, "job-2").applied
    holder = submit(store, "job-3", identity="same")
    assert holder.id == "job-3"
    ended = end(store, read(store, "job-2"))
    assert (ended.state, ended.holds_identity, ended.finished_at) == (State.COMPLETED, False, clock())
    assert [job.id for job in holders(store, "same")] == ["job-3"]
    assert events(store, "job-2") == ["follow", "claim", "complete"]
