"""Apply: one compare-and-set. What each field sets, that None changes nothing, and each condition that refuses."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from onejob.jobs.lifecycle import RULES, State, Transition
from onejob.jobs.model import Applied, Cancel
from tests.cases import for_each
from tests.contract.support import (
    LEASE,
    RUNNING,
    UNKNOWN,
    ManualClock,
    apply,
    assert_changed,
    change,
    end,
    get,
    read,
    run,
    start,
    steps_to,
    submit,
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


@pytest.mark.parametrize("values", [VALUES, OTHER_VALUES])
def test_a_change_sets_every_field_that_it_names(store: Store, values: dict[str, Any]) -> None:
    """One change sets all the fields that it names."""
    job = apply(store, run(store), Transition.UPDATE_PROGRESS, **(VALUES if values is OTHER_VALUES else {}))
    answer = store.apply(change(job, Transition.UPDATE_PROGRESS, **values))
    assert answer.applied
    assert_changed(store, job, answer.job, **values)


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


def test_the_end_of_a_job_without_its_identity_keeps_the_next_holder(store: Store) -> None:
    """A job that has released its identity cannot release it for the next holder."""
    job = apply(store, run(store, identity="same"), Transition.UPDATE_PROGRESS, keeps_identity=False)
    holder = submit(store, "job-2", identity="same")
    end(store, job)
    assert read(store, "job-2") == holder
    assert submit(store, "job-3", identity="same").id == "job-2"


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


def test_a_stale_run_changes_nothing(store: Store, clock: ManualClock) -> None:
    """A run with a stale token cannot apply any fenced event while another run has the job."""
    stale = run(store)
    apply(store, stale, Transition.CRASH)
    clock.advance(1.0)
    current = start(store)
    for event in (e for e, rule in RULES.items() if rule.fenced and e is not Transition.RENEW):
        assert change_is_refused(store, change(stale, event))
    assert store.apply(change(current, Transition.COMPLETE)).applied


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
