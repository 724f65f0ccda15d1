"""The ends of a run, as the ledger decides them: the columns and the `wake_at` that each sets, and the refusals."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from onejob.errors import JobCanceled, LeaseLost, StaleTokenError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Cancel, Job
from onejob.jobs.policy import DAY, Policy
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import NextRun
from tests.cases import for_each
from tests.conftest import every_store
from tests.contract.support import LEASE, apply, assert_changed, get, run, untouched

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.ledger.ledger import Ledger
    from tests.contract.ledger.world import World

End = tuple[str, "Callable[[Ledger, Job], Job]", dict[str, Any], float]


def _crash(ledger: Ledger, job: Job) -> Job:
    applied = ledger.crash(job, "killed", '"error"')
    assert applied.applied
    assert applied.job is not None
    return applied.job


AGAIN: dict[str, Any] = {"payload": "[7]", "options": "[8]", "retries": 3}
ENDS: list[End] = [
    ("complete", lambda ledger, job: ledger.complete(job, "[42]"),
     {"state": State.COMPLETED, "result": "[42]", "reason": "completed"}, DAY),
    ("fail", lambda ledger, job: ledger.fail(job, '{"type": "E"}', "it broke"),
     {"state": State.FAILED, "error": '{"type": "E"}', "reason": "it broke"}, 14 * DAY),
    ("abandon", lambda ledger, job: ledger.abandon(job, "stopped"),
     {"state": State.CANCELED, "reason": "stopped"}, DAY),
]  # fmt: skip
WAITS: list[End] = [
    ("retry", lambda ledger, job: ledger.retry(job, NextRun(**AGAIN, delay=7.0), error='"bad"', reason="again"),
     {"state": State.RETRYING, **AGAIN, "error": '"bad"', "reason": "again"}, 7.0),
    ("retry at once", lambda ledger, job: ledger.retry(job, NextRun(**AGAIN), error=None, reason="at once"),
     {"state": State.RETRYING, **AGAIN, "reason": "at once"}, LEASE),
    ("release", lambda ledger, job: ledger.release(job, "shutting down"),
     {"state": State.QUEUED, "reason": "shutting down"}, LEASE),
    ("crash", _crash, {"state": State.QUEUED, "crashes": 1, "reason": "killed"}, LEASE),
]  # fmt: skip
CALLS = [(name, call) for name, call, _, _ in ENDS + WAITS[:3]]


# --- what an end sets -----------------------------------------------------------------------------------------------


@every_store
@for_each("end, canvas", product(ENDS, [False, True]))
def test_a_run_ends(world: World, end: End, canvas: bool) -> None:
    """An end frees the identity and the lease, and is kept for its retention; a canvas is notified within a lease."""
    name, call, columns, wake_after = end
    job = world.run(f"{name}-{canvas}", canvas=canvas)
    now = world.clock.advance(2.0)
    columns |= {"holds_identity": False, "lease_until": None, "finished_at": now}
    after = call(world.ledger, job)
    assert_changed(world.store, job, after, wake_at=now + (LEASE if canvas else wake_after), **columns)
    assert world.store.history(job.id)[-1].detail == columns["reason"]


@every_store
@for_each("end, published", product(WAITS, [0, 1, 6]))
def test_a_run_ends_in_a_wait(world: World, end: End, published: int) -> None:
    """A run that ends in a wait keeps the identity, is due at its `run_at` or in one lease, and counts anew."""
    name, call, columns, wake_after = end
    job = apply(world.store, world.run(f"{name}-{published}"), Transition.UPDATE_PROGRESS, published=published)
    now = world.clock.advance(2.0)
    delay = 7.0 if name == "retry" else 0.0
    columns |= {
        "lease_until": None,
        "wake_at": now + wake_after,
        "published_at": None if delay else now,
        "published": 0,
    }
    if columns["state"] is State.RETRYING:
        columns |= {"run_at": now + delay}
    assert_changed(world.store, job, call(world.ledger, job), **columns)
    assert world.store.history(job.id)[-1].detail == columns["reason"]


@for_each("wake_after", [0.0, 4.0])
def test_a_release_can_set_an_earlier_wake_at(world: World, wake_after: float) -> None:
    """A worker that releases a job without publishing it chooses when the sweep publishes it."""
    job = world.run(f"in {wake_after}")
    now = world.clock.advance(1.0)
    after = world.ledger.release(job, "shutting down", wake_after=wake_after)
    assert (after.state, after.wake_at, after.published) == (State.QUEUED, now + wake_after, 0)
    world.clock.advance(wake_after)
    assert world.sweep().published == 1


# --- a run that is over ---------------------------------------------------------------------------------------------


def _released(world: World, job: Job) -> None:
    world.ledger.release(job, "first")


def _running_again(world: World, job: Job) -> None:
    _crash(world.ledger, job)
    world.clock.advance(1.0)
    world.start(job.id)


def _to_be_canceled(world: World, job: Job) -> None:
    apply(world.store, apply(world.store, job, Transition.REQUEST_CANCEL, cancel=Cancel.ASKED), Transition.RELEASE)


@for_each(
    "became, state, end",
    [(*each, end) for each in ((_released, "queued"), (_running_again, "running"), (_to_be_canceled, "queued"))
     for end in CALLS],
)  # fmt: skip
def test_a_run_that_is_over_is_refused(world: World, became: Any, state: str, end: Any) -> None:
    """A run that has ended, lost its lease, or whose job waits to be canceled is refused with an error, whole."""
    name, call = end
    job = world.run(f"{name} {became.__name__}")
    became(world, job)
    with untouched(world.store, job.id), pytest.raises(StaleTokenError, match=state) as caught:
        call(world.ledger, job)
    assert (caught.value.job_id, caught.value.token, caught.value.state) == (job.id, job.token, state)


@every_store
def test_a_repeated_end_of_a_run_is_recognised(world: World) -> None:
    """Each end of a run that is repeated with its request id has the same answer; with another one it is refused."""
    ledger = world.ledger
    ends: dict[str, Callable[..., Job]] = {
        "complete": partial(ledger.complete, result="1"),
        "fail": partial(ledger.fail, error='"bad"', reason="it broke"),
        "abandon": partial(ledger.abandon, reason="stopped"),
        "retry": partial(ledger.retry, next_run=NextRun(**AGAIN), error=None, reason="again"),
        "replace": partial(ledger.replace, next_run=NextRun(**AGAIN), canvas=False, reason="replaced"),
    }
    for name, end_of in ends.items():
        job = world.run(name)
        request_id = new_nonce()
        ended = end_of(job, request_id=request_id)
        with untouched(world.store, name):
            assert end_of(job, request_id=request_id) == ended
            for other in (new_nonce(), None):
                with pytest.raises(StaleTokenError):
                    end_of(job, request_id=other)


def test_the_end_of_a_purged_job_is_refused(world: World) -> None:
    """The end of a job that no longer exists is refused."""
    job = world.run()
    world.ledger.complete(job, "1")
    world.store.delete([job.id], sources=frozenset({State.COMPLETED}))
    with pytest.raises(StaleTokenError, match="deleted"):
        world.ledger.complete(job, "2")
    assert world.gone()


# --- a cancellation that was requested ------------------------------------------------------------------------------


@for_each("end", [*CALLS[3:], ("crash", _crash)])
def test_a_run_with_a_cancel_request_is_canceled_when_it_would_wait(world: World, end: Any) -> None:
    """A run with a cancel request that ends in a wait, or crashes, is canceled at once."""
    name, call = end
    job = world.run(name)
    world.ledger.cancel(name, force=True)
    after = call(world.ledger, job)
    assert (after.state, after.holds_identity) == (State.CANCELED, False)
    assert (after.finished_at, after.wake_at) == (world.clock(), world.clock() + DAY)
    assert after == world.read(name)


@for_each("end", CALLS[:3])
def test_a_run_with_a_cancel_request_may_complete_or_fail(world: World, end: Any) -> None:
    """A cancel request does not discard finished work: the run's own end is accepted."""
    name, call = end
    job = world.run(name)
    world.ledger.cancel(name)
    assert call(world.ledger, job).state.final


def test_a_run_that_must_stop_learns_it_from_its_report(world: World) -> None:
    """A report raises `JobCanceled` after a cancel request, while steps are kept, and `LeaseLost` after a crash."""
    job = world.run()
    world.ledger.report(job, "0.5")
    world.ledger.cancel("job-1")
    with pytest.raises(JobCanceled):
        world.ledger.report(job, "1")
    assert world.ledger.keep_step(job, "one", "1") == "1"
    assert (world.read().progress, world.ledger.steps(job)) == ("1", {"one": "1"})
    _crash(world.ledger, job)
    with pytest.raises(LeaseLost):
        world.ledger.report(job, "2")
    with pytest.raises(LeaseLost):
        world.ledger.keep_step(job, "two", "2")


# --- crashes --------------------------------------------------------------------------------------------------------


@for_each("limit", [1, 2, 3])
def test_a_job_at_the_crash_limit_is_dead_lettered(world: World, limit: int) -> None:
    """At the crash limit the job fails, with its error and the number of crashes; before, it is queued again."""
    ledger, job_id = world.use(Policy(crash_limit=limit)), f"job-{limit}"
    world.submit(job_id)
    for crashes in range(1, limit):
        after = _crash(ledger, world.start(job_id))
        assert (after.state, after.crashes, after.holds_identity) == (State.QUEUED, crashes, True)
    failed = _crash(ledger, world.start(job_id))
    assert (failed.state, failed.crashes, failed.holds_identity) == (State.FAILED, limit, False)
    assert (failed.error, failed.wake_at) == ('"error"', world.clock() + 14 * DAY)
    assert f"{limit} times" in failed.reason
    assert world.events(job_id)[-1] == "dead_letter"


@for_each("limit", [1, 2])
def test_the_crash_of_an_earlier_run_does_not_change_the_current_run(world: World, limit: int) -> None:
    """A late report that an earlier run crashed neither queues nor dead-letters the job of the current run."""
    ledger = world.use(Policy(crash_limit=limit))
    lost = run(world.store, job_id := f"job-{limit}")
    ledger.release(lost, "again")
    world.clock.advance(1.0)
    current = world.start(job_id)
    world.clock.advance(LEASE)
    with untouched(world.store, job_id):
        assert not ledger.crash(lost, "killed", '"error"').applied
        assert not ledger.crash(lost, "silent", '"error"', lapsed=True).applied
    assert ledger.crash(current, "killed", '"error"').applied


# --- claims ---------------------------------------------------------------------------------------------------------


@every_store
def test_a_claim_of_an_expired_job_cancels_it(world: World) -> None:
    """The claim of an expired job cancels it, and its refusal has the expiry as the reason."""
    world.submit(expires_in=5.0)
    now = world.clock.advance(5.0)
    answer = world.ledger.claim("job-1", nonce="a", node="n")
    job = world.read()
    assert (answer.applied, answer.job) == (False, job)
    assert (job.state, job.finished_at, job.holds_identity) == (State.CANCELED, now, False)
    assert "expired" in job.reason


def test_a_claim_before_the_job_is_due_changes_nothing(world: World) -> None:
    """A job whose claim is refused because it is not due continues to wait, and keeps its expiry."""
    world.submit(delay=5.0, expires_in=50.0)
    with untouched(world.store):
        assert not world.ledger.claim("job-1", nonce="a", node="n").applied


def test_a_claim_finishes_a_requested_cancellation(world: World) -> None:
    """If a cancellation was requested and not finished, the next claim finishes it."""
    _to_be_canceled(world, world.run())
    answer = world.ledger.claim("job-1", nonce="a", node="n")
    assert (answer.applied, answer.job) == (False, get(world.store, "job-1"))
    assert world.read().state is State.CANCELED
