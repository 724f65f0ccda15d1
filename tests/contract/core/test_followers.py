"""Followers: duplicates that end under their own id have no `wake_at` until the followed job ends."""

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
    take_due,
    untouched,
)

if TYPE_CHECKING:
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


def test_a_follower_has_a_row_of_its_own(store: Store, clock: ManualClock) -> None:
    """A follower is written under its own id: queued, without its identity and without `wake_at`."""
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
        source="submit",
        holds_identity=False,
        queued_next=False, identity_until=None, follows_id="job-1", token=0, claim="", node="", attempt=0,
        retries=2, crashes=0, lease=9.0, lease_until=None, created_at=now, run_at=now, expires_at=None,
        started_at=None, finished_at=None, wake_at=now + 9.0, published=0, cancel=Cancel.NO, canvas_pending=True,
        route="", publish_error="",
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


def test_a_plain_follower_has_the_columns_of_a_job(store: Store, clock: ManualClock) -> None:
    """A follower without special values differs from an ordinary job only in the columns that mark a follower."""
    job = submit(store, "first", identity="same")
    apply(store, job, Transition.CANCEL)
    submit(store, identity="same")
    now = clock.advance(1.0)
    assert submit_follower(store, "job-2") == replace(
        job, id="job-2", submission_nonce="nonce-of-job-2", holds_identity=False, follows_id="job-1", created_at=now,
        run_at=now,
        wake_at=now + LEASE, reason="follows job-1",
    )  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_a_follower_has_each_value_of_its_submission(store: Store, followed: Job, name: str) -> None:
    """Each value of a submission is stored in the follower's row."""
    own = admission(store, "job-2", identity="same", follows=True, **{name: COLUMNS[name]}).follower
    assert own is not None
    assert getattr(own, name) == COLUMNS[name] != getattr(followed, name)


@pytest.mark.parametrize("canvas", [False, True])
def test_a_follower_has_its_own_canvas_pending(store: Store, followed: Job, canvas: bool) -> None:
    """`canvas_pending` of a follower is that of its own submission."""
    assert submit(store, "job-2", identity="same", follows=True, canvas=canvas).canvas_pending is False
    assert followed.canvas_pending is False
    assert read(store, "job-2").canvas_pending is canvas


def test_a_follower_without_a_canvas_has_none_pending(store: Store, followed: Job) -> None:
    """A follower has `canvas_pending` only if its submission has a canvas."""
    assert not submit_follower(store).canvas_pending


def test_the_first_submission_does_not_follow(store: Store) -> None:
    """A submission with `follows` is an ordinary job when no job holds its identity."""
    answer = admission(store, follows=True)
    assert answer == Admission(answer.job, Outcome.ADMITTED)
    assert answer.job.follows_id is None
    assert answer.job.holds_identity


def test_followers_do_not_hold_the_identity(store: Store, followed: Job) -> None:
    """One job holds the identity, however many follow it."""
    for number in range(2, 5):
        submit_follower(store, f"job-{number}")
    assert [job.id for job in holders(store, "same")] == ["job-1"]
    assert read(store).duplicate_count == 3


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


@pytest.mark.parametrize("event", [Transition.CANCEL, Transition.EXPIRE])
def test_an_end_before_a_run_wakes_all_followers(store: Store, clock: ManualClock, event: Transition) -> None:
    """A followed job that is canceled or expires before it runs wakes its followers, too."""
    submit(store, identity="same", expires_in=5.0)
    followers = [submit_follower(store, f"job-{number}") for number in (2, 3)]
    now = clock.advance(5.0)
    apply(store, read(store), event)
    for follower in followers:
        assert_changed(store, follower, get(store, follower.id), wake_at=now)


def test_a_dead_letter_wakes_its_followers(store: Store, clock: ManualClock, followed: Job) -> None:
    """A followed job that is dead-lettered wakes its followers."""
    follower = submit_follower(store)
    apply(store, followed, Transition.DEAD_LETTER)
    assert_changed(store, follower, get(store, "job-2"), wake_at=START)


@pytest.mark.parametrize(
    "event",
    [Transition.RETRY, Transition.RELEASE, Transition.CRASH, Transition.REQUEST_CANCEL, Transition.UPDATE_PROGRESS],
)
def test_only_an_end_wakes_followers(store: Store, followed: Job, event: Transition) -> None:
    """Every other event of the followed job leaves its followers unchanged."""
    submit_follower(store)
    with untouched(store, "job-2"):
        apply(store, followed, event, wake_in=1.0)


def test_claims_and_renewals_do_not_wake_followers(store: Store, clock: ManualClock) -> None:
    """A claim, a renewal and a duplicate of the followed job leave its followers unchanged."""
    submit(store, identity="same")
    submit_follower(store)
    with untouched(store, "job-2"):
        job = start(store)
        clock.advance(1.0)
        store.renew([(job.id, job.claim)], sources=frozenset({State.RUNNING}))
        submit(store, "job-3", identity="same")


def test_only_the_followers_of_the_ended_job_are_woken(store: Store, followed: Job) -> None:
    """The end of a job wakes the followers of that job, and of no other."""
    submit_follower(store)
    run(store, "other", identity="other")
    submit_follower(store, "job-3", identity="other")
    with untouched(store, "job-3", "other"):
        end(store, followed)


def test_a_follower_does_not_follow_the_next_holder(store: Store, clock: ManualClock, followed: Job) -> None:
    """A follower follows the job that its submission returned, not the next job with that identity."""
    submit_follower(store)
    end(store, followed)
    clock.advance(1.0)
    second = run(store, "job-3", identity="same")
    with untouched(store, "job-2"):
        end(store, second)


@pytest.mark.parametrize("event", [Transition.CANCEL, Transition.COMPLETE])
def test_a_follower_that_has_ended_is_not_woken_again(
    store: Store, clock: ManualClock, followed: Job, event: Transition
) -> None:
    """The end of the followed job does not shorten the retention of a follower that has already ended."""
    follower = submit_follower(store)
    if event is Transition.COMPLETE:
        follower = start(store, "job-2")
    follower = apply(store, follower, event, wake_in=500.0)
    clock.advance(5.0)
    with untouched(store, "job-2"):
        end(store, followed)
    assert follower.wake_at == START + 500.0


def test_only_followers_that_have_not_ended_are_woken(store: Store, clock: ManualClock, followed: Job) -> None:
    """Among several followers, only those that have not ended are woken."""
    for number in (2, 3):
        submit_follower(store, f"job-{number}")
    apply(store, read(store, "job-2"), Transition.CANCEL, wake_in=500.0)
    now = clock.advance(5.0)
    end(store, followed)
    assert (read(store, "job-2").wake_at, read(store, "job-3").wake_at) == (START + 500.0, now)


def test_a_follower_is_woken_once(store: Store, clock: ManualClock, followed: Job) -> None:
    """Events of the followed job after its end do not wake its followers again."""
    submit_follower(store)
    ended = end(store, followed)
    apply(store, read(store, "job-2"), Transition.PUBLISH, wake_in=60.0)
    clock.advance(1.0)
    with untouched(store, "job-2"):
        apply(store, ended, Transition.CANVAS_NOTIFIED, wake_in=1.0)


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


def test_a_follower_is_not_followed(store: Store, followed: Job) -> None:
    """The duplicates after a follower follow the holder, not the follower."""
    submit_follower(store, "job-2")
    assert submit_follower(store, "job-3").follows_id == "job-1"
    with untouched(store, "job-3"):
        apply(store, read(store, "job-2"), Transition.CANCEL)


def test_a_rejected_submission_has_no_follower(store: Store, followed: Job) -> None:
    """A submission that is rejected has no follower, even with `follows`."""
    answer = admission(store, "job-2", identity="same", follows=True, **RAISE)
    assert answer == Admission(replace(followed, duplicate_count=1), Outcome.REJECTED)
    assert get(store, "job-2") is None


def test_a_duplicate_without_follows_is_no_follower(store: Store, followed: Job) -> None:
    """A duplicate without `follows` has no row, and the end of the followed job wakes the followers."""
    submit_follower(store)
    submit(store, "job-3", identity="same")
    end(store, followed)
    assert get(store, "job-3") is None
    assert read(store, "job-2").wake_at is not None
