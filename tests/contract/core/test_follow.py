"""`follow`: a job that holds no identity waits for the end of another one, and is woken by it, whoever was first."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import FINAL, State, Transition
from onejob.jobs.model import Cancel, Job, Outcome
from tests.contract.races import together
from tests.contract.support import (
    COLUMNS,
    ENDINGS,
    LEASE,
    UNKNOWN,
    ManualClock,
    admission,
    apply,
    assert_changed,
    assert_legal,
    claim,
    end,
    events,
    get,
    holders,
    read,
    run,
    submission,
    submit,
    untouched,
)

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store


def follow(store: Store, job_id: str = "after", follows_id: str = "job-1") -> Job:
    """Write a job that waits for the end of another one."""
    job = store.follow(submission(job_id), follows_id=follows_id)
    assert job is not None
    return job


def test_it_has_a_row_of_its_own(store: Store, clock: ManualClock) -> None:
    """It is queued under its own id, without identity and without alarm, and the followed job is left as it was."""
    submit(store)
    now = clock.advance(1.0)
    new = submission(
        "after", task="other.task", identity="its-own", fingerprint="fingerprint-2", nonce="nonce-2", payload="[2]",
        options='{"queue": "slow"}', priority_rank=4, lease=9.0, retries=2, submitter="user:1",
    )  # fmt: skip
    with untouched(store):
        job = store.follow(new, follows_id="job-1")
    assert job == Job(
        id="after", task="other.task", identity="its-own", fingerprint="fingerprint-2", submission_nonce="nonce-2",
        submitter="user:1",
        payload="[2]", options='{"queue": "slow"}', priority_rank=4, state=State.QUEUED, holds_identity=False,
        queued_next=False,
        identity_until=None, follows_id="job-1", token=0, claim="", node="", attempt=0, retries=2, crashes=0, lease=9.0,
        lease_until=None, created_at=now, run_at=now, expires_at=None, started_at=None, finished_at=None, wake_at=None,
        published=0, cancel=Cancel.NO, canvas_pending=False, key_retained_until=None, duplicate_count=0,
        progress=None, result=None,
        error=None, reason="waits for the end of job-1",
    )  # fmt: skip
    assert (job, ["wait"]) == (get(store, "after"), events(store, "after"))


@pytest.mark.parametrize("name", COLUMNS)
def test_it_has_each_value_of_its_submission(store: Store, name: str) -> None:
    """Each value of a submission is found in the row by itself."""
    submit(store)
    job = store.follow(submission("after", **{name: COLUMNS[name]}), follows_id="job-1")
    assert job is not None
    assert getattr(job, name) == COLUMNS[name] != getattr(read(store), name)


def test_it_holds_no_identity(store: Store) -> None:
    """The identity in its row is in nobody's way, and nobody's is in its."""
    submit(store, identity="same")
    store.follow(submission("after", identity="same"), follows_id="job-1")
    assert [job.id for job in holders(store, "same")] == ["job-1"]
    store.follow(submission("release_identity", identity="else"), follows_id="job-1")
    assert admission(store, "job-2", identity="else").outcome is Outcome.ADMITTED


def test_nobody_follows_a_job_that_is_not_there(store: Store) -> None:
    """Without a leader nothing is written."""
    assert store.follow(submission("after"), follows_id=UNKNOWN) is None
    assert get(store, "after") is None


def test_a_repeated_call_changes_nothing(store: Store, clock: ManualClock) -> None:
    """The row that exists under an id answers for itself, whatever is asked for and whatever became of its leader."""
    run(store)
    first = follow(store)
    clock.advance(1.0)
    with untouched(store, "after", "job-1"):
        assert store.follow(submission("after", payload="other", nonce="other"), follows_id="job-1") == first
        assert store.follow(submission("after"), follows_id=UNKNOWN) == first
    end(store, read(store))
    store.delete(["job-1"], sources=FINAL)
    assert store.follow(submission("after"), follows_id="job-1") == read(store, "after")


@pytest.mark.parametrize("event", ENDINGS)
def test_the_end_of_its_leader_wakes_it(store: Store, clock: ManualClock, event: Transition) -> None:
    """However the followed job ends, its `wake_at` is due in that very change, and it can be claimed."""
    job = run(store)
    own = follow(store)
    now = clock.advance(5.0)
    end(store, job, event)
    assert_changed(store, own, get(store, "after"), wake_at=now)
    assert [each.id for each in store.take_due(limit=10, hold=5.0)] == ["after"]
    assert claim(store, "after").applied


@pytest.mark.parametrize("event", [Transition.CANCEL, Transition.EXPIRE])
def test_an_end_before_a_run_wakes_it(store: Store, clock: ManualClock, event: Transition) -> None:
    """A leader that never ran wakes it, too."""
    submit(store, expires_in=5.0)
    own = follow(store)
    now = clock.advance(5.0)
    apply(store, read(store), event)
    assert_changed(store, own, get(store, "after"), wake_at=now)


@pytest.mark.parametrize(
    "event",
    [Transition.RETRY, Transition.RELEASE, Transition.CRASH, Transition.REQUEST_CANCEL, Transition.UPDATE_PROGRESS],
)
def test_only_an_end_wakes_it(store: Store, event: Transition) -> None:
    """It sleeps through everything else that happens to the followed job."""
    job = run(store)
    follow(store)
    with untouched(store, "after"):
        apply(store, job, event, wake_in=1.0)


@pytest.mark.parametrize("event", ENDINGS)
def test_after_an_end_it_rings_at_once(store: Store, clock: ManualClock, event: Transition) -> None:
    """When the followed job has ended already, its `wake_at` is due at once."""
    end(store, run(store), event)
    now = clock.advance(1.0)
    assert follow(store).wake_at == now


def test_several_wait_for_one(store: Store, clock: ManualClock) -> None:
    """As many as like wait for one end, and each is woken."""
    job = run(store)
    for number in range(4):
        follow(store, f"after-{number}")
    end(store, job)
    assert {each.id for each in store.take_due(limit=10, hold=5.0)} == {f"after-{number}" for number in range(4)}


def test_it_waits_for_one_that_is_queued_next(store: Store) -> None:
    """A job that itself waits for its turn can be waited for: neither its turn nor the end before it is its end."""
    first = run(store, identity="same")
    queued = admission(store, "job-2", identity="same", queues_next=True).job
    follow(store, follows_id=queued.id)
    end(store, first)
    assert read(store, "after").wake_at is None
    claimed = claim(store, "job-2").job
    assert claimed is not None
    end(store, claimed)
    assert read(store, "after").wake_at is not None


def test_it_lives_as_any_job_does(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """Woken, it is claimed, retried and fails; sent again it is on its own, whoever led it is gone by then."""
    job = run(store)
    follow(store)
    end(store, job)
    for _ in range(2):
        claimed = claim(store, "after").job
        assert claimed is not None
        ledger.retry(claimed, delay=5.0, payload="{}", options="{}", retries=1, error=None, reason="no")
        clock.advance(5.0)
    claimed = claim(store, "after").job
    assert claimed is not None
    ledger.fail(claimed, "{}", "no")
    store.delete(["job-1"], sources=FINAL)
    again = ledger.redrive("after")
    assert (again.state, again.follows_id, again.wake_at) == (State.QUEUED, None, clock())
    assert_legal(store.history("after"), again)


def test_many_writers_of_one_id_write_one(store: Store) -> None:
    """One that is written by many at once is one row, and all are told of it."""
    run(store)
    found = together(*[partial(follow, store)] * 8)
    assert set(found) == {read(store, "after")}
    assert events(store, "after") == ["wait"]


def test_a_lease_is_its_own(store: Store) -> None:
    """Its lease is that of its submission, not the followed job's."""
    end(store, run(store, lease=LEASE))
    store.follow(submission("after", lease=7.0), follows_id="job-1")
    claimed = claim(store, "after").job
    assert claimed is not None
    assert claimed.lease_until == pytest.approx((claimed.started_at or 0.0) + 7.0)
