"""Reactions: what each submission does to the job in its way, in whatever state that is, and what it never does."""

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
"""Seconds that have passed before a submission meets a job."""
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
"""What comes of a submission with the arguments of the job in its way, by where that is in its life, and reaction."""
OTHERS: dict[str, Any] = {
    "fingerprint": "other", "payload": "[2]", "options": "[3]", "lease": 77.0, "retries": 5, "canvas": True,
    "source": "delay",
}  # fmt: skip
"""A submission with other arguments, none of which is wanted earlier or with more urgency."""


def again(store: Store, conflict_policy: str = "attach", job_id: str = "job-2", **values: Any) -> Admission:
    """Submit once more what is under way, wanting something of the job in the way."""
    return admission(store, job_id, identity="same", **(CONFLICT_POLICIES[conflict_policy] | values))


def assert_met(store: Store, before: Job, answer: Admission, outcome: Outcome, **columns: Any) -> None:
    """Assert that a job answers, was counted, and has changed in these columns only."""
    assert answer == Admission(answer.job, outcome, rescheduled=bool({"run_at", "priority_rank"} & set(columns)))
    assert_changed(store, before, answer.job, duplicate_count=before.duplicate_count + 1, **columns)


# --- every reaction to every job ------------------------------------------------------------------------------------


@pytest.mark.parametrize("conflict_policy", CONFLICT_POLICIES)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_an_equal_submission_changes_nothing_but_the_count(
    store: Store, clock: ManualClock, situation: str, conflict_policy: str
) -> None:
    """Whatever a submission wants, with the same arguments it is only counted, or queues one more run."""
    before = SITUATIONS[situation](store)
    history = store.history("job-1")
    clock.advance(NOW)
    answer = again(store, conflict_policy, max_wait=0.0)
    outcome = OUTCOMES[situation][conflict_policy]
    assert answer.outcome is outcome
    if outcome is Outcome.QUEUED_NEXT:
        assert_changed(store, before, get(store, "job-1"), duplicate_count=1)
        assert answer == Admission(read(store, "job-2"), outcome)
    else:
        assert_met(store, before, answer, outcome)
        assert get(store, "job-2") is None
    assert store.history("job-1") == history


@pytest.mark.parametrize("conflict_policy", CONFLICT_POLICIES)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_other_arguments_are_taken_over_before_the_first_run_only(
    store: Store, clock: ManualClock, situation: str, conflict_policy: str
) -> None:
    """A job takes over payload and fingerprint of a submission that replaces it, nothing else, and never once begun."""
    before = SITUATIONS[situation](store)
    history = store.history("job-1")
    clock.advance(NOW)
    answer = again(store, conflict_policy, max_wait=0.0, **OTHERS)
    outcome = OUTCOMES[situation][conflict_policy]
    if situation == "not begun" and conflict_policy in {"replace", "run_again"}:
        assert_met(store, before, answer, Outcome.REPLACED, fingerprint="other", payload="[2]")
    elif outcome is Outcome.QUEUED_NEXT:
        assert_changed(store, before, get(store, "job-1"), duplicate_count=1)
        assert (answer.outcome, answer.job.payload) == (outcome, "[2]")
    else:
        assert_met(store, before, answer, outcome)
    assert store.history("job-1") == history


@pytest.mark.parametrize("conflict_policy", CONFLICT_POLICIES)
@pytest.mark.parametrize("event", [Transition.COMPLETE, Transition.FAIL, Transition.ABANDON, Transition.DEAD_LETTER])
def test_a_job_that_has_ended_is_in_nobodys_way(store: Store, event: Transition, conflict_policy: str) -> None:
    """Where nothing holds the identity, every submission is a new job, and the ended one stays as it is."""
    ended = end(store, run(store, identity="same"), event)
    answer = again(store, conflict_policy, **OTHERS)
    assert answer == Admission(read(store, "job-2"), Outcome.ADMITTED)
    assert holders(store, "same") == [answer.job]
    assert (read(store), store.duplicates("job-1")) == (ended, [])


@pytest.mark.parametrize("situation", BEGUN)
@pytest.mark.parametrize("conflict_policy", CONFLICT_POLICIES)
def test_a_job_that_has_begun_is_not_moved(
    store: Store, clock: ManualClock, situation: str, conflict_policy: str
) -> None:
    """Neither an earlier nor a more urgent submission moves a job that has run, although it may wait."""
    before = SITUATIONS[situation](store)
    clock.advance(NOW)
    answer = again(store, conflict_policy, delay=0.0, priority_rank=9, expires_in=3.0)
    assert not answer.rescheduled
    assert_changed(store, before, get(store, "job-1"), duplicate_count=1)


# --- pulled forward -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("conflict_policy", ["attach", "replace", "run_again"])
@pytest.mark.parametrize(("delay", "rings"), [(30.0, 40.0), (89.5, 99.5), (0.0, 10.0 + LEASE)])
def test_an_earlier_submission_pulls_a_job_forward(
    store: Store, clock: ManualClock, delay: float, rings: float, conflict_policy: str, other: bool
) -> None:
    """A job that waits is due when the most impatient wants it; its alarm rings then, or after `wake_in` if it is."""
    before = submit(store, identity="same", delay=100.0)
    clock.advance(10.0)
    answer = again(store, conflict_policy, delay=delay, **(OTHERS if other else {}))
    takes_over = other and conflict_policy != "attach"
    columns = {"fingerprint": "other", "payload": "[2]"} if takes_over else {}
    outcome = Outcome.REPLACED if takes_over else Outcome.ATTACHED
    assert_met(store, before, answer, outcome, run_at=START + 10.0 + delay, wake_at=START + rings, **columns)


def test_a_job_that_was_pulled_forward_can_be_claimed(store: Store, clock: ManualClock) -> None:
    """A job is claimed when its new moment has come, and not before."""
    submit(store, identity="same", delay=100.0)
    again(store, delay=30.0)
    clock.advance(29.5)
    assert not claim(store).applied
    clock.advance(0.5)
    assert claim(store).applied


@pytest.mark.parametrize("conflict_policy", ["attach", "run_again"])
@pytest.mark.parametrize("delay", [90.0, 90.5, 5000.0])
def test_a_later_submission_does_not_put_a_job_off(
    store: Store, clock: ManualClock, delay: float, conflict_policy: str
) -> None:
    """Who wants a job at the same time or later does not move it."""
    before = submit(store, identity="same", delay=100.0)
    clock.advance(10.0)
    assert_met(store, before, again(store, conflict_policy, delay=delay), Outcome.ATTACHED)


@pytest.mark.parametrize(("delay", "rings"), [(100.0, 100.0), (0.0, 10.0 + LEASE)])
@pytest.mark.parametrize("conflict_policy", ["attach", "replace", "run_again"])
def test_urgency_only_grows(store: Store, clock: ManualClock, conflict_policy: str, delay: float, rings: float) -> None:
    """A job has the urgency of the most urgent, which moves it; who has as much or less of it does not."""
    before = submit(store, identity="same", delay=delay, priority_rank=4)
    clock.advance(10.0)
    for number, priority_rank in enumerate((4, 0, -1)):
        answer = again(
            store, conflict_policy, f"other-{number}", delay=delay, priority_rank=priority_rank, max_wait=0.0
        )
        assert_met(store, before, answer, Outcome.ATTACHED)
        before = answer.job
    answer = again(store, conflict_policy, delay=delay, priority_rank=5, max_wait=0.0)
    assert_met(store, before, answer, Outcome.ATTACHED, priority_rank=5, wake_at=START + rings)


def test_who_refuses_moves_nothing(store: Store, clock: ManualClock) -> None:
    """A submission that wants nothing of a job in its way does not pull it forward, either."""
    before = submit(store, identity="same", delay=100.0, expires_in=200.0)
    answer = again(store, "raise", delay=0.0, priority_rank=9, expires_in=50.0, **OTHERS)
    assert_met(store, before, answer, Outcome.REJECTED)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_to_refuse_goes_first(store: Store, situation: str) -> None:
    """A submission that refuses is rejected by whatever is in its way, although it wants other things as well."""
    before = SITUATIONS[situation](store)
    assert_met(store, before, again(store, "run_again", rejects=True, **OTHERS), Outcome.REJECTED)


@pytest.mark.parametrize("conflict_policy", ["attach", "replace"])
def test_an_alarm_never_rings_after_the_expiry(store: Store, clock: ManualClock, conflict_policy: str) -> None:
    """A job that is pulled forward is looked at when it expires at the latest."""
    submit(store, identity="same", delay=100.0, expires_in=50.0)
    job = again(store, conflict_policy, delay=40.0).job
    assert (job.run_at, job.wake_at) == (START + 40.0, START + 40.0)
    clock.advance(40.0)
    job = again(store, conflict_policy, "job-3", delay=0.0, priority_rank=1, max_wait=0.0).job
    assert (job.run_at, job.wake_at) == (START + 40.0, START + 50.0)


# --- put off --------------------------------------------------------------------------------------------------------


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
def test_a_job_is_put_off_to_its_longest_wait(
    store: Store, clock: ManualClock, first: float, delay: float, due: float, other: bool
) -> None:
    """`max_wait` puts a job off to so many seconds after its submission; what waits longer by itself goes no later."""
    before = submit(store, identity="same", delay=first)
    clock.advance(5.0)
    answer = again(store, "replace", delay=delay, max_wait=60.0, **(OTHERS if other else {}))
    columns = {"fingerprint": "other", "payload": "[2]"} if other else {}
    rescheduled = {"run_at": START + due, "wake_at": START + due} if due != first else {}
    assert_met(store, before, answer, Outcome.REPLACED if other else Outcome.ATTACHED, **columns, **rescheduled)


def test_submissions_that_keep_coming_put_a_job_off_once(store: Store, clock: ManualClock) -> None:
    """However long others keep coming, the job runs after its longest wait, with the arguments that came last."""
    submit(store, identity="same", delay=15.0)
    for number in range(5):
        clock.advance(10.0)
        job = again(store, "replace", f"late-{number}", delay=15.0, payload=str(number), fingerprint=str(number)).job
        assert job.run_at == START + min(10.0 * (number + 1) + 15.0, 60.0)
    clock.advance(9.5)
    assert not claim(store).applied
    clock.advance(0.5)
    assert start(store).payload == "4"


def test_a_job_that_is_overdue_is_not_put_off(store: Store, clock: ManualClock) -> None:
    """After its longest wait a job that nobody has taken yet stays due."""
    submit(store, identity="same", delay=15.0)
    again(store, "replace", "late", delay=1000.0)
    clock.advance(60.0)
    before = read(store)
    assert_met(store, before, again(store, "replace", delay=15.0), Outcome.ATTACHED)
    assert claim(store).applied


# --- what is taken over ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("conflict_policy", ["replace", "run_again"])
def test_the_newest_arguments_run(store: Store, conflict_policy: str) -> None:
    """Of all the arguments that replaced each other before the first run, the newest are run."""
    submit(store, identity="same")
    for number in range(4):
        answer = again(
            store, conflict_policy, f"late-{number}", payload=str(number), fingerprint=str(number), max_wait=0.0
        )
        assert (answer.outcome, answer.job.payload) == (Outcome.REPLACED, str(number))
    job = start(store)
    assert (job.payload, job.fingerprint, job.duplicate_count, job.submission_nonce) == ("3", "3", 4, "nonce-of-job-1")
    assert again(store, conflict_policy, "too-late", payload="x", fingerprint="x").outcome is not Outcome.REPLACED
    assert read(store).payload == "3"


def test_arguments_that_are_taken_back_are_taken_over_again(store: Store) -> None:
    """A submission is compared with the arguments that the job has now, not with its first ones."""
    job = submit(store, identity="same")
    again(store, "replace", fingerprint="other", payload="[2]", max_wait=0.0)
    answer = again(store, "replace", "job-3", fingerprint=job.fingerprint, payload=job.payload, max_wait=0.0)
    assert (answer.outcome, answer.job) == (Outcome.REPLACED, replace(job, duplicate_count=2))


@pytest.mark.parametrize("expires_in", [50.0, 5000.0])
def test_an_expiry_is_taken_over_with_the_arguments(store: Store, clock: ManualClock, expires_in: float) -> None:
    """The arguments that replaced others expire when their own submission says, not when the first one did."""
    submit(store, identity="same", expires_in=100.0, delay=20.0)
    now = clock.advance(10.0)
    job = again(store, "replace", expires_in=expires_in, delay=20.0, **OTHERS).job
    assert job.expires_at == now + expires_in
    assert job.wake_at is not None
    assert job.wake_at <= job.expires_at
    clock.advance(expires_in)
    assert not claim(store).applied
    assert store.apply(change(job, Transition.EXPIRE, overdue=True)).applied


def test_an_expiry_is_taken_away_by_arguments_that_do_not_expire(store: Store, clock: ManualClock) -> None:
    """Arguments without an expiry that replace others outlive the expiry of those."""
    submit(store, identity="same", expires_in=100.0)
    job = again(store, "replace", max_wait=0.0, **OTHERS).job
    assert job.expires_at is None
    assert job.wake_at is not None
    clock.advance(1000.0)
    assert not store.apply(change(job, Transition.EXPIRE, overdue=True)).applied
    assert claim(store).applied


@pytest.mark.parametrize(("conflict_policy", "values"), [("attach", OTHERS), ("replace", {}), ("run_again", {})])
def test_an_expiry_stays_with_the_arguments(
    store: Store, clock: ManualClock, conflict_policy: str, values: dict[str, Any]
) -> None:
    """Who does not replace the arguments of a job does not change when they expire."""
    before = submit(store, identity="same", expires_in=100.0)
    answer = again(store, conflict_policy, expires_in=5000.0, max_wait=0.0, **values)
    assert_met(store, before, answer, Outcome.ATTACHED)


# --- followers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("conflict_policy", CONFLICT_POLICIES)
def test_a_follower_follows_the_job_that_answers(store: Store, situation: str, conflict_policy: str) -> None:
    """A duplicate that must end under its own id follows whichever job serves it; a job of its own, or none, nobody."""
    SITUATIONS[situation](store)
    answer = again(store, conflict_policy, follows=True, max_wait=0.0, **OTHERS)
    if answer.outcome in {Outcome.QUEUED_NEXT, Outcome.REJECTED}:
        assert answer.follower is None
    else:
        assert answer.follower == read(store, "job-2")
        assert (answer.follower.follows_id, answer.job.id) == ("job-1", "job-1")
        assert events(store, "job-2") == ["follow"]


def test_a_follower_follows_the_job_that_is_queued_next(store: Store) -> None:
    """A duplicate that the next run serves ends with that run."""
    run(store, identity="same")
    queue_next(store)
    answer = again(store, "run_again", "job-3", follows=True)
    assert (answer.outcome, answer.job.id) == (Outcome.ATTACHED, "job-2")
    assert answer.follower == read(store, "job-3")
    assert answer.follower.follows_id == "job-2"


# --- all stores have one rule ---------------------------------------------------------------------------------------


def _expected(job: Job, new: Submission, now: float) -> Job:
    """Return what the rule makes of a job that waits, with its alarm."""
    met = resolve(job, new, now=now)
    after = replace(job, duplicate_count=job.duplicate_count + 1, run_at=met.run_at, priority_rank=met.priority_rank)
    if met.reschedules(job):
        after = replace(after, wake_at=met.run_at if met.run_at > now else now + LEASE)
    return replace(after, fingerprint=new.fingerprint, payload=new.payload) if met.takes_over else after


def test_a_store_does_as_the_rule_says(store: Store, clock: ManualClock) -> None:
    """However delays, longest waits, urgencies and arguments are combined, every store does what `resolve` says."""
    combinations = itertools.product((0.0, 20.0), (0.0, 15.0, 25.0, 70.0), (0.0, 10.0, 30.0, 100.0), (0.0, 5.0, 60.0))
    for number, (first, passed, delay, max_wait) in enumerate(combinations):
        job = submit(store, f"job-{number}", identity=str(number), delay=first, priority_rank=2)
        now = clock.advance(passed)
        new = submission(
            f"late-{number}", identity=str(number), delay=delay, max_wait=max_wait, priority_rank=number % 4,
            replaces=number % 3 > 0, payload="[2]", fingerprint="other" if number % 5 else job.fingerprint,
        )  # fmt: skip
        met, expected = resolve(job, new, now=now), _expected(job, new, now)
        assert submit_one(store, new, wake_in=LEASE) == Admission(
            expected, met.outcome, rescheduled=met.reschedules(job)
        ), new
        assert read(store, job.id) == expected


def test_a_submission_touches_no_other_identity(store: Store, clock: ManualClock) -> None:
    """What is wanted of one job is not done to another, however equal they are."""
    others = [submit(store, f"other-{number}", delay=100.0) for number in range(3)]
    submit(store, identity="same", delay=100.0)
    again(store, "replace", delay=0.0, priority_rank=9, **(OTHERS | REPLACE))
    assert [read(store, job.id) for job in others] == others
