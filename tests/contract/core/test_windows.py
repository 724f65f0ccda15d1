"""Uniqueness windows: how long a completed job keeps its identity, to the second, and which job holds it next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import State
from onejob.jobs.model import Outcome, Retention
from onejob.jobs.policy import DAY
from onejob.jobs.transitions import DST_SHIFT
from onejob.ledger.ledger import Ledger
from tests.contract.processes import race
from tests.contract.support import (
    START,
    ManualClock,
    StoreAddress,
    assert_legal,
    events,
    get,
    holders,
    read,
    run,
    start,
    submission,
    sweep,
    untouched,
)

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from onejob.stores.protocol import Store
    from tests.contract.processes import Seat


def complete_job(store: Store, job_id: str = "job-1", *, keep: Retention | None = None) -> Job:
    """Complete a job of the identity "same"."""
    return Ledger(store).complete(run(store, job_id, identity="same"), '"done"', keep=keep)


def submit_equal(ledger: Ledger, job_id: str = "job-2", **values: object) -> tuple[Outcome, str]:
    """Submit an equal job; return the outcome and the id of the returned job."""
    admission = ledger.submit(submission(job_id, identity="same", **values))
    return admission.outcome, admission.job.id


def test_a_duplicate_within_the_window_is_replayed(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """Within the window, an equal submission is replayed: it gets the completed job with its result."""
    done = complete_job(store, keep=Retention(identity_for=60.0))
    assert (done.holds_identity, done.identity_until) == (True, START + 60.0)
    clock.advance(59.9)
    admission = ledger.submit(submission("job-2", identity="same"))
    assert (admission.outcome, admission.job.id, admission.job.result) == (Outcome.REPLAYED, "job-1", '"done"')
    assert (read(store).duplicate_count, get(store, "job-2")) == (1, None)


def test_a_window_ends_exactly_on_time(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """At the end of the window, before any sweep, an equal submission is admitted, and one job holds the identity."""
    complete_job(store, keep=Retention(identity_for=60.0))
    clock.advance(60.0)
    assert submit_equal(ledger) == (Outcome.ADMITTED, "job-2")
    assert [job.id for job in holders(store, "same")] == ["job-2"]
    assert events(store)[-1] == "release_identity"
    assert_legal(store.history("job-1"), read(store))


def test_a_window_can_end_at_a_given_time(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A window with `identity_until` ends then, whenever the job completed; a time in the past keeps no identity."""
    complete_job(store, keep=Retention(identity_until=START + 10.0))
    clock.advance(9.0)
    assert submit_equal(ledger) == (Outcome.REPLAYED, "job-1")
    clock.advance(1.0)
    assert submit_equal(ledger) == (Outcome.ADMITTED, "job-2")
    ledger.complete(start(store, "job-2"), "2", keep=Retention(identity_until=START))
    assert submit_equal(ledger, "job-3") == (Outcome.ADMITTED, "job-3")


def test_a_follower_of_a_completed_job_is_due_at_once(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A follower that is a duplicate of a completed job is due in the next sweep."""
    complete_job(store, keep=Retention(identity_for=60.0))
    assert submit_equal(ledger, follows=True) == (Outcome.REPLAYED, "job-1")
    follower = read(store, "job-2")
    assert (follower.follows_id, follower.wake_at) == ("job-1", START)


def test_a_repeated_follower_gets_its_first_outcome(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A follower's submission that was attached to a running job is attached again when repeated after its end."""
    job = run(store, identity="same")
    assert submit_equal(ledger, follows=True) == (Outcome.ATTACHED, "job-1")
    clock.advance(1.0)
    ledger.complete(job, "1", keep=Retention(identity_for=60.0))
    assert submit_equal(ledger, follows=True) == (Outcome.ATTACHED, "job-1")
    assert submit_equal(ledger, "job-3", follows=True) == (Outcome.REPLAYED, "job-1")


def test_a_purge_ends_a_window(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A completed job with a window of days is purged an hour after its retention, which releases its identity."""
    complete_job(store, keep=Retention(identity_for=DAY))
    clock.advance(DAY)
    assert sweep(ledger, lambda job: None).purged == 0
    clock.advance(DST_SHIFT)
    assert sweep(ledger, lambda job: None).purged == 1
    assert get(store, "job-1") is None
    assert submit_equal(ledger) == (Outcome.ADMITTED, "job-2")


def test_a_run_can_release_its_identity(ledger: Ledger, store: Store) -> None:
    """A run that releases its identity continues; an equal job is admitted, and neither end changes the other job."""
    first = ledger.release_identity(run(store, identity="same"))
    assert (first.state, first.holds_identity) == (State.RUNNING, False)
    assert submit_equal(ledger) == (Outcome.ADMITTED, "job-2")
    with untouched(store, "job-2"):
        done = ledger.complete(first, "1", keep=Retention(identity_for=60.0))
    assert (done.holds_identity, [job.id for job in holders(store, "same")]) == (False, ["job-2"])


def submit_in_rounds(seat: Seat, rounds: int) -> list[str]:
    """Submit one equal job per round, at the same time as the others, when the previous window is just over."""
    admitted = []
    with seat.address.opened() as store:
        ledger = Ledger(store)
        for number in range(rounds):
            seat.ready()
            admission = ledger.submit(submission(f"job-{number}-{seat.number}", identity="same"))
            if admission.outcome is Outcome.ADMITTED:
                admitted.append(admission.job.id)
            seat.ready()
            if admission.outcome is Outcome.ADMITTED:
                ledger.complete(start(store, admission.job.id), "1", keep=Retention(identity_until=1.0))
    return admitted


def test_one_of_many_is_admitted_after_a_window(store_address: StoreAddress, store: Store) -> None:
    """Of many submissions at the end of a window, exactly one is admitted, in each round."""
    admitted = [job_id for answers in race(store_address, 4, submit_in_rounds, 20) for job_id in answers]
    assert sorted(job_id.split("-")[1] for job_id in admitted) == sorted(str(number) for number in range(20))
    assert len(holders(store, "same")) == 1
