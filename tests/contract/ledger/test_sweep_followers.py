"""What a sweep does with followers: they wait for the end of another job, which stays until they have taken it over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onejob.jobs.lifecycle import FINAL, State
from onejob.jobs.policy import DAY
from onejob.jobs.records import Query
from onejob.ledger.ledger import Ledger
from onejob.ledger.sweep import Swept
from tests.contract.support import (
    LEASE,
    START,
    admission,
    after,
    end,
    events,
    get,
    queue_next,
    read,
    run,
    start,
    submission,
    submit,
    sweep,
)

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from onejob.stores.protocol import Store
    from tests.contract.support import ManualClock

LONG = 1_000_000.0
"""A lease that does not expire in these tests."""


def publish_nothing(job: Job) -> None:
    """Fail for any publication."""
    pytest.fail(f"published {job.id}")


def follow(store: Store, job_id: str = "after", **values: Any) -> Job:
    """Write a follower of job-1."""
    job = store.follow(submission(job_id, **values), follows_id="job-1")
    assert job is not None
    return job


@pytest.fixture
def followed(store: Store) -> Job:
    """Return a run whose lease does not expire."""
    return run(store, identity="same", lease=LONG)


# --- waiting --------------------------------------------------------------------------------------------------------


def test_a_waiting_follower_costs_little(ledger: Ledger, store: Store, clock: ManualClock, followed: Job) -> None:
    """A sweep looks at a waiting follower after one lease, and then each time that its age has doubled."""
    follow(store)
    looked: list[float] = []
    for _ in range(100):
        clock.advance(LEASE / 2)
        before = len(events(store, "after"))
        assert sweep(ledger, publish_nothing) == Swept()
        looked += [clock.now - START] * (len(events(store, "after")) - before)
    assert [seconds / LEASE for seconds in looked] == [1, 2, 4, 8, 16, 32]
    assert end(store, followed).finished_at == clock.now
    assert sweep(ledger, lambda _: None) == Swept(published=1)


def test_a_follower_whose_wake_up_was_lost_is_published(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A follower of a job that was deleted by an operator is published, so that it can end with an error."""
    submit(store)
    ledger.cancel("job-1")
    follow(store)
    assert store.delete(["job-1"], sources=FINAL) == ["job-1"]
    published: list[str] = []
    assert sweep(ledger, lambda job: published.append(job.id)) == Swept(published=1)
    assert published == ["after"]


def test_a_follower_of_a_deleted_job_does_not_wait_for_ever(
    ledger: Ledger, store: Store, clock: ManualClock, followed: Job
) -> None:
    """A follower of a job that was deleted before its end is published after one lease at the latest."""
    middle = follow(store, "middle", lease=LONG)
    last = store.follow(submission("last"), follows_id=middle.id)
    assert last is not None
    assert store.delete(["middle"], sources=frozenset({State.QUEUED})) == ["middle"]
    clock.advance(LEASE)
    published: list[str] = []
    assert sweep(ledger, lambda job: published.append(job.id)) == Swept(published=1)
    assert published == ["last"]


def test_an_end_while_a_follower_is_postponed_is_not_missed(store: Store, clock: ManualClock, followed: Job) -> None:
    """If the followed job ends while a sweep postpones its follower, the next sweep publishes the follower."""
    follow(store)
    clock.advance(LEASE)
    meanwhile = after(store, "get_many", lambda: end(store, followed))
    assert sweep(Ledger(meanwhile), publish_nothing) == Swept()
    assert sweep(Ledger(store), lambda _: None) == Swept(published=1)


def test_a_queued_run_waits_on(ledger: Ledger, store: Store, clock: ManualClock, followed: Job) -> None:
    """A job that is queued next is postponed while another job holds its identity, and is promoted by its end."""
    queue_next(store, "job-2")
    now = clock.advance(LEASE)
    assert sweep(ledger, publish_nothing) == Swept()
    assert (read(store, "job-2").wake_at, read(store, "job-2").queued_next) == (now + LEASE, True)
    end(store, followed)
    assert sweep(ledger, lambda _: None) == Swept(published=1)


def test_a_queued_run_expires_while_it_waits(ledger: Ledger, store: Store, clock: ManualClock, followed: Job) -> None:
    """A job that is queued next is postponed to its expiry at most, and is canceled then."""
    queue_next(store, "job-2", expires_in=LEASE + 5.0)
    clock.advance(LEASE)
    sweep(ledger, publish_nothing)
    assert read(store, "job-2").wake_at == START + LEASE + 5.0
    clock.advance(5.0)
    assert sweep(ledger, publish_nothing) == Swept(canceled=1)
    assert events(store, "job-2") == ["queue_next", "postpone", "expire"]


# --- the followed job -----------------------------------------------------------------------------------------------


def test_a_followed_job_is_kept_for_its_followers(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A job is not purged while an unfinished follower points to it, and is looked at after as long again."""
    first = run(store, identity="same")
    follow(store)
    follow(store, "another")
    ledger.complete(first, '"the result"')
    now = clock.advance(DAY)
    assert sweep(ledger, lambda _: None).purged == 0
    assert (read(store).result, read(store).wake_at) == ('"the result"', now + DAY)
    end(store, start(store, "after"))
    clock.advance(DAY)
    assert sweep(ledger, lambda _: None).purged == 1
    assert get(store, "job-1") is not None
    end(store, start(store, "another"))
    clock.advance(2 * DAY)
    assert sweep(ledger, lambda _: None).purged == 2
    assert store.find(Query()) == []


def test_a_queued_run_does_not_keep_the_job_before_it(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A job that was queued next is no follower any more after its promotion."""
    first = run(store, identity="same")
    queue_next(store, "job-2", delay=30 * DAY)
    ledger.complete(first, "1")
    clock.advance(DAY)
    assert sweep(ledger, publish_nothing) == Swept(purged=1)


def test_a_canceled_follower_keeps_nothing(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """An ended follower does not keep the job that it followed."""
    first = run(store, identity="same")
    assert admission(store, "job-2", identity="same", follows=True).follower is not None
    ledger.cancel("job-2")
    ledger.complete(first, "1")
    clock.advance(DAY)
    assert sweep(ledger, publish_nothing) == Swept(purged=2)


def test_a_dropped_job_does_not_wait_for_its_followers(ledger: Ledger, store: Store) -> None:
    """An operator may delete a dead letter that is followed; its followers are due then, and end with an error."""
    first = run(store, identity="same")
    follow(store)
    ledger.fail(first, "{}", "no")
    ledger.drop("job-1")
    published: list[str] = []
    assert sweep(ledger, lambda job: published.append(job.id)) == Swept(published=1)
    assert published == ["after"]


# --- jobs of unknown tasks ------------------------------------------------------------------------------------------


def test_a_lost_run_of_an_unknown_task_is_queued_for_its_own_sweeper(
    ledger: Ledger, store: Store, clock: ManualClock
) -> None:
    """A sweeper without the task of a lost run recovers it, and leaves its publication to one that has the task."""
    run(store)
    now = clock.advance(LEASE)
    assert sweep(ledger, publish_nothing, tasks=frozenset({"other.task"})) == Swept(lapsed=1)
    assert (read(store).state, read(store).wake_at) == (State.QUEUED, now)
    assert sweep(ledger, lambda _: None) == Swept(published=1)


def test_a_sweeper_publishes_what_it_knows_only(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """Two sweepers with different tasks publish each their own jobs, in any order, and purge both kinds."""
    submit(store, "one")
    submit(store, "two", task="other.task")
    ledger.complete(run(store, "old-one"), "1")
    ledger.complete(run(store, "old-two", task="other.task"), "1")
    clock.advance(DAY)
    published: list[str] = []
    assert sweep(ledger, lambda job: published.append(job.id), tasks=frozenset({"other.task"})) == Swept(
        published=1, purged=2
    )
    assert sweep(ledger, lambda job: published.append(job.id), tasks=frozenset({"app.add"})) == Swept(published=1)
    assert published == ["two", "one"]
