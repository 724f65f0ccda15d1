"""Conflict policies: how each submission changes the existing job, in each state, and what it never changes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import Admission, Job, Outcome, Retention
from onejob.ledger.ledger import Ledger
from onejob.uniqueness.on_duplicate import resolve
from tests.contract.support import (
    CONFLICT_POLICIES,
    LEASE,
    REPLACE,
    START,
    ManualClock,
    admission,
    apply,
    assert_changed,
    change,
    claim,
    end,
    events,
    get,
    holders,
    queue_next,
    read,
    run,
    start,
    submission,
    submit,
    submit_one,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.jobs.model import Submission
    from onejob.stores.protocol import Store

NOW = 1000.0
"""Seconds between the submission of the existing job and its duplicate."""
SITUATIONS: dict[str, Callable[[Store], Job]] = {
    "not begun": lambda store: submit(store, identity="same"),
    "queued again": lambda store: apply(store, run(store, identity="same"), Transition.RELEASE),
    "running": lambda store: run(store, identity="same"),
    "retrying": lambda store: apply(
        store, run(store, identity="same"), Transition.RETRY, run_in=5000.0, wake_in=5000.0
    ),
    "kept": lambda store: Ledger(store).complete(run(store, identity="same"), "1", keep=Retention(identity_for=5000.0)),
}
BEGUN = ("queued again", "running", "retrying")
_ATTACHED = dict.fromkeys(CONFLICT_POLICIES, Outcome.ATTACHED) | {"raise": Outcome.REJECTED}
OUTCOMES = {
    "not begun": _ATTACHED,
    **dict.fromkeys(BEGUN, _ATTACHED | {"run_again": Outcome.QUEUED_NEXT}),
    "kept": dict.fromkeys(CONFLICT_POLICIES, Outcome.REPLAYED) | {"raise": Outcome.REJECTED},
}
"""Outcomes of a duplicate with the same arguments, by situation of the existing job and conflict policy."""
OTHERS: dict[str, Any] = {
    "fingerprint": "other", "payload": "[2]", "options": "[3]", "lease": 77.0, "retries": 5, "canvas": True,
    "source": "delay",
}  # fmt: skip
"""Values of a submission with other arguments, which does not reschedule the job."""


def submit_again(store: Store, conflict_policy: str = "attach", job_id: str = "job-2", **values: Any) -> Admission:
    """Submit the same identity once more, with a conflict policy."""
    return admission(store, job_id, identity="same", **(CONFLICT_POLICIES[conflict_policy] | values))


def assert_duplicate(store: Store, before: Job, answer: Admission, outcome: Outcome, **columns: Any) -> None:
    """Assert that the job is returned, its duplicate count is one higher, and only these columns have changed."""
    assert answer == Admission(answer.job, outcome, rescheduled=bool({"run_at", "priority_rank"} & set(columns)))
    assert_changed(store, before, answer.job, duplicate_count=before.duplicate_count + 1, **columns)


# --- every conflict policy in every situation -----------------------------------------------------------------------


@pytest.mark.parametrize("conflict_policy", CONFLICT_POLICIES)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_an_equal_submission_changes_only_the_count(
    store: Store, clock: ManualClock, situation: str, conflict_policy: str
) -> None:
    """A duplicate with the same arguments is only counted, or queues one more run, under every conflict policy."""
    before = SITUATIONS[situation](store)
    history = store.history("job-1")
    clock.advance(NOW)
    answer = submit_again(store, conflict_policy, max_wait=0.0)
    outcome = OUTCOMES[situation][conflict_policy]
    assert answer.outcome is outcome
    if outcome is Outcome.QUEUED_NEXT:
        assert_changed(store, before, get(store, "job-1"), duplicate_count=1)
        assert answer == Admission(read(store, "job-2"), outcome)
    else:
        assert_duplicate(store, before, answer, outcome)
        assert get(store, "job-2") is None
    assert store.history("job-1") == history


@pytest.mark.parametrize("conflict_policy", CONFLICT_POLICIES)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_other_arguments_are_taken_over_before_the_first_run_only(
    store: Store, clock: ManualClock, situation: str, conflict_policy: str
) -> None:
    """A job takes over only the payload and fingerprint of a replacing submission, and only before its first run."""
    before = SITUATIONS[situation](store)
    history = store.history("job-1")
    clock.advance(NOW)
    answer = submit_again(store, conflict_policy, max_wait=0.0, **OTHERS)
    outcome = OUTCOMES[situation][conflict_policy]
    if situation == "not begun" and conflict_policy in {"replace", "run_again"}:
        assert_duplicate(store, before, answer, Outcome.REPLACED, fingerprint="other", payload="[2]")
    elif outcome is Outcome.QUEUED_NEXT:
        assert_changed(store, before, get(store, "job-1"), duplicate_count=1)
        assert (answer.outcome, answer.job.payload) == (outcome, "[2]")
    else:
        assert_duplicate(store, before, answer, outcome)
    assert store.history("job-1") == history


@pytest.mark.parametrize("conflict_policy", CONFLICT_POLICIES)
@pytest.mark.parametrize("event", [Transition.COMPLETE, Transition.FAIL, Transition.ABANDON, Transition.DEAD_LETTER])
def test_an_ended_job_causes_no_duplicates(store: Store, event: Transition, conflict_policy: str) -> None:
    """When no job holds the identity, every submission is a new job, and the ended job does not change."""
    ended = end(store, run(store, identity="same"), event)
    answer = submit_again(store, conflict_policy, **OTHERS)
    assert answer == Admission(read(store, "job-2"), Outcome.ADMITTED)
    assert holders(store, "same") == [answer.job]
    assert (read(store), store.duplicates("job-1")) == (ended, [])


@pytest.mark.parametrize("situation", BEGUN)
@pytest.mark.parametrize("conflict_policy", CONFLICT_POLICIES)
def test_a_started_job_is_not_rescheduled(
    store: Store, clock: ManualClock, situation: str, conflict_policy: str
) -> None:
    """Neither an earlier submission nor one of higher priority reschedules a job that has run, even when it waits."""
    before = SITUATIONS[situation](store)
    clock.advance(NOW)
    answer = submit_again(store, conflict_policy, delay=0.0, priority_rank=9, expires_in=3.0)
    assert not answer.rescheduled
    assert_changed(store, before, get(store, "job-1"), duplicate_count=1)


# --- rescheduled to an earlier time ---------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("conflict_policy", ["attach", "replace", "run_again"])
@pytest.mark.parametrize(("delay", "wake_at"), [(30.0, 40.0), (89.5, 99.5), (0.0, 10.0 + LEASE)])
def test_an_earlier_submission_reschedules_a_job(
    store: Store, clock: ManualClock, delay: float, wake_at: float, conflict_policy: str, other: bool
) -> None:
    """A waiting job is due at the earliest requested time, and `wake_at` then, or after `wake_in` if it is due now."""
    before = submit(store, identity="same", delay=100.0)
    clock.advance(10.0)
    answer = submit_again(store, conflict_policy, delay=delay, **(OTHERS if other else {}))
    takes_over = other and conflict_policy != "attach"
    columns = {"fingerprint": "other", "payload": "[2]"} if takes_over else {}
    outcome = Outcome.REPLACED if takes_over else Outcome.ATTACHED
    assert_duplicate(store, before, answer, outcome, run_at=START + 10.0 + delay, wake_at=START + wake_at, **columns)


def test_a_rescheduled_job_can_be_claimed(store: Store, clock: ManualClock) -> None:
    """A job can be claimed from its new `run_at` on, and not before."""
    submit(store, identity="same", delay=100.0)
    submit_again(store, delay=30.0)
    clock.advance(29.5)
    assert not claim(store).applied
    clock.advance(0.5)
    assert claim(store).applied


@pytest.mark.parametrize("conflict_policy", ["attach", "run_again"])
@pytest.mark.parametrize("delay", [90.0, 90.5, 5000.0])
def test_a_later_submission_does_not_postpone_a_job(
    store: Store, clock: ManualClock, delay: float, conflict_policy: str
) -> None:
    """A submission for the same time or a later one does not reschedule the job."""
    before = submit(store, identity="same", delay=100.0)
    clock.advance(10.0)
    assert_duplicate(store, before, submit_again(store, conflict_policy, delay=delay), Outcome.ATTACHED)


@pytest.mark.parametrize(("delay", "wake_at"), [(100.0, 100.0), (0.0, 10.0 + LEASE)])
@pytest.mark.parametrize("conflict_policy", ["attach", "replace", "run_again"])
def test_priority_only_rises(
    store: Store, clock: ManualClock, conflict_policy: str, delay: float, wake_at: float
) -> None:
    """A higher priority is taken over and reschedules the job; an equal or lower one changes nothing."""
    before = submit(store, identity="same", delay=delay, priority_rank=4)
    clock.advance(10.0)
    for number, priority_rank in enumerate((4, 0, -1)):
        answer = submit_again(
            store, conflict_policy, f"other-{number}", delay=delay, priority_rank=priority_rank, max_wait=0.0
        )
        assert_duplicate(store, before, answer, Outcome.ATTACHED)
        before = answer.job
    answer = submit_again(store, conflict_policy, delay=delay, priority_rank=5, max_wait=0.0)
    assert_duplicate(store, before, answer, Outcome.ATTACHED, priority_rank=5, wake_at=START + wake_at)


def test_a_rejected_submission_reschedules_nothing(store: Store, clock: ManualClock) -> None:
    """A submission with the policy `raise` does not reschedule the existing job."""
    before = submit(store, identity="same", delay=100.0, expires_in=200.0)
    answer = submit_again(store, "raise", delay=0.0, priority_rank=9, expires_in=50.0, **OTHERS)
    assert_duplicate(store, before, answer, Outcome.REJECTED)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_rejection_takes_precedence(store: Store, situation: str) -> None:
    """A submission with `rejects` is rejected in every situation, even when it also has other policies."""
    before = SITUATIONS[situation](store)
    assert_duplicate(store, before, submit_again(store, "run_again", rejects=True, **OTHERS), Outcome.REJECTED)


@pytest.mark.parametrize("conflict_policy", ["attach", "replace"])
def test_wake_at_is_never_after_the_expiry(store: Store, clock: ManualClock, conflict_policy: str) -> None:
    """The `wake_at` of a rescheduled job is never after its expiry."""
    submit(store, identity="same", delay=100.0, expires_in=50.0)
    job = submit_again(store, conflict_policy, delay=40.0).job
    assert (job.run_at, job.wake_at) == (START + 40.0, START + 40.0)
    clock.advance(40.0)
    job = submit_again(store, conflict_policy, "job-3", delay=0.0, priority_rank=1, max_wait=0.0).job
    assert (job.run_at, job.wake_at) == (START + 40.0, START + 50.0)


# --- postponed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "delay", "due"),
    [
        (10.0, 30.0, 35.0),
        (10.0, 54.5, 59.5),
        (10.0, 55.0, 60.0),
        (10.0, 55.5, 60.0),
        (10.0, 5000.0, 60.0),
        (10.0, 5.0, 10.0),
        (10.0, 4.5, 9.5),
        (60.0, 5000.0, 60.0),
        (60.5, 5000.0, 60.5),
        (300.0, 5000.0, 300.0),
        (300.0, 100.0, 105.0),
    ],
)
@pytest.mark.parametrize("other", [False, True])
def test_a_job_is_postponed_to_its_max_wait(
    store: Store, clock: ManualClock, first: float, delay: float, due: float, other: bool
) -> None:
    """`max_wait` limits a postponement to so many seconds after the first submission, or to a `run_at` after that."""
    before = submit(store, identity="same", delay=first)
    clock.advance(5.0)
    answer = submit_again(store, "replace", delay=delay, max_wait=60.0, **(OTHERS if other else {}))
    columns = {"fingerprint": "other", "payload": "[2]"} if other else {}
    rescheduled = {"run_at": START + due, "wake_at": START + due} if due != first else {}
    assert_duplicate(store, before, answer, Outcome.REPLACED if other else Outcome.ATTACHED, **columns, **rescheduled)


def test_repeated_submissions_postpone_a_job_up_to_max_wait(store: Store, clock: ManualClock) -> None:
    """A job that is resubmitted continually runs after `max_wait`, with the newest arguments."""
    submit(store, identity="same", delay=15.0)
    for number in range(5):
        clock.advance(10.0)
        job = submit_again(
            store, "replace", f"late-{number}", delay=15.0, payload=str(number), fingerprint=str(number)
        ).job
        assert job.run_at == START + min(10.0 * (number + 1) + 15.0, 60.0)
    clock.advance(9.5)
    assert not claim(store).applied
    clock.advance(0.5)
    assert start(store).payload == "4"


def test_an_overdue_job_is_not_postponed(store: Store, clock: ManualClock) -> None:
    """After `max_wait` a job that has not been claimed stays due."""
    submit(store, identity="same", delay=15.0)
    submit_again(store, "replace", "late", delay=1000.0)
    clock.advance(60.0)
    before = read(store)
    assert_duplicate(store, before, submit_again(store, "replace", delay=15.0), Outcome.ATTACHED)
    assert claim(store).applied


# --- arguments that are taken over ----------------------------------------------------------------------------------


@pytest.mark.parametrize("conflict_policy", ["replace", "run_again"])
def test_the_newest_arguments_run(store: Store, conflict_policy: str) -> None:
    """When several submissions replace the arguments before the first run, the newest arguments run."""
    submit(store, identity="same")
    for number in range(4):
        answer = submit_again(
            store, conflict_policy, f"late-{number}", payload=str(number), fingerprint=str(number), max_wait=0.0
        )
        assert (answer.outcome, answer.job.payload) == (Outcome.REPLACED, str(number))
    job = start(store)
    assert (job.payload, job.fingerprint, job.duplicate_count, job.submission_nonce) == ("3", "3", 4, "nonce-of-job-1")
    assert (
        submit_again(store, conflict_policy, "too-late", payload="x", fingerprint="x").outcome is not Outcome.REPLACED
    )
    assert read(store).payload == "3"


def test_the_original_arguments_can_be_restored(store: Store) -> None:
    """A submission is compared with the current arguments of the job, not with its original ones."""
    job = submit(store, identity="same")
    submit_again(store, "replace", fingerprint="other", payload="[2]", max_wait=0.0)
    answer = submit_again(store, "replace", "job-3", fingerprint=job.fingerprint, payload=job.payload, max_wait=0.0)
    assert (answer.outcome, answer.job) == (Outcome.REPLACED, replace(job, duplicate_count=2))


@pytest.mark.parametrize("expires_in", [50.0, 5000.0])
def test_an_expiry_is_taken_over_with_the_arguments(store: Store, clock: ManualClock, expires_in: float) -> None:
    """A job whose arguments are replaced gets the expiry of the replacing submission."""
    submit(store, identity="same", expires_in=100.0, delay=20.0)
    now = clock.advance(10.0)
    job = submit_again(store, "replace", expires_in=expires_in, delay=20.0, **OTHERS).job
    assert job.expires_at == now + expires_in
    assert job.wake_at is not None
    assert job.wake_at <= job.expires_at
    clock.advance(expires_in)
    assert not claim(store).applied
    assert store.apply(change(job, Transition.EXPIRE, overdue=True)).applied


def test_arguments_without_an_expiry_remove_the_expiry(store: Store, clock: ManualClock) -> None:
    """A replacing submission without an expiry removes the expiry of the job."""
    submit(store, identity="same", expires_in=100.0)
    job = submit_again(store, "replace", max_wait=0.0, **OTHERS).job
    assert job.expires_at is None
    assert job.wake_at is not None
    clock.advance(1000.0)
    assert not store.apply(change(job, Transition.EXPIRE, overdue=True)).applied
    assert claim(store).applied


@pytest.mark.parametrize(("conflict_policy", "values"), [("attach", OTHERS), ("replace", {}), ("run_again", {})])
def test_an_expiry_does_not_change_without_the_arguments(
    store: Store, clock: ManualClock, conflict_policy: str, values: dict[str, Any]
) -> None:
    """A submission that does not replace the arguments does not change the expiry."""
    before = submit(store, identity="same", expires_in=100.0)
    answer = submit_again(store, conflict_policy, expires_in=5000.0, max_wait=0.0, **values)
    assert_duplicate(store, before, answer, Outcome.ATTACHED)


# --- followers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("conflict_policy", CONFLICT_POLICIES)
def test_a_follower_follows_the_returned_job(store: Store, situation: str, conflict_policy: str) -> None:
    """A follower follows the returned job; a rejected submission, or one that is queued next, has no follower."""
    SITUATIONS[situation](store)
    answer = submit_again(store, conflict_policy, follows=True, max_wait=0.0, **OTHERS)
    if answer.outcome in {Outcome.QUEUED_NEXT, Outcome.REJECTED}:
        assert answer.follower is None
    else:
        assert answer.follower == read(store, "job-2")
        assert (answer.follower.follows_id, answer.job.id) == ("job-1", "job-1")
        assert events(store, "job-2") == ["follow"]


def test_a_follower_follows_the_job_that_is_queued_next(store: Store) -> None:
    """A follower that is a duplicate of the job queued next ends with that job."""
    run(store, identity="same")
    queue_next(store)
    answer = submit_again(store, "run_again", "job-3", follows=True)
    assert (answer.outcome, answer.job.id) == (Outcome.ATTACHED, "job-2")
    assert answer.follower == read(store, "job-3")
    assert answer.follower.follows_id == "job-2"


# --- all stores implement one rule ----------------------------------------------------------------------------------


def _expected_job(job: Job, new: Submission, now: float) -> Job:
    """Return the waiting job after `resolve`, with its `wake_at`."""
    resolution = resolve(job, new, now=now)
    after = replace(
        job, duplicate_count=job.duplicate_count + 1, run_at=resolution.run_at, priority_rank=resolution.priority_rank
    )
    if resolution.reschedules(job):
        after = replace(after, wake_at=resolution.run_at if resolution.run_at > now else now + LEASE)
    return replace(after, fingerprint=new.fingerprint, payload=new.payload) if resolution.takes_over else after


def test_every_store_implements_resolve(store: Store, clock: ManualClock) -> None:
    """For every combination of delay, `max_wait`, priority and arguments, each store does what `resolve` returns."""
    combinations = itertools.product((0.0, 20.0), (0.0, 15.0, 25.0, 70.0), (0.0, 10.0, 30.0, 100.0), (0.0, 5.0, 60.0))
    for number, (first, passed, delay, max_wait) in enumerate(combinations):
        job = submit(store, f"job-{number}", identity=str(number), delay=first, priority_rank=2)
        now = clock.advance(passed)
        new = submission(
            f"late-{number}", identity=str(number), delay=delay, max_wait=max_wait, priority_rank=number % 4,
            replaces=number % 3 > 0, payload="[2]", fingerprint="other" if number % 5 else job.fingerprint,
        )  # fmt: skip
        resolution, expected = resolve(job, new, now=now), _expected_job(job, new, now)
        assert submit_one(store, new, wake_in=LEASE) == Admission(
            expected, resolution.outcome, rescheduled=resolution.reschedules(job)
        ), new
        assert read(store, job.id) == expected


def test_a_submission_changes_no_other_identity(store: Store, clock: ManualClock) -> None:
    """A submission changes no job of another identity, even when all other values are equal."""
    others = [submit(store, f"other-{number}", delay=100.0) for number in range(3)]
    submit(store, identity="same", delay=100.0)
    submit_again(store, "replace", delay=0.0, priority_rank=9, **(OTHERS | REPLACE))
    assert [read(store, job.id) for job in others] == others
