"""Redrive: a dead letter is queued again under its id, if its identity is free."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.errors import IdentityHeldError, JobNotFoundError, NoDeadLetterError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Cancel, Retention
from onejob.jobs.policy import DAY, Policy
from onejob.jobs.records import Query
from onejob.ledger.ledger import Ledger
from tests.contract.support import (
    LEASE,
    UNKNOWN,
    ManualClock,
    after,
    apply,
    assert_legal,
    claim,
    end,
    get,
    holders,
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
    from onejob.jobs.model import Job
    from onejob.stores.protocol import Store


def fail(store: Store, job_id: str = "job-1", **values: object) -> Job:
    """Store a step of a job, and fail the job."""
    job = run(store, job_id, **values)
    Ledger(store).keep_step(job, "one", "1")
    return Ledger(store).fail(job, '{"type": "E", "message": "", "traceback": ""}', "E: no")


def test_a_dead_letter_is_queued_again(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A redriven job waits like a new one: it holds its identity, is due at once, and has no end."""
    failed = fail(store, retries=3)
    now = clock.advance(100.0)
    job = ledger.redrive("job-1")
    assert (job.id, job.state, job.holds_identity) == ("job-1", State.QUEUED, True)
    assert (job.run_at, job.wake_at, job.finished_at, job.lease_until) == (now, now, None, None)
    assert (job.result, job.error, job.retries, job.crashes, job.published) == (None, None, 0, 0, 0)
    assert (job.attempt, job.token, job.payload) == (1, failed.token, failed.payload)
    assert holders(store, job.identity) == [job] == [read(store)]


def test_a_redriven_job_runs_and_ends(ledger: Ledger, store: Store) -> None:
    """A redriven job is published by the next sweep, runs under a larger token and can complete."""
    failed = fail(store)
    ledger.redrive("job-1")
    published: list[str] = []
    sweep(ledger, lambda job: published.append(job.id))
    job = start(store)
    assert (published, job.attempt, job.token > failed.token) == (["job-1"], 2, True)
    done = ledger.complete(job, '"at last"')
    assert (done.state, done.result, done.holds_identity) == (State.COMPLETED, '"at last"', False)
    assert_legal(store.history("job-1"), done)


@pytest.mark.parametrize("forget", [False, True])
def test_steps_are_kept_by_default(ledger: Ledger, store: Store, forget: bool) -> None:
    """A redriven job keeps its steps, unless the redrive deletes them."""
    fail(store)
    ledger.redrive("job-1", forget_steps=forget)
    assert store.steps("job-1") == ({} if forget else {"one": "1"})


def test_a_live_job_prevents_a_redrive(ledger: Ledger, store: Store) -> None:
    """While another job holds the identity a redrive is refused, and the error names that job."""
    fail(store, identity="same")
    submit(store, "job-2", identity="same")
    with untouched(store, "job-1", "job-2"), pytest.raises(IdentityHeldError) as caught:
        ledger.redrive("job-1")
    assert (caught.value.holder_id, caught.value.holder_state) == ("job-2", State.QUEUED)
    end(store, start(store, "job-2"))
    assert ledger.redrive("job-1").holds_identity


def test_a_window_that_is_over_prevents_no_redrive(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A completed job that holds the identity refuses a redrive within its uniqueness window, and releases it after."""
    fail(store, identity="same")
    ledger.complete(run(store, "job-2", identity="same"), "1", keep=Retention(identity_for=60.0))
    clock.advance(59.0)
    with untouched(store, "job-1", "job-2"), pytest.raises(IdentityHeldError) as caught:
        ledger.redrive("job-1")
    assert (caught.value.holder_id, caught.value.holder_state) == ("job-2", State.COMPLETED)
    clock.advance(1.0)
    assert ledger.redrive("job-1") == read(store) == holders(store, "same")[0]
    assert not read(store, "job-2").holds_identity
    for job_id in ("job-1", "job-2"):
        assert_legal(store.history(job_id), read(store, job_id))


def test_an_equal_submission_is_attached_to_a_redriven_job(ledger: Ledger, store: Store) -> None:
    """After a redrive an equal submission is attached to the redriven job."""
    fail(store, identity="same")
    ledger.redrive("job-1")
    assert ledger.submit(submission("job-2", identity="same")).job.id == "job-1"


@pytest.mark.parametrize("state", sorted(set(State) - {State.FAILED}))
def test_only_dead_letters_are_redriven(ledger: Ledger, store: Store, state: State) -> None:
    """The redrive of a job that has not failed is refused, and the error has its state."""
    steps_to(store, "job-1", state)
    with untouched(store), pytest.raises(NoDeadLetterError) as caught:
        ledger.redrive("job-1")
    assert caught.value.state == state


def test_an_unknown_job_is_not_redriven(ledger: Ledger) -> None:
    """The redrive of an unknown id raises `JobNotFoundError`."""
    for act in (ledger.redrive, ledger.drop):
        with pytest.raises(JobNotFoundError):
            act(UNKNOWN)


def test_a_job_is_redriven_once(ledger: Ledger, store: Store) -> None:
    """Of two concurrent redrives of a job, one succeeds, and the other is refused."""
    fail(store)
    raced = Ledger(after(store, "get_many", lambda: ledger.redrive("job-1")))
    with pytest.raises(NoDeadLetterError):
        raced.redrive("job-1")
    assert [entry.event for entry in store.history("job-1")].count("redrive") == 1


def test_a_redriven_follower_runs_by_itself(ledger: Ledger, store: Store) -> None:
    """A follower that failed with the followed job runs by itself after its redrive."""
    followed = run(store, identity="same")
    submit_one(store, submission("job-2", identity="same", follows=True), wake_in=LEASE)
    ledger.fail(followed, "{}", "no")
    ledger.fail(start(store, "job-2"), "{}", "the followed job failed")
    assert ledger.redrive("job-2").follows_id is None
    assert claim(store, "job-2").applied


def test_a_redrive_clears_the_cancel_request(ledger: Ledger, store: Store) -> None:
    """A cancellation that was requested before the redrive does not cancel the redriven job."""
    job = run(store)
    apply(store, job, Transition.REQUEST_CANCEL, cancel=Cancel.ASKED)
    ledger.fail(job, "{}", "no")
    ledger.redrive("job-1")
    assert claim(store).applied


def test_the_canvas_is_notified_again(ledger: Ledger, store: Store) -> None:
    """A redriven job notifies its canvas of the new end, if the redrive says that a canvas waits."""
    ledger.mark_canvas_notified(fail(store, canvas=True))
    assert ledger.redrive("job-1", canvas=True).canvas_pending
    fail(store, "job-2")
    assert not ledger.redrive("job-2").canvas_pending


def test_a_redrive_resets_the_crash_count(store: Store, clock: ManualClock) -> None:
    """A job that failed at the crash limit may crash as often again after its redrive."""
    ledger = Ledger(store, Policy(crash_limit=2))
    for _ in range(2):
        submit(store) if get(store, "job-1") is None else ledger.redrive("job-1")
        for _ in range(2):
            ledger.crash(start(store), "its worker died", "{}")
        assert read(store).state is State.FAILED


def test_a_redriven_job_is_not_purged(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """The redrive cancels the retention of the first end."""
    fail(store)
    ledger.redrive("job-1")
    clock.advance(14 * DAY)
    sweep(ledger, lambda job: None)
    assert read(store).state is State.QUEUED


def test_a_dead_letter_can_be_dropped(ledger: Ledger, store: Store) -> None:
    """A dropped dead letter is deleted; a job that has not failed is not dropped."""
    fail(store)
    run(store, "job-2")
    ledger.drop("job-1")
    assert get(store, "job-1") is None
    with untouched(store, "job-2"), pytest.raises(NoDeadLetterError):
        ledger.drop("job-2")


def test_dead_letters_are_found_by_their_reason(ledger: Ledger, store: Store) -> None:
    """A listing can be filtered by a text in the reason, in upper or lower case."""
    for number, reason in enumerate(["ValueError: no", "KeyError: 'x'", "valueerror again", "100% wrong_"]):
        ledger.fail(run(store, f"job-{number}"), "{}", reason)
    failed = frozenset({State.FAILED})
    assert [job.id for job in store.find(Query(states=failed, reason="ValueError"))] == ["job-2", "job-0"]
    assert [job.id for job in store.find(Query(reason="% wrong_"))] == ["job-3"]
    assert store.find(Query(reason="nothing like it")) == []
