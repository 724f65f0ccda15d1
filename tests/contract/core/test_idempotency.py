"""Idempotency: a request that is repeated, after its response was lost, changes nothing and returns the same result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onejob.jobs.lifecycle import FINAL, State, Transition
from onejob.jobs.model import Admission, Cancel, Outcome
from onejob.jobs.transitions import new_nonce
from onejob.stores.protocol import DUPLICATE_LIMIT, GroupBy
from tests.contract.support import (
    CONFLICT_POLICIES,
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


def test_a_repeated_submission_returns_the_same(store: Store, clock: ManualClock) -> None:
    """A submission that was admitted returns its job again, and is not a duplicate."""
    job = submit(store, canvas=True)
    clock.advance(1.0)
    with untouched(store):
        assert admission(store, canvas=True) == Admission(job, Outcome.ADMITTED)


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


def test_a_repeated_submission_of_a_follower_returns_the_same(store: Store, clock: ManualClock) -> None:
    """A follower's submission returns the followed job and the follower again, and is not counted twice."""
    submit(store, identity="same")
    follower = submission("job-2", identity="same", follows=True)
    first = submit_one(store, follower, wake_in=LEASE)
    clock.advance(1.0)
    with untouched(store, "job-1", "job-2"):
        assert submit_one(store, follower, wake_in=LEASE) == first


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


def test_a_submission_is_recognized_by_its_job_id_while_the_row_exists(store: Store) -> None:
    """A submission is recognized after any number of other requests."""
    job = run(store)
    for _ in range(STORED_REQUESTS * 2):
        apply(store, job, Transition.UPDATE_PROGRESS)
    with untouched(store):
        assert admission(store) == Admission(read(store), Outcome.ADMITTED)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("conflict_policy", CONFLICT_POLICIES)
def test_a_repeated_duplicate_returns_the_same(
    store: Store, clock: ManualClock, conflict_policy: str, begun: bool
) -> None:
    """A repeated duplicate returns the same, whatever its outcome, changes nothing and is not counted twice."""
    submit(store, identity="same", delay=0.0 if begun else 20.0)
    if begun:
        start(store)
    clock.advance(1.0)
    values: dict[str, Any] = {
        "identity": "same",
        "fingerprint": "other",
        "payload": "[2]",
        "priority_rank": 3,
        "delay": 5.0,
    }
    first = admission(store, "job-2", **values, **CONFLICT_POLICIES[conflict_policy])
    clock.advance(1.0)
    duplicate_counts = store.duplicate_counts(GroupBy.TASK, limit=10)
    with untouched(store, "job-1", "job-2"):
        assert admission(store, "job-2", **values, **CONFLICT_POLICIES[conflict_policy]) == first
    assert store.duplicate_counts(GroupBy.TASK, limit=10) == duplicate_counts


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


def test_a_repeated_claim_is_the_same_run(store: Store, clock: ManualClock) -> None:
    """A claim that is repeated with its nonce is granted again, with the same token, attempt and lease."""
    submit(store)
    first = claim(store, nonce=NONCE)
    clock.advance(5.0)
    repeated = repeat_claim(store)
    assert repeated == first
    assert repeated.applied


def test_a_repeated_claim_is_granted_after_changes_of_the_run(store: Store, clock: ManualClock) -> None:
    """A repeated claim is granted after renewals and reports of its run, and after a cancel request."""
    submit(store)
    job = start(store, nonce=NONCE)
    clock.advance(5.0)
    store.renew([(job.id, job.claim)], sources=RUNNING)
    store.report(job.id, job.token, "1", sources=RUNNING)
    apply(store, job, Transition.REQUEST_CANCEL, cancel=Cancel.ASKED)
    repeated = repeat_claim(store)
    assert repeated.applied
    assert repeated.job is not None
    assert repeated.job.token == job.token


@pytest.mark.parametrize("event", [Transition.RELEASE, Transition.RETRY, Transition.CRASH])
def test_a_repeated_claim_does_not_start_a_second_run(store: Store, clock: ManualClock, event: Transition) -> None:
    """When the run has ended and the job waits again, a repeated claim is refused and starts nothing."""
    submit(store)
    job = start(store, nonce=NONCE)
    apply(store, job, event)
    clock.advance(5.0)
    assert not repeat_claim(store).applied
    assert claim(store, nonce=new_nonce()).applied


@pytest.mark.parametrize("event", ENDINGS)
def test_a_repeated_claim_is_refused_after_the_end(store: Store, event: Transition) -> None:
    """When the job has ended, a repeated claim is refused."""
    submit(store)
    end(store, start(store, nonce=NONCE), event)
    assert not repeat_claim(store).applied


def test_a_repeated_claim_is_refused_while_another_run_has_the_job(store: Store, clock: ManualClock) -> None:
    """A repeated claim of a previous run is refused while another run has the job."""
    submit(store)
    apply(store, start(store, nonce=NONCE), Transition.CRASH)
    clock.advance(1.0)
    current = start(store)
    assert not repeat_claim(store).applied
    assert repeat_claim(store, current.claim).applied


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


def test_a_nonce_is_recognized_per_job(store: Store) -> None:
    """One nonce may claim two jobs."""
    submit(store, "job-1")
    submit(store, "job-2")
    assert claim(store, "job-1", nonce=NONCE).applied
    assert claim(store, "job-2", nonce=NONCE).applied
    assert read(store, "job-2").attempt == 1


# --- apply ----------------------------------------------------------------------------------------------------------

OF_A_RUN: list[tuple[Transition, dict[str, Any]]] = [
    (Transition.COMPLETE, {"result": "1", "wake_in": 9.0}),
    (Transition.FAIL, {"error": "1", "wake_in": 9.0}),
    (Transition.ABANDON, {"wake_in": 9.0}),
    (Transition.RETRY, {"payload": "[2]", "run_in": 3.0, "wake_in": 3.0}),
    (Transition.RELEASE, {"wake_in": 9.0}),
    (Transition.CRASH, {"crashes": 1, "wake_in": 9.0}),
    (Transition.DEAD_LETTER, {"crashes": 3, "wake_in": 9.0}),
    (Transition.REQUEST_CANCEL, {"cancel": Cancel.ASKED}),
    (Transition.UPDATE_PROGRESS, {"wake_in": 9.0}),
]
OF_A_WAIT: list[tuple[Transition, dict[str, Any]]] = [
    (Transition.PUBLISH, {"published": 1, "wake_in": 9.0}),
    (Transition.CANCEL, {"wake_in": 9.0}),
    (Transition.EXPIRE, {"wake_in": 9.0}),
]


@pytest.mark.parametrize(("event", "values"), OF_A_RUN)
def test_a_repeated_change_of_a_run_is_applied_once(
    store: Store, clock: ManualClock, event: Transition, values: dict[str, Any]
) -> None:
    """A change that was applied returns `applied` when repeated, and changes neither `wake_at` nor the history."""
    request = change(run(store), event, **values)
    assert store.apply(request).applied
    clock.advance(1.0)
    assert repeat_change(store, request).applied
    clock.advance(1.0)
    assert repeat_change(store, request).applied


@pytest.mark.parametrize(("event", "values"), OF_A_WAIT)
def test_a_repeated_change_of_a_waiting_job_is_applied_once(
    store: Store, clock: ManualClock, event: Transition, values: dict[str, Any]
) -> None:
    """A change of a waiting job is applied once, however often it is sent."""
    request = change(submit(store), event, **values)
    assert store.apply(request).applied
    clock.advance(1.0)
    assert repeat_change(store, request).applied


def test_a_repeated_canvas_notification_is_applied_once(store: Store, clock: ManualClock) -> None:
    """A change of an ended job is applied once: its repetition does not extend the retention."""
    request = change(
        end(store, run(store, canvas=True)), Transition.CANVAS_NOTIFIED, canvas_pending=False, wake_in=50.0
    )
    assert store.apply(request).applied
    clock.advance(1.0)
    assert repeat_change(store, request).applied


@pytest.mark.parametrize("event", [Transition.RELEASE, Transition.RETRY, Transition.CRASH])
def test_a_repeated_change_is_recognized_after_the_next_claim(
    store: Store, clock: ManualClock, event: Transition
) -> None:
    """A repeated change returns `applied` even when another run has the job, and does not change that run."""
    request = change(run(store), event)
    assert store.apply(request).applied
    clock.advance(1.0)
    start(store)
    assert repeat_change(store, request).applied


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


def test_a_request_is_recognized_per_job(store: Store) -> None:
    """One request id may change two jobs."""
    jobs = [run(store, "job-1"), run(store, "job-2")]
    for job in jobs:
        assert store.apply(change(job, Transition.COMPLETE, request_id=NONCE)).applied
    assert [read(store, job.id).state for job in jobs] == [State.COMPLETED] * 2


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


@pytest.mark.parametrize("others", range(1, STORED_REQUESTS - 1))
def test_a_claim_counts_as_one_request(store: Store, clock: ManualClock, others: int) -> None:
    """A change is recognized after seven later requests, the last of which is a claim."""
    job = run(store)
    request = change(job, Transition.UPDATE_PROGRESS)
    assert store.apply(request).applied
    for _ in range(others - 1):
        apply(store, job, Transition.UPDATE_PROGRESS)
    apply(store, job, Transition.RELEASE)
    start(store)
    assert repeat_change(store, request).applied


def test_claims_and_releases_count_like_other_requests(store: Store, clock: ManualClock) -> None:
    """A change is recognized after three more runs of its job, each with its claim and its release."""
    job = run(store)
    request = change(job, Transition.UPDATE_PROGRESS)
    assert store.apply(request).applied
    apply(store, job, Transition.UPDATE_PROGRESS)
    for _ in range(3):
        apply(store, job, Transition.RELEASE)
        job = start(store)
    assert repeat_change(store, request).applied
    apply(store, job, Transition.UPDATE_PROGRESS)
    assert not repeat_change(store, request).applied


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


# --- the others -----------------------------------------------------------------------------------------------------


def test_a_repeated_step_report_or_renewal_returns_the_same(store: Store) -> None:
    """A step, a report and a renewal may be sent twice, and return the same both times."""
    job = run(store)
    assert [store.keep_step(job.id, job.token, "one", "1", sources=RUNNING) for _ in range(2)] == ["1", "1"]
    assert [store.report(job.id, job.token, "1", sources=RUNNING) for _ in range(2)] == [Cancel.NO, Cancel.NO]
    first, second = (store.renew([(job.id, job.claim)], sources=RUNNING) for _ in range(2))
    assert first == second
