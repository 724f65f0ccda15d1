"""Windows: how long a completed job keeps its identity, to the moment, and who gets it afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Outcome, Retention
from onejob.jobs.policy import DAY
from onejob.jobs.transitions import DST_SHIFT
from onejob.ledger.ledger import Ledger
from onejob.ledger.sweep import sweep
from tests.contract.processes import race
from tests.contract.support import (
    LEASE,
    START,
    ManualClock,
    StoreAddress,
    assert_legal,
    change,
    events,
    get,
    holders,
    read,
    run,
    start,
    submission,
    untouched,
)

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from onejob.stores.protocol import Store
    from tests.contract.processes import Seat

WEEK = 7 * DAY


def succeed(store: Store, job_id: str = "job-1", *, keep: Retention | None = None) -> Job:
    """Have a job of the identity "same" succeed."""
    return Ledger(store).complete(run(store, job_id, identity="same"), '"done"', keep=keep)


def ask(ledger: Ledger, job_id: str = "job-2", **values: object) -> tuple[Outcome, str]:
    """Submit an equal job; return the outcome and who answers."""
    admission = ledger.submit(submission(job_id, identity="same", **values))
    return admission.outcome, admission.job.id


def test_a_success_answers_for_a_while(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """While the window lasts, an equal submission is replayed: it gets the completed job with its result."""
    done = succeed(store, keep=Retention(identity_for=60.0))
    assert (done.holds_identity, done.identity_until) == (True, START + 60.0)
    clock.advance(59.9)
    admission = ledger.submit(submission("job-2", identity="same"))
    assert (admission.outcome, admission.job.id, admission.job.result) == (Outcome.REPLAYED, "job-1", '"done"')
    assert (read(store).duplicate_count, get(store, "job-2")) == (1, None)


def test_a_window_ends_to_the_moment(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """At the end of the window, before any sweep, an equal submission is admitted, and one job holds the identity."""
    succeed(store, keep=Retention(identity_for=60.0))
    clock.advance(60.0)
    assert ask(ledger) == (Outcome.ADMITTED, "job-2")
    assert [job.id for job in holders(store, "same")] == ["job-2"]
    assert events(store)[-1] == "release_identity"
    assert_legal(store.history("job-1"), read(store))


def test_a_window_can_end_at_a_moment(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A window that is told as a moment ends then, whenever the job succeeded; a moment that is past keeps nothing."""
    succeed(store, keep=Retention(identity_until=START + 10.0))
    clock.advance(9.0)
    assert ask(ledger) == (Outcome.REPLAYED, "job-1")
    clock.advance(1.0)
    assert ask(ledger) == (Outcome.ADMITTED, "job-2")
    ledger.complete(start(store, "job-2"), "2", keep=Retention(identity_until=START))
    assert ask(ledger, "job-3") == (Outcome.ADMITTED, "job-3")


def test_without_a_window_a_success_answers_nobody(ledger: Ledger, store: Store) -> None:
    """A success that keeps nothing gives its identity back at once."""
    done = succeed(store)
    assert (done.holds_identity, done.identity_until) == (False, None)
    assert ask(ledger) == (Outcome.ADMITTED, "job-2")


@pytest.mark.parametrize("event", [Transition.FAIL, Transition.ABANDON])
def test_other_ends_free_the_identity_at_once(ledger: Ledger, store: Store, event: Transition) -> None:
    """Failure and cancellation free the identity, also of a task with a window."""
    job = run(store, identity="same")
    ledger.fail(job, "{}", "no") if event is Transition.FAIL else ledger.abandon(job, "canceled")
    assert ask(ledger) == (Outcome.ADMITTED, "job-2")


def test_a_replay_reaches_a_follower(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A duplicate that must end under its own id, and meets a success, is told to the next sweep at once."""
    succeed(store, keep=Retention(identity_for=60.0))
    assert ask(ledger, follows=True) == (Outcome.REPLAYED, "job-1")
    follower = read(store, "job-2")
    assert (follower.follows_id, follower.wake_at) == ("job-1", START)


def test_a_repeated_follower_is_told_what_it_was_told(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A submission that was attached to a running job is attached, too, when it is repeated after that success."""
    job = run(store, identity="same")
    assert ask(ledger, follows=True) == (Outcome.ATTACHED, "job-1")
    clock.advance(1.0)
    ledger.complete(job, "1", keep=Retention(identity_for=60.0))
    assert ask(ledger, follows=True) == (Outcome.ATTACHED, "job-1")
    assert ask(ledger, "job-3", follows=True) == (Outcome.REPLAYED, "job-1")


def test_a_purge_ends_a_window(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A completed job with a window is purged an hour after its retention, for long days, and the identity is free."""
    succeed(store, keep=Retention(identity_for=DAY))
    clock.advance(DAY)
    assert sweep(ledger, lambda job: None).purged == 0
    clock.advance(DST_SHIFT)
    assert sweep(ledger, lambda job: None).purged == 1
    assert get(store, "job-1") is None
    assert ask(ledger) == (Outcome.ADMITTED, "job-2")


def test_a_run_can_give_its_identity_back(ledger: Ledger, store: Store) -> None:
    """A run that frees its identity goes on; an equal job is admitted beside it, and neither end harms the other."""
    first = ledger.release_identity(run(store, identity="same"))
    assert (first.state, first.holds_identity) == (State.RUNNING, False)
    assert ask(ledger) == (Outcome.ADMITTED, "job-2")
    with untouched(store, "job-2"):
        done = ledger.complete(first, "1", keep=Retention(identity_for=60.0))
    assert (done.holds_identity, [job.id for job in holders(store, "same")]) == (False, ["job-2"])


def test_only_the_run_frees_its_identity(ledger: Ledger, store: Store) -> None:
    """A run that was overtaken cannot free the identity of the run after it."""
    late = run(store, identity="same")
    ledger.crash(late, "its worker died", "{}")
    start(store)
    assert not store.apply(change(late, Transition.RELEASE_IDENTITY, token=late.token, keeps_identity=False)).applied
    assert ask(ledger) == (Outcome.ATTACHED, "job-1")


def test_a_window_outlives_the_telling_of_a_canvas(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """That a canvas has been told changes nothing about the window."""
    job = run(store, identity="same", canvas=True)
    ledger.mark_canvas_notified(ledger.complete(job, "1", keep=Retention(identity_for=60.0)))
    clock.advance(LEASE)
    assert ask(ledger) == (Outcome.REPLAYED, "job-1")
    assert read(store).wake_at == START + DAY + DST_SHIFT


def test_a_new_window_begins_with_each_success(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """The windows of an identity follow each other: each success answers for its own."""
    for number in range(3):
        assert ask(ledger, f"job-{number}") == (Outcome.ADMITTED, f"job-{number}")
        ledger.complete(start(store, f"job-{number}"), "1", keep=Retention(identity_for=60.0))
        clock.advance(30.0)
        assert ask(ledger, "late") == (Outcome.REPLAYED, f"job-{number}")
        clock.advance(30.0)


def ask_in_rounds(seat: Seat, rounds: int) -> list[str]:
    """Submit one equal job per round, at the same moment as the others, when the window of the last is just over."""
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
    """When many ask at the moment at which a window is over, one is admitted, each time."""
    admitted = [job_id for answers in race(store_address, 4, ask_in_rounds, 20) for job_id in answers]
    assert sorted(job_id.split("-")[1] for job_id in admitted) == sorted(str(number) for number in range(20))
    assert len(holders(store, "same")) == 1
