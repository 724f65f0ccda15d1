"""Apply: one compare-and-set. What each field sets, that None changes nothing, and each condition that refuses."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from onejob.jobs.lifecycle import FINAL, RULES, State, Transition
from onejob.jobs.model import Applied, Cancel
from tests.cases import for_each
from tests.contract.support import (
    ANY,
    LEASE,
    RUNNING,
    START,
    UNKNOWN,
    ManualClock,
    apply,
    assert_changed,
    change,
    end,
    events,
    get,
    read,
    run,
    start,
    steps_to,
    submission,
    submit,
    submit_one,
    untouched,
)

if TYPE_CHECKING:
    from onejob.jobs.model import Change
    from onejob.stores.protocol import Store

VALUES: dict[str, Any] = {
    "payload": "[7]", "options": "[8]", "retries": 3, "crashes": 2, "published": 4, "cancel": Cancel.FORCED,
    "canvas_pending": True, "result": "42", "error": '{"type": "E"}', "reason": "because",
}  # fmt: skip
OTHER_VALUES: dict[str, Any] = {
    "payload": "", "options": "", "retries": 0, "crashes": 0, "published": 0, "cancel": Cancel.NO,
    "canvas_pending": False,
    "result": "null", "error": "0", "reason": "x",
}  # fmt: skip


def change_is_refused(store: Store, change: Change) -> bool:
    """Return whether a change is refused, after checking that the refusal returns the job and changes nothing."""
    with untouched(store, change.job_id):
        answer = store.apply(change)
        assert answer.job == get(store, change.job_id)
    return not answer.applied


# --- what a change sets ---------------------------------------------------------------------------------------------


def test_a_change_that_sets_nothing_changes_nothing(store: Store, clock: ManualClock) -> None:
    """Every field that is None leaves its column as it is."""
    job = apply(store, run(store, canvas=True, expires_in=90.0), Transition.UPDATE_PROGRESS, **VALUES)
    clock.advance(1.0)
    answer = store.apply(change(job, Transition.UPDATE_PROGRESS))
    assert answer.applied
    assert_changed(store, job, answer.job)


def test_a_change_of_a_waiting_job_that_sets_nothing_changes_nothing(store: Store, clock: ManualClock) -> None:
    """Every field that is None leaves its column as it is, also before the first run."""
    job = submit(store, canvas=True, expires_in=90.0, delay=5.0, retries=2)
    clock.advance(1.0)
    answer = store.apply(change(job, Transition.PUBLISH))
    assert answer.applied
    assert_changed(store, job, answer.job)


@pytest.mark.parametrize("values", [VALUES, OTHER_VALUES])
def test_a_change_sets_every_field_that_it_names(store: Store, values: dict[str, Any]) -> None:
    """One change sets all the fields that it names."""
    job = apply(store, run(store), Transition.UPDATE_PROGRESS, **(VALUES if values is OTHER_VALUES else {}))
    answer = store.apply(change(job, Transition.UPDATE_PROGRESS, **values))
    assert answer.applied
    assert_changed(store, job, answer.job, **values)


@pytest.mark.parametrize("name", VALUES)
def test_a_change_sets_one_field_alone(store: Store, name: str) -> None:
    """A change sets only the field that it names, and can reset it to nothing, zero or false."""
    job = run(store)
    after = apply(store, job, Transition.UPDATE_PROGRESS, **{name: VALUES[name]})
    assert_changed(store, job, after, **{name: VALUES[name]})
    back = apply(store, after, Transition.UPDATE_PROGRESS, **{name: OTHER_VALUES[name]})
    assert_changed(store, after, back, **{name: OTHER_VALUES[name]})


@pytest.mark.parametrize("name", VALUES)
def test_a_change_keeps_the_fields_that_it_does_not_name(store: Store, name: str) -> None:
    """A value from an earlier change stays after a change of state that does not name it."""
    job = apply(store, run(store), Transition.UPDATE_PROGRESS, **{name: VALUES[name]})
    after = apply(store, job, Transition.RETRY)
    assert getattr(after, name) == getattr(job, name) == VALUES[name]


@pytest.mark.parametrize("delay", [0.0, 10.0])
def test_run_in_sets_run_at(store: Store, clock: ManualClock, delay: float) -> None:
    """`run_in` counts from now on the store's clock."""
    job = run(store)
    now = clock.advance(3.0)
    assert_changed(store, job, apply(store, job, Transition.UPDATE_PROGRESS, run_in=delay), run_at=now + delay)


@pytest.mark.parametrize("delay", [0.0, 10.0])
def test_wake_in_sets_wake_at(store: Store, clock: ManualClock, delay: float) -> None:
    """`wake_in` counts from now on the store's clock."""
    job = run(store)
    now = clock.advance(3.0)
    assert_changed(store, job, apply(store, job, Transition.UPDATE_PROGRESS, wake_in=delay), wake_at=now + delay)


@pytest.mark.parametrize(("wake_in", "expected"), [(10.0, 10.0), (49.5, 49.5), (60.0, 50.0), (50.0, 50.0)])
def test_wake_at_is_no_later_than_the_expiry(store: Store, clock: ManualClock, wake_in: float, expected: float) -> None:
    """The `wake_at` of a waiting job is never after its expiry."""
    job = submit(store, expires_in=50.0, wake_in=5.0)
    assert_changed(store, job, apply(store, job, Transition.PUBLISH, wake_in=wake_in), wake_at=START + expected)


@pytest.mark.parametrize("event", [Transition.CANCEL, Transition.EXPIRE])
def test_the_wake_at_set_by_an_end_ignores_the_expiry(store: Store, clock: ManualClock, event: Transition) -> None:
    """An end sets `wake_at` by the retention, whether the expiry is in the future or in the past."""
    job = submit(store, expires_in=5.0)
    now = clock.advance(6.0)
    assert apply(store, job, event, wake_in=1000.0).wake_at == now + 1000.0


@pytest.mark.parametrize("event", [Transition.CANCEL, Transition.EXPIRE])
def test_wake_at_after_an_end_ignores_the_expiry(store: Store, clock: ManualClock, event: Transition) -> None:
    """The `wake_at` of an ended job can be set after its expiry."""
    ended = apply(store, submit(store, expires_in=5.0, canvas=True), event, wake_in=0.0)
    now = clock.advance(6.0)
    notified = apply(store, ended, Transition.CANVAS_NOTIFIED, canvas_pending=False, wake_in=1000.0)
    assert_changed(store, ended, notified, canvas_pending=False, wake_at=now + 1000.0)


@pytest.mark.parametrize("event", [Transition.RETRY, Transition.RELEASE, Transition.CRASH])
def test_a_run_that_is_requeued_gives_up_its_lease(store: Store, clock: ManualClock, event: Transition) -> None:
    """A change of state ends the lease and keeps token, claim, node, attempt and start."""
    job = run(store)
    now = clock.advance(1.0)
    after = apply(store, job, event, wake_in=8.0)
    assert_changed(store, job, after, state=RULES[event].target, lease_until=None, wake_at=now + 8.0)


@pytest.mark.parametrize("event", [Transition.COMPLETE, Transition.FAIL, Transition.ABANDON, Transition.DEAD_LETTER])
def test_the_end_of_a_run(store: Store, clock: ManualClock, event: Transition) -> None:
    """The end of a run releases the lease and the identity and sets `finished_at`."""
    job = run(store)
    now = clock.advance(1.0)
    after = apply(store, job, event, wake_in=8.0, result="1")
    assert_changed(
        store, job, after, state=RULES[event].target, holds_identity=False, lease_until=None, finished_at=now,
        wake_at=now + 8.0,
        result="1",
    )  # fmt: skip


@pytest.mark.parametrize("event", [Transition.CANCEL, Transition.EXPIRE])
def test_the_end_of_a_waiting_job(store: Store, clock: ManualClock, event: Transition) -> None:
    """An end before a run releases the identity and sets `finished_at`; the other columns stay."""
    job = submit(store, expires_in=20.0, retries=1)
    now = clock.advance(1.0)
    after = apply(store, job, event, wake_in=8.0)
    assert_changed(store, job, after, state=State.CANCELED, holds_identity=False, finished_at=now, wake_at=now + 8.0)


def test_a_change_of_an_ended_job_keeps_finished_at(store: Store, clock: ManualClock) -> None:
    """A change of an ended job leaves `finished_at` as it is."""
    ended = end(store, run(store))
    clock.advance(1.0)
    assert_changed(store, ended, apply(store, ended, Transition.CANVAS_NOTIFIED))
    assert apply(store, ended, Transition.CANVAS_NOTIFIED).finished_at == START


def test_an_end_without_wake_in_keeps_wake_at(store: Store, clock: ManualClock) -> None:
    """An end without `wake_in` leaves `wake_at` as it is."""
    job = run(store)
    assert apply(store, job, Transition.COMPLETE).wake_at == START + LEASE


def test_a_change_without_a_target_keeps_the_state_and_the_lease(store: Store, clock: ManualClock) -> None:
    """A change without a target leaves the state and the lease of a run as they are."""
    job = run(store)
    requested = apply(store, job, Transition.REQUEST_CANCEL, cancel=Cancel.ASKED)
    assert_changed(store, job, requested, cancel=Cancel.ASKED)
    assert (requested.state, requested.lease_until) == (State.RUNNING, START + LEASE)


def test_a_released_identity_is_not_taken_again(store: Store) -> None:
    """A change with `keeps_identity` does not restore an identity that the job has released."""
    job = apply(store, run(store, identity="same"), Transition.UPDATE_PROGRESS, keeps_identity=False)
    assert not job.holds_identity
    assert submit(store, "job-2", identity="same").id == "job-2"
    assert not apply(store, job, Transition.UPDATE_PROGRESS, keeps_identity=True).holds_identity
    assert not apply(store, job, Transition.COMPLETE, keeps_identity=True).holds_identity


def test_the_end_of_a_job_without_its_identity_keeps_the_next_holder(store: Store) -> None:
    """A job that has released its identity cannot release it for the next holder."""
    job = apply(store, run(store, identity="same"), Transition.UPDATE_PROGRESS, keeps_identity=False)
    holder = submit(store, "job-2", identity="same")
    end(store, job)
    assert read(store, "job-2") == holder
    assert submit(store, "job-3", identity="same").id == "job-2"


def test_a_change_changes_no_other_job(store: Store) -> None:
    """A change affects one job only."""
    job = run(store)
    run(store, "job-2")
    with untouched(store, "job-2"):
        end(store, job)


def test_a_change_is_recorded(store: Store, clock: ManualClock) -> None:
    """The history records the event of a change, its time and the resulting state."""
    job = run(store)
    now = clock.advance(1.0)
    apply(store, job, Transition.RETRY, detail="once more")
    entry = store.history("job-1")[-1]
    assert (entry.at, entry.event, entry.state, entry.attempt, entry.node, entry.detail) == (
        now, "retry", State.RETRYING, 1, "node-1", "once more",
    )  # fmt: skip


# --- conditions that refuse a change --------------------------------------------------------------------------------


def test_a_change_of_an_unknown_job_is_refused(store: Store) -> None:
    """A change of an unknown id is refused."""
    job = run(store)
    with untouched(store):
        assert store.apply(change(job, Transition.COMPLETE, job_id=UNKNOWN)) == Applied(applied=False, job=None)
    assert store.history(UNKNOWN) == []


@for_each("event, state", itertools.product([e for e in RULES if e not in {Transition.CLAIM, Transition.RENEW}], State))
def test_a_change_is_applied_in_its_sources_only(store: Store, event: Transition, state: State) -> None:
    """An event is applied in the states of its rule, and is refused in every other."""
    job = steps_to(store, f"{event}-{state}", state)
    request = change(job, event)
    if state in RULES[event].sources:
        assert store.apply(request).applied
        assert read(store, job.id).state is (RULES[event].target or state)
    else:
        assert change_is_refused(store, request)


@pytest.mark.parametrize("sources", [frozenset({State.QUEUED}), FINAL, frozenset()])
def test_the_caller_specifies_the_sources(store: Store, sources: frozenset[State]) -> None:
    """A store changes a job in the states that the caller specifies, and in no other."""
    job = run(store)
    assert change_is_refused(store, change(job, Transition.COMPLETE, sources=sources))
    assert store.apply(change(job, Transition.COMPLETE, sources=sources | RUNNING)).applied


@pytest.mark.parametrize("offset", [-1, 1, -1_000_000, 1_000_000])
def test_a_change_with_another_token_is_refused(store: Store, offset: int) -> None:
    """A fenced change is applied only with the job's token, neither an older nor a newer one."""
    job = run(store)
    assert change_is_refused(store, change(job, Transition.COMPLETE, token=job.token + offset))


def test_a_stale_run_changes_nothing(store: Store, clock: ManualClock) -> None:
    """A run with a stale token cannot apply any fenced event while another run has the job."""
    stale = run(store)
    apply(store, stale, Transition.CRASH)
    clock.advance(1.0)
    current = start(store)
    for event in (e for e, rule in RULES.items() if rule.fenced and e is not Transition.RENEW):
        assert change_is_refused(store, change(stale, event))
    assert store.apply(change(current, Transition.COMPLETE)).applied


def test_a_change_without_a_token_is_not_fenced(store: Store) -> None:
    """A change that names no token is applied whatever the job's token is."""
    job = run(store)
    assert store.apply(change(job, Transition.REQUEST_CANCEL, cancel=Cancel.ASKED)).applied


def test_token_zero_is_a_token(store: Store) -> None:
    """The token of a job that never ran is compared like any other."""
    job = submit(store)
    assert store.apply(change(job, Transition.PUBLISH, token=0)).applied
    start(store)
    assert change_is_refused(store, change(job, Transition.UPDATE_PROGRESS, token=0))


@pytest.mark.parametrize("passed", [0.0, LEASE - 0.5])
def test_a_lapse_is_refused_while_the_lease_is_valid(store: Store, clock: ManualClock, passed: float) -> None:
    """A change for a lapsed lease is refused before the lease has expired."""
    job = run(store)
    clock.advance(passed)
    assert change_is_refused(store, change(job, Transition.CRASH, lapsed=True))


@pytest.mark.parametrize("passed", [LEASE, LEASE + 100.0])
def test_a_lapse_is_accepted_once_the_lease_has_expired(store: Store, clock: ManualClock, passed: float) -> None:
    """A change for a lapsed lease is accepted from the expiry of the lease on."""
    job = run(store)
    clock.advance(passed)
    assert store.apply(change(job, Transition.CRASH, lapsed=True)).applied


def test_a_renewed_lease_has_not_lapsed(store: Store, clock: ManualClock) -> None:
    """A lapse is checked against the stored lease, not against the lease that the caller read."""
    job = run(store)
    clock.advance(LEASE)
    store.renew([(job.id, job.claim)], sources=RUNNING)
    assert change_is_refused(store, change(job, Transition.CRASH, lapsed=True))


def test_a_job_without_a_lease_does_not_lapse(store: Store, clock: ManualClock) -> None:
    """A change for a lapsed lease is refused for a job without a lease."""
    job = submit(store)
    clock.advance(LEASE * 10)
    assert change_is_refused(store, change(job, Transition.CRASH, lapsed=True, sources=ANY, token=None))


@pytest.mark.parametrize("event", [Transition.RETRY, Transition.RELEASE, Transition.COMPLETE])
def test_a_lease_that_was_given_up_does_not_lapse(store: Store, clock: ManualClock, event: Transition) -> None:
    """A run that has ended has no lease to lapse, however long ago its lease would have expired."""
    job = apply(store, run(store), event)
    clock.advance(LEASE * 10)
    assert change_is_refused(store, change(job, Transition.CRASH, lapsed=True, sources=ANY))


def test_a_crash_without_the_condition_needs_no_lapse(store: Store) -> None:
    """Without `lapsed`, a crash is applied at once."""
    assert store.apply(change(run(store), Transition.CRASH)).applied


@pytest.mark.parametrize("passed", [0.0, 9.5])
def test_an_expiry_is_refused_before_expires_at(store: Store, clock: ManualClock, passed: float) -> None:
    """A change for an overdue job is refused before the job's expiry."""
    job = submit(store, expires_in=10.0)
    clock.advance(passed)
    assert change_is_refused(store, change(job, Transition.EXPIRE, overdue=True))


@pytest.mark.parametrize("passed", [10.0, 100.0])
def test_an_expiry_is_accepted_from_expires_at_on(store: Store, clock: ManualClock, passed: float) -> None:
    """From `expires_at` on, a job is overdue."""
    job = submit(store, expires_in=10.0)
    clock.advance(passed)
    assert store.apply(change(job, Transition.EXPIRE, overdue=True)).applied


def test_a_job_without_expiry_is_never_overdue(store: Store, clock: ManualClock) -> None:
    """A change for an overdue job is refused for a job without an expiry."""
    job = submit(store)
    clock.advance(1e6)
    assert change_is_refused(store, change(job, Transition.EXPIRE, overdue=True))


def test_a_job_that_has_started_is_never_overdue(store: Store, clock: ManualClock) -> None:
    """A claim removes the expiry, also for the waits after it."""
    job = run(store, expires_in=10.0)
    job = apply(store, job, Transition.RELEASE)
    clock.advance(1e6)
    assert change_is_refused(store, change(job, Transition.EXPIRE, overdue=True))


def test_a_refusal_is_not_recorded(store: Store) -> None:
    """A refused change is not recorded in the history, and its request is refused again when repeated."""
    job = run(store)
    refusal = change(job, Transition.COMPLETE, token=1)
    assert change_is_refused(store, refusal)
    assert change_is_refused(store, refusal)
    assert events(store) == ["submit", "claim"]


def test_a_refused_end_wakes_no_follower(store: Store, clock: ManualClock) -> None:
    """The `wake_at` of a follower stays unset when the end of the followed job is refused."""
    job = run(store, identity="same")
    submit_one(store, submission("job-2", identity="same", follows=True), wake_in=LEASE)
    with untouched(store, "job-1", "job-2"):
        store.apply(change(job, Transition.COMPLETE, token=1))
