"""Idempotency: a request that is repeated, after its response was lost, changes nothing and returns the same result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import FINAL, State, Transition
from onejob.jobs.model import Outcome
from onejob.jobs.transitions import new_nonce
from onejob.stores.protocol import DUPLICATE_LIMIT
from tests.contract.support import (
    ENDINGS,
    LEASE,
    RUN_AGAIN,
    RUNNING,
    ManualClock,
    admission,
    apply,
    change,
    claim,
    end,
    events,
    get,
    queue_next,
    read,
    run,
    start,
    submission,
    submit,
    submit_one,
    untouched,
)

if TYPE_CHECKING:
    from onejob.jobs.model import Applied, Change
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store

STORED_REQUESTS = 8
NONCE = "0123456789abcdef"


def repeat_change(store: Store, request: Change) -> Applied:
    """Repeat a request, after checking that it changes nothing and returns the current job."""
    with untouched(store, request.job_id):
        answer = store.apply(request)
        assert answer.job == get(store, request.job_id)
    return answer


def repeat_claim(store: Store, nonce: str = NONCE, job_id: str = "job-1") -> Applied:
    """Repeat a claim, after checking that it changes nothing and returns the current job."""
    with untouched(store, job_id):
        answer = claim(store, job_id, nonce=nonce)
        assert answer.job == get(store, job_id)
    return answer


# --- submit ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [*RUNNING, *sorted(FINAL)])
def test_a_repeated_submission_returns_the_changed_job(
    ledger: Ledger, store: Store, clock: ManualClock, state: State
) -> None:
    """After other changes of the job, its repeated submission still returns `admitted`, with the current job."""
    job = run(store)
    clock.advance(1.0)
    events = {State.COMPLETED: Transition.COMPLETE, State.FAILED: Transition.FAIL, State.CANCELED: Transition.ABANDON}
    if state.final:
        end(store, job, events[state])
    with untouched(store):
        repeated = ledger.submit(submission())
    assert (repeated.outcome, repeated.job, repeated.follower) == (Outcome.ADMITTED, read(store), None)
    assert repeated.job.state is state


@pytest.mark.parametrize("event", ENDINGS)
def test_a_repeated_submission_of_a_follower_returns_its_followed_job_after_the_end(
    ledger: Ledger, store: Store, event: Transition
) -> None:
    """After the followed job's end, with the identity free, a follower's submission still returns the followed job."""
    followed = run(store, identity="same")
    follower = submission("job-2", identity="same", follows=True)
    assert ledger.submit(follower).outcome is Outcome.ATTACHED
    followed = end(store, followed, event)
    with untouched(store, "job-1", "job-2"):
        repeated = ledger.submit(follower)
    assert (repeated.outcome, repeated.job, repeated.follower) == (Outcome.ATTACHED, followed, read(store, "job-2"))


def test_a_repeated_duplicate_of_the_job_queued_next_returns_the_same(store: Store) -> None:
    """A duplicate of the job queued next is recognized by its record on the running job."""
    run(store, identity="same")
    queue_next(store, payload="[2]")
    first = admission(store, "job-3", identity="same", fingerprint="other", payload="[3]", **RUN_AGAIN)
    assert (first.outcome, first.job.id) == (Outcome.REPLACED, "job-2")
    with untouched(store, "job-1", "job-2", "job-3"):
        assert admission(store, "job-3", identity="same", fingerprint="other", payload="[3]", **RUN_AGAIN) == first


@pytest.mark.parametrize("others", range(DUPLICATE_LIMIT - 1, DUPLICATE_LIMIT + 2))
def test_a_duplicate_is_recognized_while_it_is_recorded(store: Store, others: int) -> None:
    """A duplicate is recognized while it is among the newest recorded duplicates, and is counted again afterwards."""
    submit(store, identity="same")
    submit(store, "job-2", identity="same")
    for number in range(others):
        submit(store, f"other-{number}", identity="same")
    recognized = others < DUPLICATE_LIMIT
    assert submit(store, "job-2", identity="same").duplicate_count == 1 + others + (not recognized)


def test_a_repeated_submission_of_a_job_queued_next_returns_that_job(ledger: Ledger, store: Store) -> None:
    """The repeated submission of a job queued next returns it: once promoted, while it runs, and after its end."""
    holder = run(store, identity="same")
    queue_next(store)
    end(store, holder)
    for action in (lambda: None, lambda: start(store, "job-2"), lambda: end(store, read(store, "job-2"))):
        action()
        with untouched(store, "job-1", "job-2"):
            repeated = admission(store, "job-2", identity="same", **RUN_AGAIN)
        assert (repeated.job, repeated.follower) == (read(store, "job-2"), None)


@pytest.mark.parametrize("event", [Transition.CANCEL, Transition.EXPIRE])
def test_a_repeated_submission_of_a_job_that_ended_before_its_promotion_returns_it(
    store: Store, event: Transition
) -> None:
    """The repeated submission of a job that was queued next and never promoted returns it, not the previous job."""
    run(store, identity="same")
    ended = apply(store, queue_next(store), event)
    with untouched(store, "job-1", "job-2"):
        repeated = admission(store, "job-2", identity="same", **RUN_AGAIN)
    assert (repeated.job, repeated.follower) == (ended, None)


# --- claim ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [Transition.RELEASE, Transition.RETRY, Transition.CRASH])
def test_a_repeated_claim_does_not_start_a_second_run(store: Store, clock: ManualClock, event: Transition) -> None:
    """When the run has ended and the job waits again, a repeated claim is refused and starts nothing."""
    submit(store)
    job = start(store, nonce=NONCE)
    apply(store, job, event)
    clock.advance(5.0)
    assert not repeat_claim(store).applied
    assert claim(store, nonce=new_nonce()).applied


@pytest.mark.parametrize("runs", [1, 3])
def test_no_earlier_claim_is_granted_again(store: Store, clock: ManualClock, runs: int) -> None:
    """Of all claims of a job, only that of its current run is granted when it is repeated."""
    job = run(store)
    earlier = []
    for _ in range(runs):
        earlier.append(job.claim)
        apply(store, job, Transition.RELEASE)
        clock.advance(1.0)
        job = start(store)
    assert [repeat_claim(store, nonce).applied for nonce in [*earlier, job.claim]] == [False] * runs + [True]


# --- apply ----------------------------------------------------------------------------------------------------------


def test_a_repeated_end_wakes_no_follower_again(store: Store, clock: ManualClock) -> None:
    """Only the first of two equal ends wakes the followers."""
    followed = run(store, identity="same")
    submit_one(store, submission("job-2", identity="same", follows=True), wake_in=LEASE)
    request = change(followed, Transition.COMPLETE)
    store.apply(request)
    apply(store, read(store, "job-2"), Transition.PUBLISH, wake_in=70.0)
    clock.advance(1.0)
    with untouched(store, "job-2"):
        assert repeat_change(store, request).applied


@pytest.mark.parametrize("others", range(STORED_REQUESTS))
def test_the_last_eight_requests_are_recognized(store: Store, clock: ManualClock, others: int) -> None:
    """A request is recognized after up to seven later requests on the job."""
    job = run(store)
    request = change(job, Transition.UPDATE_PROGRESS, published=1)
    assert store.apply(request).applied
    for _ in range(others):
        apply(store, job, Transition.UPDATE_PROGRESS, published=2)
    clock.advance(1.0)
    assert repeat_change(store, request).applied


@pytest.mark.parametrize("others", [STORED_REQUESTS, STORED_REQUESTS + 3])
def test_an_earlier_request_is_not_recognized(store: Store, others: int) -> None:
    """The number of stored requests is bounded: after eight others a request is checked like a new one."""
    job = run(store)
    request = change(job, Transition.COMPLETE)
    assert store.apply(request).applied
    for _ in range(others):
        apply(store, job, Transition.CANVAS_NOTIFIED)
    assert not repeat_change(store, request).applied


def test_claims_and_changes_count_together(store: Store, clock: ManualClock) -> None:
    """A claim is one of the last eight requests: it is recognized after seven changes."""
    submit(store)
    job = start(store, nonce=NONCE)
    for _ in range(STORED_REQUESTS - 1):
        apply(store, job, Transition.UPDATE_PROGRESS)
    assert repeat_claim(store).applied
    apply(store, job, Transition.RELEASE)
    clock.advance(1.0)
    request = change(start(store), Transition.UPDATE_PROGRESS)
    assert store.apply(request).applied
    for _ in range(STORED_REQUESTS - 2):
        apply(store, read(store), Transition.UPDATE_PROGRESS)
    assert repeat_change(store, request).applied


@pytest.mark.parametrize("part", [slice(0, 8), slice(8, 16), slice(4, 12), slice(0, 15), slice(1, 16)])
def test_a_part_of_a_request_id_is_another_request_id(store: Store, part: slice) -> None:
    """A request whose id is a part of a stored id is a new request, whether its token is valid or not."""
    job = run(store)
    apply(store, job, Transition.UPDATE_PROGRESS, request_id=NONCE)
    valid, stale = (change(job, Transition.UPDATE_PROGRESS, request_id=NONCE[part], token=t) for t in (job.token, 1))
    assert not repeat_change(store, stale).applied
    assert store.apply(valid).applied
    assert events(store)[2:] == ["update_progress", "update_progress"]


def test_request_ids_are_compared_as_a_whole(store: Store) -> None:
    """A request id that is a part of another, or of two adjacent ones, is a new one."""
    job = run(store)
    for request_id in ("aaaaaaaabbbbbbbb", "ccccccccdddddddd", "bbbbbbbb aaaaaaa", "ddddddddaaaaaaaa", "aaaaaaaa"):
        apply(store, job, Transition.UPDATE_PROGRESS, request_id=request_id)
    assert len(store.history(job.id)) == 2 + 5
