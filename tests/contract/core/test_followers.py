"""Followers: duplicates that must come to an end under their own id sleep until the followed job ends."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Admission, Cancel, Job, Outcome
from tests.contract.support import (
    COLUMNS,
    ENDINGS,
    LEASE,
    RAISE,
    START,
    ManualClock,
    admission,
    apply,
    assert_changed,
    claim,
    end,
    events,
    get,
    holders,
    read,
    run,
    start,
    submission,
    submit,
    submit_one,
    untouched,
)

if TYPE_CHECKING:
    from onejob.stores.protocol import Store


def follow(store: Store, job_id: str = "job-2", identity: str = "same") -> Job:
    """Submit a duplicate that follows."""
    answer = admission(store, job_id, identity=identity, follows=True)
    assert answer.follower is not None
    assert answer.follower.follows_id == answer.job.id
    return answer.follower


@pytest.fixture
def followed(store: Store) -> Job:
    """Return a running job that holds the identity `same`."""
    return run(store, identity="same")


def test_a_follower_has_a_row_of_its_own(store: Store, clock: ManualClock) -> None:
    """A duplicate that follows is written under its own id: queued, without identity and without alarm."""
    followed = submit(store, identity="same")
    now = clock.advance(1.0)
    new = submission(
        "job-2", task="other.task", identity="same", fingerprint="fingerprint-2", nonce="nonce-2", payload="[2]",
        options='{"queue": "slow"}', priority_rank=4, lease=9.0, delay=4.0, expires_in=60.0, retries=2, canvas=True,
        follows=True, key="key-1", key_for=50.0, submitter="user:2",
    )  # fmt: skip
    answer = submit_one(store, new, wake_in=LEASE)
    own = Job(
        id="job-2", task="other.task", identity="same", fingerprint="fingerprint-2", submission_nonce="nonce-2",
        submitter="user:2", payload="[2]", options='{"queue": "slow"}', priority_rank=4, state=State.QUEUED,
        holds_identity=False,
        queued_next=False, identity_until=None, follows_id="job-1", token=0, claim="", node="", attempt=0,
        retries=2, crashes=0, lease=9.0, lease_until=None, created_at=now, run_at=now, expires_at=None,
        started_at=None, finished_at=None, wake_at=None, published=0, cancel=Cancel.NO, canvas_pending=True,
        key_retained_until=None, duplicate_count=0, progress=None, result=None, error=None, reason="follows job-1",
    )  # fmt: skip
    assert answer == Admission(answer.job, Outcome.ATTACHED, follower=own, rescheduled=True)
    assert_changed(
        store,
        followed,
        answer.job,
        duplicate_count=1,
        priority_rank=4,
        wake_at=now + LEASE,
        key_retained_until=now + 50.0,
    )
    assert own == get(store, "job-2")


def test_a_plain_follower_has_a_row_of_its_own(store: Store, clock: ManualClock) -> None:
    """A duplicate that has no values of its own but its id differs from a job in what a follower lacks."""
    job = submit(store, "twin", identity="same")
    apply(store, job, Transition.CANCEL)
    submit(store, identity="same")
    now = clock.advance(1.0)
    assert follow(store, "job-2") == replace(
        job, id="job-2", submission_nonce="nonce-of-job-2", holds_identity=False, follows_id="job-1", created_at=now,
        run_at=now,
        wake_at=None, reason="follows job-1",
    )  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_a_follower_has_each_value_of_its_submission(store: Store, followed: Job, name: str) -> None:
    """Each value of a submission is found in the follower's row by itself."""
    own = admission(store, "job-2", identity="same", follows=True, **{name: COLUMNS[name]}).follower
    assert own is not None
    assert getattr(own, name) == COLUMNS[name] != getattr(followed, name)


@pytest.mark.parametrize("canvas", [False, True])
def test_a_follower_is_undelivered_while_its_canvas_waits(store: Store, followed: Job, canvas: bool) -> None:
    """Whether a canvas waits for it is a follower's own."""
    assert submit(store, "job-2", identity="same", follows=True, canvas=canvas).canvas_pending is False
    assert followed.canvas_pending is False
    assert read(store, "job-2").canvas_pending is canvas


def test_a_follower_without_a_canvas_is_delivered(store: Store, followed: Job) -> None:
    """A follower has something to deliver only if a canvas waits for it."""
    assert not follow(store).canvas_pending


def test_the_first_submission_does_not_follow(store: Store) -> None:
    """A submission that would follow is an ordinary job when it is the first."""
    answer = admission(store, follows=True)
    assert answer == Admission(answer.job, Outcome.ADMITTED)
    assert answer.job.follows_id is None
    assert answer.job.holds_identity


def test_followers_do_not_hold_the_identity(store: Store, followed: Job) -> None:
    """However many follow, one job holds the identity."""
    for number in range(2, 5):
        follow(store, f"job-{number}")
    assert [job.id for job in holders(store, "same")] == ["job-1"]
    assert read(store).duplicate_count == 3


@pytest.mark.parametrize("event", ENDINGS)
@pytest.mark.usefixtures("followed")
def test_an_end_wakes_all_followers(store: Store, clock: ManualClock, event: Transition) -> None:
    """However the followed job's run ends, the alarms of all its followers ring at once, and nothing else changes."""
    followers = [follow(store, f"job-{number}") for number in range(2, 5)]
    now = clock.advance(5.0)
    end(store, read(store), event)
    for follower in followers:
        assert_changed(store, follower, get(store, follower.id), wake_at=now)
    assert {job.id for job in store.take_due(limit=10, hold=5.0)} == {"job-2", "job-3", "job-4"}


@pytest.mark.parametrize("event", [Transition.CANCEL, Transition.EXPIRE])
def test_an_end_before_a_run_wakes_all_followers(store: Store, clock: ManualClock, event: Transition) -> None:
    """A leader that is canceled or expires before it runs wakes its followers, too."""
    submit(store, identity="same", expires_in=5.0)
    followers = [follow(store, f"job-{number}") for number in (2, 3)]
    now = clock.advance(5.0)
    apply(store, read(store), event)
    for follower in followers:
        assert_changed(store, follower, get(store, follower.id), wake_at=now)


def test_a_burial_wakes_the_followers(store: Store, clock: ManualClock, followed: Job) -> None:
    """A leader that is buried wakes its followers."""
    follower = follow(store)
    apply(store, followed, Transition.DEAD_LETTER)
    assert_changed(store, follower, get(store, "job-2"), wake_at=START)


@pytest.mark.parametrize(
    "event",
    [Transition.RETRY, Transition.RELEASE, Transition.CRASH, Transition.REQUEST_CANCEL, Transition.UPDATE_PROGRESS],
)
def test_only_an_end_wakes_followers(store: Store, followed: Job, event: Transition) -> None:
    """Followers sleep through everything else that happens to the followed job."""
    follow(store)
    with untouched(store, "job-2"):
        apply(store, followed, event, wake_in=1.0)


def test_claims_and_renewals_do_not_wake_followers(store: Store, clock: ManualClock) -> None:
    """Followers sleep while the followed job begins and goes on running."""
    submit(store, identity="same")
    follow(store)
    with untouched(store, "job-2"):
        job = start(store)
        clock.advance(1.0)
        store.renew([(job.id, job.claim)], sources=frozenset({State.RUNNING}))
        submit(store, "job-3", identity="same")


def test_only_the_leaders_own_followers_are_woken(store: Store, followed: Job) -> None:
    """The end of a job wakes the followers of that job, and of no other."""
    follow(store)
    run(store, "other", identity="other")
    follow(store, "job-3", identity="other")
    with untouched(store, "job-3", "other"):
        end(store, followed)


def test_the_next_holder_is_not_the_leader(store: Store, clock: ManualClock, followed: Job) -> None:
    """A follower follows the job that it was told, not the next one with that identity."""
    follow(store)
    end(store, followed)
    clock.advance(1.0)
    second = run(store, "job-3", identity="same")
    with untouched(store, "job-2"):
        end(store, second)


@pytest.mark.parametrize("event", [Transition.CANCEL, Transition.COMPLETE])
def test_a_follower_that_has_ended_is_not_woken_again(
    store: Store, clock: ManualClock, followed: Job, event: Transition
) -> None:
    """The retention of a follower that ended before the followed job is not cut short by the followed job's end."""
    follower = follow(store)
    if event is Transition.COMPLETE:
        follower = start(store, "job-2")
    follower = apply(store, follower, event, wake_in=500.0)
    clock.advance(5.0)
    with untouched(store, "job-2"):
        end(store, followed)
    assert follower.wake_at == START + 500.0


def test_a_follower_that_has_ended_sleeps_while_others_are_woken(
    store: Store, clock: ManualClock, followed: Job
) -> None:
    """Among several followers, only those that have not ended are woken."""
    for number in (2, 3):
        follow(store, f"job-{number}")
    apply(store, read(store, "job-2"), Transition.CANCEL, wake_in=500.0)
    now = clock.advance(5.0)
    end(store, followed)
    assert (read(store, "job-2").wake_at, read(store, "job-3").wake_at) == (START + 500.0, now)


def test_a_follower_is_woken_once(store: Store, clock: ManualClock, followed: Job) -> None:
    """What happens to the followed job after its end does not wake its followers again."""
    follow(store)
    ended = end(store, followed)
    apply(store, read(store, "job-2"), Transition.PUBLISH, wake_in=60.0)
    clock.advance(1.0)
    with untouched(store, "job-2"):
        apply(store, ended, Transition.CANVAS_NOTIFIED, wake_in=1.0)


def test_a_follower_that_was_woken_comes_to_its_own_end(store: Store, clock: ManualClock, followed: Job) -> None:
    """A follower ends as any job does, under its own id, and its identity stays with whoever holds it."""
    follow(store)
    end(store, followed)
    clock.advance(1.0)
    assert claim(store, "job-2").applied
    holder = submit(store, "job-3", identity="same")
    assert holder.id == "job-3"
    ended = end(store, read(store, "job-2"))
    assert (ended.state, ended.holds_identity, ended.finished_at) == (State.COMPLETED, False, clock())
    assert [job.id for job in holders(store, "same")] == ["job-3"]
    assert events(store, "job-2") == ["follow", "claim", "complete"]


def test_a_follower_leads_nobody(store: Store, followed: Job) -> None:
    """The duplicates that come after a follower follow the holder, not the follower."""
    follow(store, "job-2")
    assert follow(store, "job-3").follows_id == "job-1"
    with untouched(store, "job-3"):
        apply(store, read(store, "job-2"), Transition.CANCEL)


def test_nobody_follows_a_job_that_refused(store: Store, followed: Job) -> None:
    """A submission that is rejected has no follower, although it would follow."""
    answer = admission(store, "job-2", identity="same", follows=True, **RAISE)
    assert answer == Admission(replace(followed, duplicate_count=1), Outcome.REJECTED)
    assert get(store, "job-2") is None


def test_a_duplicate_that_does_not_follow_is_no_follower(store: Store, followed: Job) -> None:
    """Among followers, a plain duplicate leaves no row, and the end of the followed job wakes the others."""
    follow(store)
    submit(store, "job-3", identity="same")
    end(store, followed)
    assert get(store, "job-3") is None
    assert read(store, "job-2").wake_at is not None
