"""What a sweep does with followers: they wait for the end of another job, which stays until they have taken it over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import FINAL, State, Transition
from onejob.jobs.model import Retention
from onejob.jobs.policy import DAY
from onejob.jobs.records import Query
from onejob.ledger.ledger import Ledger
from onejob.ledger.sweep import SweepResult
from onejob.stores.protocol import WINDOW_OVER
from tests.conftest import every_store
from tests.contract.ledger.world import World, publish_nothing
from tests.contract.support import LEASE, START, end, queue_next

if TYPE_CHECKING:
    from onejob.jobs.model import Job

LONG = 1_000_000.0
"""A lease that does not expire in these tests."""


@pytest.fixture
def followed(world: World) -> Job:
    """Return a run whose lease does not expire."""
    return world.run(identity="same", lease=LONG)


# --- waiting --------------------------------------------------------------------------------------------------------


@every_store
def test_a_waiting_follower_costs_little(world: World, followed: Job) -> None:
    """A sweep looks at a waiting follower each time that its age has doubled, and publishes it after the end."""
    world.follow()
    looked: list[float] = []
    for _ in range(100):
        world.clock.advance(LEASE / 2)
        before = len(world.events("follower"))
        assert world.sweep(publish_nothing) == SweepResult()
        looked += [world.clock() - START] * (len(world.events("follower")) - before)
    assert [seconds / LEASE for seconds in looked] == [1, 2, 4, 8, 16, 32]
    end(world.store, followed)
    assert world.sweep() == SweepResult(published=1)
    assert (world.sent_ids, world.read("follower").wake_at) == (["follower"], world.clock() + LEASE)


def test_a_postponed_follower_says_what_it_waits_for(world: World, followed: Job) -> None:
    """The history of a follower says what it waits for, and a follower that ran meanwhile is not postponed."""
    world.follow()
    world.clock.advance(LEASE)
    world.sweep(publish_nothing)
    assert world.store.history("follower")[-1].detail == "job job-1 has not ended; its end makes this one due"
    world.clock.advance(LEASE)
    world.meanwhile("take_due", lambda: Ledger(world.store).release(world.start("follower"), "again"))
    world.sweep(publish_nothing)
    assert world.events("follower")[-1] == "release"


def test_a_follower_whose_wake_up_was_lost_is_published(world: World) -> None:
    """A follower of a job that was deleted by an operator is published, so that it can end with an error."""
    world.submit()
    world.ledger.cancel("job-1")
    world.follow()
    assert world.store.delete(["job-1"], sources=FINAL) == ["job-1"]
    assert world.sweep() == SweepResult(published=1)
    assert world.sent_ids == ["follower"]


def test_a_follower_of_a_deleted_job_does_not_wait_for_ever(world: World, followed: Job) -> None:
    """A follower of a job that was deleted before its end is published after one lease at the latest."""
    world.follow("middle", lease=LONG)
    world.follow("last", follows="middle")
    assert world.store.delete(["middle"], sources=frozenset({State.QUEUED})) == ["middle"]
    world.clock.advance(LEASE)
    assert world.sweep() == SweepResult(published=1)
    assert world.sent_ids == ["last"]


@every_store
def test_an_end_while_a_follower_is_postponed_is_not_missed(world: World, followed: Job) -> None:
    """If the followed job ends while a sweep postpones its follower, the next sweep publishes the follower."""
    world.follow()
    world.clock.advance(LEASE)
    world.meanwhile("get_many", lambda: end(world.store, followed))
    assert world.sweep(publish_nothing) == SweepResult()
    assert world.sweep() == SweepResult(published=1)


def test_a_queued_run_waits_on(world: World, followed: Job) -> None:
    """A job that is queued next is postponed while another job holds its identity, and is promoted by its end."""
    queue_next(world.store, "job-2")
    now = world.clock.advance(LEASE)
    assert world.sweep(publish_nothing) == SweepResult()
    assert (world.read("job-2").wake_at, world.read("job-2").queued_next) == (now + LEASE, True)
    end(world.store, followed)
    assert world.sweep() == SweepResult(published=1)


def test_a_queued_run_expires_while_it_waits(world: World, followed: Job) -> None:
    """A job that is queued next is postponed to its expiry at most, and is canceled then."""
    queue_next(world.store, "job-2", expires_in=LEASE + 5.0)
    world.clock.advance(LEASE)
    world.sweep(publish_nothing)
    assert world.read("job-2").wake_at == START + LEASE + 5.0
    world.clock.advance(5.0)
    assert world.sweep(publish_nothing) == SweepResult(canceled=1)
    assert world.events("job-2") == ["queue_next", "postpone", "expire"]


# --- the followed job -----------------------------------------------------------------------------------------------


@every_store
def test_a_followed_job_is_kept_for_its_followers(world: World) -> None:
    """A job is not purged while an unfinished follower points to it, and is looked at after as long again."""
    followed = world.run(identity="same")
    world.follow()
    world.follow("another")
    world.ledger.complete(followed, '"the result"')
    now = world.clock.advance(DAY)
    assert world.sweep().purged == 0
    assert (world.read().result, world.read().wake_at) == ('"the result"', now + DAY)
    end(world.store, world.start("follower"))
    world.clock.advance(DAY)
    assert world.sweep().purged == 1
    assert not world.gone()
    end(world.store, world.start("another"))
    world.clock.advance(2 * DAY)
    assert world.sweep().purged == 2
    assert world.store.find(Query()) == []


def test_a_job_that_is_kept_releases_its_identity(world: World) -> None:
    """A sweep ends the uniqueness window of a job that it cannot purge yet, and the history says so."""
    followed = world.run(identity="same")
    world.follow()
    world.ledger.complete(followed, "1", keep=Retention(identity_for=60.0))
    world.clock.advance(2 * DAY)
    assert world.sweep() == SweepResult(published=1)
    assert not world.read().holds_identity
    assert world.details(Transition.RELEASE_IDENTITY) == [WINDOW_OVER]


def test_a_dropped_job_does_not_wait_for_its_followers(world: World, followed: Job) -> None:
    """An operator may delete a dead letter that is followed; its followers are due then, and end with an error."""
    world.follow()
    world.ledger.fail(followed, "{}", "no")
    world.ledger.drop("job-1")
    assert world.sweep() == SweepResult(published=1)
    assert world.sent_ids == ["follower"]


# --- jobs of unknown tasks ------------------------------------------------------------------------------------------


def test_a_lost_run_of_an_unknown_task_is_queued_for_its_own_sweeper(world: World) -> None:
    """A sweeper without the task of a lost run recovers it, and leaves its publication to one that has the task."""
    world.run()
    now = world.clock.advance(LEASE)
    assert world.sweep(publish_nothing, tasks=frozenset({"other.task"})) == SweepResult(lapsed=1)
    assert (world.read().state, world.read().wake_at) == (State.QUEUED, now)
    assert world.sweep() == SweepResult(published=1)
