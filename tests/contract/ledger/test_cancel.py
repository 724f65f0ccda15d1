"""Cancel: at once before a run, by a request during a run, never after the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import RULES, State, Transition
from onejob.jobs.model import Cancel, Renewal
from onejob.jobs.policy import DAY
from onejob.ledger.ledger import Ledger
from tests.contract.support import (
    LEASE,
    START,
    ManualClock,
    after,
    apply,
    assert_changed,
    end,
    events,
    read,
    run,
    start,
    steps_to,
    submission,
    submit,
    submit_one,
    sweep,
    untouched,
)

if TYPE_CHECKING:
    from onejob.stores.protocol import Store


@pytest.mark.parametrize("state", [State.QUEUED, State.RETRYING])
@pytest.mark.parametrize("force", [False, True])
def test_a_waiting_job_is_canceled_at_once(
    ledger: Ledger, store: Store, clock: ManualClock, state: State, force: bool
) -> None:
    """Before a run, a cancellation ends the job: it frees the identity, and the job is purged after its retention."""
    job = steps_to(store, "job-1", state)
    now = clock.advance(1.0)
    after = ledger.cancel("job-1", force=force, reason="not needed")
    assert_changed(
        store,
        job,
        after,
        state=State.CANCELED,
        holds_identity=False,
        finished_at=now,
        wake_at=now + DAY,
        reason="not needed",
    )
    assert store.history("job-1")[-1].detail == "not needed"
    assert submit(store, "job-2", identity=job.identity).id == "job-2"


def test_the_canvas_of_a_canceled_job_is_notified_at_once(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """If a canvas waits for a job that is canceled before a run, the job is due at once, so a sweep notifies it."""
    submit(store, canvas=True)
    now = clock.advance(1.0)
    assert ledger.cancel("job-1").wake_at == now


@pytest.mark.parametrize(("force", "requested"), [(False, Cancel.ASKED), (True, Cancel.FORCED)])
def test_a_running_job_gets_a_cancel_request(
    ledger: Ledger, store: Store, clock: ManualClock, force: bool, requested: Cancel
) -> None:
    """A running job keeps its state, lease and identity: the cancellation is requested, as the history shows."""
    job = run(store)
    clock.advance(1.0)
    assert_changed(store, job, ledger.cancel("job-1", force=force, reason="not needed"), cancel=requested)
    entry = store.history("job-1")[-1]
    assert (entry.event, entry.state, entry.detail) == ("request_cancel", State.RUNNING, "not needed")


def test_a_heartbeat_returns_the_cancel_request(ledger: Ledger, store: Store) -> None:
    """The next heartbeat of a node returns the cancel requests of its runs."""
    job = run(store)
    ledger.cancel("job-1")
    assert ledger.renew([(job.id, job.claim)]) == [Renewal(job.id, job.claim, held=True, cancel=Cancel.ASKED)]


def test_a_request_can_be_made_stronger(ledger: Ledger, store: Store) -> None:
    """A request to stop can be followed by force."""
    run(store)
    ledger.cancel("job-1")
    assert ledger.cancel("job-1", force=True).cancel is Cancel.FORCED


def test_a_request_is_not_made_weaker(ledger: Ledger, store: Store) -> None:
    """A later, weaker request does not replace requested force."""
    run(store)
    ledger.cancel("job-1", force=True)
    assert ledger.cancel("job-1").cancel is Cancel.FORCED
    assert read(store).cancel is Cancel.FORCED


def test_a_heartbeat_returns_the_strongest_request(ledger: Ledger, store: Store) -> None:
    """After force has been requested, the next heartbeat returns force, whatever is requested later."""
    job = run(store)
    for force in (False, True, False):
        ledger.cancel("job-1", force=force)
    assert ledger.renew([(job.id, job.claim)])[0].cancel is Cancel.FORCED


@pytest.mark.parametrize("event", [Transition.COMPLETE, Transition.FAIL, Transition.ABANDON, Transition.DEAD_LETTER])
def test_an_ended_job_stays_as_it_is(ledger: Ledger, store: Store, event: Transition) -> None:
    """A cancellation of a job that has ended returns the job and changes nothing."""
    ended = end(store, run(store), event)
    with untouched(store):
        assert ledger.cancel("job-1", force=True) == ended


def test_a_job_is_canceled_once(ledger: Ledger, store: Store) -> None:
    """A second cancellation finds that the job has ended."""
    submit(store)
    first = ledger.cancel("job-1", reason="first")
    with untouched(store):
        assert ledger.cancel("job-1", reason="second") == first


@pytest.mark.parametrize("force", [False, True])
def test_a_job_that_is_claimed_meanwhile_gets_a_cancel_request(store: Store, clock: ManualClock, force: bool) -> None:
    """If a waiting job is claimed during its cancellation, the cancellation is requested of the run."""
    submit(store)
    job = Ledger(after(store, "get_many", lambda: start(store))).cancel("job-1", force=force)
    assert (job.state, job.cancel) == (State.RUNNING, Cancel.FORCED if force else Cancel.ASKED)
    assert read(store) == job


@pytest.mark.parametrize("event", [Transition.RELEASE, Transition.RETRY, Transition.CRASH])
def test_a_job_that_is_released_meanwhile_is_canceled(store: Store, clock: ManualClock, event: Transition) -> None:
    """If a running job is released during its cancellation, the job is canceled at once."""
    job = run(store)
    canceled = Ledger(after(store, "get_many", lambda: apply(store, job, event))).cancel("job-1")
    assert (canceled.state, canceled.holds_identity) == (State.CANCELED, False)
    assert read(store) == canceled


@pytest.mark.parametrize("event", [Transition.COMPLETE, Transition.FAIL, Transition.ABANDON, Transition.DEAD_LETTER])
def test_a_run_that_ends_meanwhile_has_ended(store: Store, clock: ManualClock, event: Transition) -> None:
    """If a run ends during its cancellation, the cancellation returns that end."""
    job = run(store)
    ended = Ledger(after(store, "get_many", lambda: end(store, job, event))).cancel("job-1")
    assert ended == read(store)
    assert (ended.state, ended.cancel) == (RULES[event].target, Cancel.NO)


def test_a_follower_can_be_canceled_by_itself(ledger: Ledger, store: Store) -> None:
    """The cancellation of a follower does not change the followed job."""
    run(store, identity="same")
    submit_one(store, submission("job-2", identity="same", follows=True), wake_in=LEASE)
    with untouched(store, "job-1"):
        assert ledger.cancel("job-2").state is State.CANCELED
    assert events(store, "job-2") == ["follow", "cancel"]


def test_a_cancellation_wakes_the_followers(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """The cancellation of a job makes its followers due."""
    submit(store, identity="same")
    submit_one(store, submission("job-2", identity="same", follows=True), wake_in=LEASE)
    ledger.cancel("job-1")
    assert read(store, "job-2").wake_at == START


def test_a_sweep_finishes_a_requested_cancellation(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """If a cancellation was requested and the job waits again, a sweep finishes the cancellation."""
    job = apply(store, run(store), Transition.REQUEST_CANCEL, cancel=Cancel.ASKED)
    apply(store, job, Transition.RELEASE, wake_in=1.0)
    clock.advance(1.0)
    swept = sweep(ledger, lambda job: pytest.fail(f"published {job.id}"))
    assert (swept.canceled, swept.published) == (1, 0)
    assert read(store).state is State.CANCELED
