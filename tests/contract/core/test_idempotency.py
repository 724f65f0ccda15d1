"""Idempotency: a request that is repeated, because its first answer was lost, changes nothing and gets that answer."""

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

REMEMBERED = 8
NONCE = "0123456789abcdef"


def repeated(store: Store, wanted: Change) -> Applied:
    """Send a request once more, having checked that it changes nothing and is answered with the job as it is."""
    with untouched(store, wanted.job_id):
        answer = store.apply(wanted)
        assert answer.job == get(store, wanted.job_id)
    return answer


def repeated_claim(store: Store, nonce: str = NONCE, job_id: str = "job-1") -> Applied:
    """Send a claim once more, having checked that it changes nothing and is answered with the job as it is."""
    with untouched(store, job_id):
        answer = claim(store, job_id, nonce=nonce)
        assert answer.job == get(store, job_id)
    return answer


# --- submit ---------------------------------------------------------------------------------------------------------


def test_a_repeated_submission_is_answered_as_the_first_one(store: Store, clock: ManualClock) -> None:
    """A submission that was admitted is answered with its job again, and is no duplicate."""
    job = submit(store, canvas=True)
    clock.advance(1.0)
    with untouched(store):
        assert admission(store, canvas=True) == Admission(job, Outcome.ADMITTED)


@pytest.mark.parametrize("state", [*RUNNING, *sorted(FINAL)])
def test_a_repeated_submission_is_answered_after_other_changes(
    ledger: Ledger, store: Store, clock: ManualClock, state: State
) -> None:
    """Whatever became of the job meanwhile, its submission is still answered `admitted`, with the job as it is."""
    job = run(store)
    clock.advance(1.0)
    events = {State.COMPLETED: Transition.COMPLETE, State.FAILED: Transition.FAIL, State.CANCELED: Transition.ABANDON}
    if state.final:
        end(store, job, events[state])
    with untouched(store):
        again = ledger.submit(submission())
    assert (again.outcome, again.job, again.follower) == (Outcome.ADMITTED, read(store), None)
    assert again.job.state is state


def test_a_repeated_submission_of_a_follower_is_answered_as_the_first_one(store: Store, clock: ManualClock) -> None:
    """A follower's submission is answered with the followed job and itself again, and is not counted twice."""
    submit(store, identity="same")
    follower = submission("job-2", identity="same", follows=True)
    first = submit_one(store, follower, wake_in=LEASE)
    clock.advance(1.0)
    with untouched(store, "job-1", "job-2"):
        assert submit_one(store, follower, wake_in=LEASE) == first


@pytest.mark.parametrize("event", ENDINGS)
def test_a_repeated_submission_of_a_follower_names_its_leader_after_the_end(
    ledger: Ledger, store: Store, event: Transition
) -> None:
    """After its leader's end, and with the identity free, a follower's submission still names its leader."""
    followed = run(store, identity="same")
    follower = submission("job-2", identity="same", follows=True)
    assert ledger.submit(follower).outcome is Outcome.ATTACHED
    followed = end(store, followed, event)
    with untouched(store, "job-1", "job-2"):
        again = ledger.submit(follower)
    assert (again.outcome, again.job, again.follower) == (Outcome.ATTACHED, followed, read(store, "job-2"))


def test_a_submission_is_known_by_its_job_id_for_as_long_as_the_row_is_kept(store: Store) -> None:
    """No number of other requests makes a store forget a submission."""
    job = run(store)
    for _ in range(REMEMBERED * 2):
        apply(store, job, Transition.UPDATE_PROGRESS)
    with untouched(store):
        assert admission(store) == Admission(read(store), Outcome.ADMITTED)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("conflict_policy", CONFLICT_POLICIES)
def test_a_repeated_duplicate_is_answered_as_the_first_one(
    store: Store, clock: ManualClock, conflict_policy: str, begun: bool
) -> None:
    """Whatever came of a submission that met a job, it comes to nothing more when it is repeated, nor is it counted."""
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


def test_a_repeated_duplicate_of_the_one_queued_next_is_answered_as_the_first_one(store: Store) -> None:
    """A submission that met the job which is queued next is known by its duplicate on the job that runs."""
    run(store, identity="same")
    queue_next(store, payload="[2]")
    first = admission(store, "job-3", identity="same", fingerprint="other", payload="[3]", **RUN_AGAIN)
    assert (first.outcome, first.job.id) == (Outcome.REPLACED, "job-2")
    with untouched(store, "job-1", "job-2", "job-3"):
        assert admission(store, "job-3", identity="same", fingerprint="other", payload="[3]", **RUN_AGAIN) == first


@pytest.mark.parametrize("others", range(DUPLICATE_LIMIT - 1, DUPLICATE_LIMIT + 2))
def test_a_duplicate_is_known_as_long_as_its_duplicate_is_kept(store: Store, others: int) -> None:
    """A submission that met a job is known while it is among the newest duplicates, and is counted anew afterwards."""
    submit(store, identity="same")
    submit(store, "job-2", identity="same")
    for number in range(others):
        submit(store, f"other-{number}", identity="same")
    known = others < DUPLICATE_LIMIT
    assert submit(store, "job-2", identity="same").duplicate_count == 1 + others + (not known)


def test_a_repeated_submission_of_a_job_that_was_queued_next_is_answered_by_it(ledger: Ledger, store: Store) -> None:
    """The job that a submission queued answers its repetition: in its turn, while it runs, and at its end."""
    holder = run(store, identity="same")
    queue_next(store)
    end(store, holder)
    for happen in (lambda: None, lambda: start(store, "job-2"), lambda: end(store, read(store, "job-2"))):
        happen()
        with untouched(store, "job-1", "job-2"):
            again = admission(store, "job-2", identity="same", **RUN_AGAIN)
        assert (again.job, again.follower) == (read(store, "job-2"), None)


@pytest.mark.parametrize("event", [Transition.CANCEL, Transition.EXPIRE])
def test_a_repeated_submission_of_a_job_that_ended_before_its_turn_is_answered_by_it(
    store: Store, event: Transition
) -> None:
    """A job that was queued next and never had its turn answers its submission itself, not the job before it."""
    run(store, identity="same")
    ended = apply(store, queue_next(store), event)
    with untouched(store, "job-1", "job-2"):
        again = admission(store, "job-2", identity="same", **RUN_AGAIN)
    assert (again.job, again.follower) == (ended, None)


# --- claim ----------------------------------------------------------------------------------------------------------


def test_a_repeated_claim_is_the_same_run(store: Store, clock: ManualClock) -> None:
    """A claim that is repeated with its nonce is granted again: same token, same attempt, same lease."""
    submit(store)
    first = claim(store, nonce=NONCE)
    clock.advance(5.0)
    again = repeated_claim(store)
    assert again == first
    assert again.applied


def test_a_repeated_claim_is_granted_after_changes_of_the_run(store: Store, clock: ManualClock) -> None:
    """What the run did meanwhile does not make its claim a new one, and a request to cancel does not refuse it."""
    submit(store)
    job = start(store, nonce=NONCE)
    clock.advance(5.0)
    store.renew([(job.id, job.claim)], sources=RUNNING)
    store.report(job.id, job.token, "1", sources=RUNNING)
    apply(store, job, Transition.REQUEST_CANCEL, cancel=Cancel.ASKED)
    again = repeated_claim(store)
    assert again.applied
    assert again.job is not None
    assert again.job.token == job.token


@pytest.mark.parametrize("event", [Transition.RELEASE, Transition.RETRY, Transition.CRASH])
def test_a_repeated_claim_does_not_start_a_second_run(store: Store, clock: ManualClock, event: Transition) -> None:
    """When its run is over and the job waits again, a claim that is repeated is refused and starts nothing."""
    submit(store)
    job = start(store, nonce=NONCE)
    apply(store, job, event)
    clock.advance(5.0)
    assert not repeated_claim(store).applied
    assert claim(store, nonce=new_nonce()).applied


@pytest.mark.parametrize("event", ENDINGS)
def test_a_repeated_claim_is_refused_after_the_end(store: Store, event: Transition) -> None:
    """When its job has ended, a claim that is repeated is refused."""
    submit(store)
    end(store, start(store, nonce=NONCE), event)
    assert not repeated_claim(store).applied


def test_a_repeated_claim_is_refused_while_another_run_has_the_job(store: Store, clock: ManualClock) -> None:
    """A claim that is repeated does not take the job back from the run that came after."""
    submit(store)
    apply(store, start(store, nonce=NONCE), Transition.CRASH)
    clock.advance(1.0)
    current = start(store)
    assert not repeated_claim(store).applied
    assert repeated_claim(store, current.claim).applied


@pytest.mark.parametrize("runs", [1, 3])
def test_no_earlier_claim_is_granted_again(store: Store, clock: ManualClock, runs: int) -> None:
    """Of all the claims that a job has had, only that of its present run is granted when it is repeated."""
    job = run(store)
    earlier = []
    for _ in range(runs):
        earlier.append(job.claim)
        apply(store, job, Transition.RELEASE)
        clock.advance(1.0)
        job = start(store)
    assert [repeated_claim(store, nonce).applied for nonce in [*earlier, job.claim]] == [False] * runs + [True]


def test_a_nonce_is_known_to_its_own_job_only(store: Store) -> None:
    """One nonce may claim two jobs: each counts by itself."""
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
def test_a_repeated_change_of_a_run_is_done_once(
    store: Store, clock: ManualClock, event: Transition, values: dict[str, Any]
) -> None:
    """A change that was applied is answered `done` when it is repeated, and nothing moves: no alarm, no line."""
    wanted = change(run(store), event, **values)
    assert store.apply(wanted).applied
    clock.advance(1.0)
    assert repeated(store, wanted).applied
    clock.advance(1.0)
    assert repeated(store, wanted).applied


@pytest.mark.parametrize(("event", "values"), OF_A_WAIT)
def test_a_repeated_change_of_a_wait_is_done_once(
    store: Store, clock: ManualClock, event: Transition, values: dict[str, Any]
) -> None:
    """A change of a job that waits is applied once, however often it is sent."""
    wanted = change(submit(store), event, **values)
    assert store.apply(wanted).applied
    clock.advance(1.0)
    assert repeated(store, wanted).applied


def test_a_repeated_delivery_is_done_once(store: Store, clock: ManualClock) -> None:
    """A change of an ended job is applied once: its retention is not put off by a repetition."""
    wanted = change(end(store, run(store, canvas=True)), Transition.CANVAS_NOTIFIED, canvas_pending=False, wake_in=50.0)
    assert store.apply(wanted).applied
    clock.advance(1.0)
    assert repeated(store, wanted).applied


@pytest.mark.parametrize("event", [Transition.RELEASE, Transition.RETRY, Transition.CRASH])
def test_a_repeated_change_is_known_after_the_next_claim(store: Store, clock: ManualClock, event: Transition) -> None:
    """A change is answered `done` when another run has the job by now, which it leaves alone."""
    wanted = change(run(store), event)
    assert store.apply(wanted).applied
    clock.advance(1.0)
    start(store)
    assert repeated(store, wanted).applied


def test_a_repeated_end_wakes_nobody_again(store: Store, clock: ManualClock) -> None:
    """Followers are woken by the first of two equal ends only."""
    followed = run(store, identity="same")
    submit_one(store, submission("job-2", identity="same", follows=True), wake_in=LEASE)
    wanted = change(followed, Transition.COMPLETE)
    store.apply(wanted)
    apply(store, read(store, "job-2"), Transition.PUBLISH, wake_in=70.0)
    clock.advance(1.0)
    with untouched(store, "job-2"):
        assert repeated(store, wanted).applied


def test_a_request_is_known_to_its_own_job_only(store: Store) -> None:
    """One request id may change two jobs: each counts by itself."""
    jobs = [run(store, "job-1"), run(store, "job-2")]
    for job in jobs:
        assert store.apply(change(job, Transition.COMPLETE, request_id=NONCE)).applied
    assert [read(store, job.id).state for job in jobs] == [State.COMPLETED] * 2


@pytest.mark.parametrize("others", range(REMEMBERED))
def test_the_last_eight_requests_are_known(store: Store, clock: ManualClock, others: int) -> None:
    """Up to seven later requests on the job leave a request known."""
    job = run(store)
    wanted = change(job, Transition.UPDATE_PROGRESS, published=1)
    assert store.apply(wanted).applied
    for _ in range(others):
        apply(store, job, Transition.UPDATE_PROGRESS, published=2)
    clock.advance(1.0)
    assert repeated(store, wanted).applied


@pytest.mark.parametrize("others", [REMEMBERED, REMEMBERED + 3])
def test_the_ninth_request_is_forgotten(store: Store, others: int) -> None:
    """What a store remembers of requests is bounded: after eight others a request is judged anew."""
    job = run(store)
    wanted = change(job, Transition.COMPLETE)
    assert store.apply(wanted).applied
    for _ in range(others):
        apply(store, job, Transition.CANVAS_NOTIFIED)
    assert not repeated(store, wanted).applied


def test_claims_and_changes_are_remembered_together(store: Store, clock: ManualClock) -> None:
    """A claim is among the last eight requests: it is known after seven changes."""
    submit(store)
    job = start(store, nonce=NONCE)
    for _ in range(REMEMBERED - 1):
        apply(store, job, Transition.UPDATE_PROGRESS)
    assert repeated_claim(store).applied
    apply(store, job, Transition.RELEASE)
    clock.advance(1.0)
    wanted = change(start(store), Transition.UPDATE_PROGRESS)
    assert store.apply(wanted).applied
    for _ in range(REMEMBERED - 2):
        apply(store, read(store), Transition.UPDATE_PROGRESS)
    assert repeated(store, wanted).applied


@pytest.mark.parametrize("others", range(1, REMEMBERED - 1))
def test_a_claim_forgets_no_more_than_a_change_does(store: Store, clock: ManualClock, others: int) -> None:
    """A change is known after seven later requests, the last of which is a claim."""
    job = run(store)
    wanted = change(job, Transition.UPDATE_PROGRESS)
    assert store.apply(wanted).applied
    for _ in range(others - 1):
        apply(store, job, Transition.UPDATE_PROGRESS)
    apply(store, job, Transition.RELEASE)
    start(store)
    assert repeated(store, wanted).applied


def test_claims_and_releases_are_remembered_like_reports(store: Store, clock: ManualClock) -> None:
    """A change is known after three more runs of its job, each with its claim and its release."""
    job = run(store)
    wanted = change(job, Transition.UPDATE_PROGRESS)
    assert store.apply(wanted).applied
    apply(store, job, Transition.UPDATE_PROGRESS)
    for _ in range(3):
        apply(store, job, Transition.RELEASE)
        job = start(store)
    assert repeated(store, wanted).applied
    apply(store, job, Transition.UPDATE_PROGRESS)
    assert not repeated(store, wanted).applied


@pytest.mark.parametrize("part", [slice(0, 8), slice(8, 16), slice(4, 12), slice(0, 15), slice(1, 16)])
def test_a_part_of_a_request_is_another_request(store: Store, part: slice) -> None:
    """A request whose id is a part of a known one is not taken for it, be it right or refused."""
    job = run(store)
    apply(store, job, Transition.UPDATE_PROGRESS, request_id=NONCE)
    right, wrong = (change(job, Transition.UPDATE_PROGRESS, request_id=NONCE[part], token=t) for t in (job.token, 1))
    assert not repeated(store, wrong).applied
    assert store.apply(right).applied
    assert events(store)[2:] == ["update_progress", "update_progress"]


def test_every_change_has_its_own_request(store: Store) -> None:
    """Request ids are compared as a whole: one that is part of another, or of two neighbours, is a new one."""
    job = run(store)
    for request_id in ("aaaaaaaabbbbbbbb", "ccccccccdddddddd", "bbbbbbbb aaaaaaa", "ddddddddaaaaaaaa", "aaaaaaaa"):
        apply(store, job, Transition.UPDATE_PROGRESS, request_id=request_id)
    assert len(store.history(job.id)) == 2 + 5


# --- the others -----------------------------------------------------------------------------------------------------


def test_a_repeated_step_report_and_renewal_are_harmless(store: Store) -> None:
    """A step, a report and a renewal may be sent twice: the second answer is the first."""
    job = run(store)
    assert [store.keep_step(job.id, job.token, "one", "1", sources=RUNNING) for _ in range(2)] == ["1", "1"]
    assert [store.report(job.id, job.token, "1", sources=RUNNING) for _ in range(2)] == [Cancel.NO, Cancel.NO]
    first, second = (store.renew([(job.id, job.claim)], sources=RUNNING) for _ in range(2))
    assert first == second
