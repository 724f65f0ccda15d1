"""`follow`: a job without an identity waits for the end of another job, whichever operation was first."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import FINAL, State, Transition
from onejob.jobs.model import Cancel, Job
from tests.contract.races import together
from tests.contract.support import (
    ENDINGS,
    UNKNOWN,
    ManualClock,
    admission,
    assert_changed,
    assert_legal,
    claim,
    end,
    events,
    get,
    read,
    run,
    submission,
    submit,
    take_due,
    untouched,
)

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store


def write_follower(store: Store, job_id: str = "after", follows_id: str = "job-1") -> Job:
    """Write a job that waits for the end of another one."""
    job = store.follow(submission(job_id), follows_id=follows_id)
    assert job is not None
    return job


def test_a_follower_has_a_row_of_its_own(store: Store, clock: ManualClock) -> None:
    """It is queued under its own id, without identity, due in one lease, and the followed job does not change."""
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
        submitter="user:1", source="submit",
        payload="[2]", options='{"queue": "slow"}', priority_rank=4, state=State.QUEUED, holds_identity=False,
        queued_next=False,
        identity_until=None, follows_id="job-1", token=0, claim="", node="", attempt=0, retries=2, crashes=0, lease=9.0,
        lease_until=None, created_at=now, run_at=now, expires_at=None, started_at=None, finished_at=None,
        wake_at=now + 9.0, route="", published_at=None, publish_error="",
        published=0, cancel=Cancel.NO, canvas_pending=False, key_retained_until=None, duplicate_count=0,
        progress=None, result=None,
        error=None, reason="waits for the end of job-1",
    )  # fmt: skip
    assert (job, ["wait"]) == (get(store, "after"), events(store, "after"))


def test_an_unknown_job_cannot_be_followed(store: Store) -> None:
    """Without a job to follow nothing is written."""
    assert store.follow(submission("after"), follows_id=UNKNOWN) is None
    assert get(store, "after") is None


def test_a_repeated_call_changes_nothing(store: Store, clock: ManualClock) -> None:
    """A known id returns its row, whatever values are submitted, also after the deletion of the followed job."""
    run(store)
    first = write_follower(store)
    clock.advance(1.0)
    with untouched(store, "after", "job-1"):
        assert store.follow(submission("after", payload="other", nonce="other"), follows_id="job-1") == first
        assert store.follow(submission("after"), follows_id=UNKNOWN) == first
    end(store, read(store))
    store.delete(["job-1"], sources=FINAL)
    assert store.follow(submission("after"), follows_id="job-1") == read(store, "after")


@pytest.mark.parametrize("event", ENDINGS)
def test_the_end_of_the_followed_job_wakes_the_follower(store: Store, clock: ManualClock, event: Transition) -> None:
    """Any end of the followed job's run sets the follower's `wake_at` in the same change, and it can be claimed."""
    job = run(store)
    own = write_follower(store)
    now = clock.advance(5.0)
    end(store, job, event)
    assert_changed(store, own, get(store, "after"), wake_at=now)
    assert [each.id for each in take_due(store, limit=10, hold=5.0)] == ["after"]
    assert claim(store, "after").applied


def test_a_job_queued_next_can_be_followed(store: Store) -> None:
    """A follower of a job queued next is woken by the end of that job, not by its promotion."""
    first = run(store, identity="same")
    queued = admission(store, "job-2", identity="same", queues_next=True).job
    write_follower(store, follows_id=queued.id)
    with untouched(store, "after"):
        end(store, first)
    claimed = claim(store, "job-2").job
    assert claimed is not None
    end(store, claimed)
    assert [job.id for job in take_due(store)] == ["after"]


def test_a_woken_follower_has_the_lifecycle_of_any_job(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A woken follower is claimed, retried and fails; it can be redriven after the followed job was deleted."""
    job = run(store)
    write_follower(store)
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


def test_concurrent_calls_for_one_id_write_one_row(store: Store) -> None:
    """Many concurrent calls for one id write one row, and all return it."""
    run(store)
    found = together(*[partial(write_follower, store)] * 8)
    assert set(found) == {read(store, "after")}
    assert events(store, "after") == ["wait"]
