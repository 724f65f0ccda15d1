"""The ends of a run, as the ledger decides them: the columns and the `wake_at` that each sets, and the refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onejob.errors import StaleTokenError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Cancel, Job
from onejob.jobs.policy import DAY, Policy
from onejob.ledger.ledger import Ledger
from tests.contract.support import (
    LEASE,
    UNKNOWN,
    ManualClock,
    apply,
    assert_changed,
    get,
    run,
    start,
    submission,
    submit,
    sweep,
    untouched,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.stores.protocol import Store


def _crash(ledger: Ledger, job: Job) -> Job:
    applied = ledger.crash(job, "killed", '"error"')
    assert applied.applied
    assert applied.job is not None
    return applied.job


AGAIN: dict[str, Any] = {"payload": "[7]", "options": "[8]", "retries": 3}
ENDS: list[tuple[Callable[[Ledger, Job], Job], dict[str, Any], float]] = [
    (lambda ledger, job: ledger.complete(job, "[42]"),
     {"state": State.COMPLETED, "result": "[42]", "reason": "completed"}, DAY),
    (lambda ledger, job: ledger.fail(job, '{"type": "E"}', "it broke"),
     {"state": State.FAILED, "error": '{"type": "E"}', "reason": "it broke"}, 14 * DAY),
    (lambda ledger, job: ledger.abandon(job, "stopped"),
     {"state": State.CANCELED, "reason": "stopped"}, DAY),
]  # fmt: skip
WAITS: list[tuple[Callable[[Ledger, Job], Job], dict[str, Any], float]] = [
    (lambda ledger, job: ledger.retry(job, delay=7.0, **AGAIN, error='"bad"', reason="again"),
     {"state": State.RETRYING, **AGAIN, "error": '"bad"', "reason": "again"}, 7.0),
    (lambda ledger, job: ledger.retry(job, delay=0.0, **AGAIN, error=None, reason="at once"),
     {"state": State.RETRYING, **AGAIN, "reason": "at once"}, LEASE),
    (lambda ledger, job: ledger.release(job, "shutting down"),
     {"state": State.QUEUED, "reason": "shutting down"}, LEASE),
    (_crash,
     {"state": State.QUEUED, "crashes": 1, "reason": "killed"}, LEASE),
]  # fmt: skip
RUN_CALLS = [run_call for run_call, _, _ in ENDS + WAITS[:3]]


def _delay_of(columns: dict[str, Any]) -> float:
    return {"again": 7.0}.get(columns["reason"], 0.0)


@pytest.mark.parametrize(("run_call", "columns", "wake_in"), ENDS)
def test_a_run_ends(
    ledger: Ledger, store: Store, clock: ManualClock,
    run_call: Callable[[Ledger, Job], Job], columns: dict[str, Any], wake_in: float,
) -> None:  # fmt: skip
    """An end frees the identity and the lease, is kept with its result or error, and is purged after its retention."""
    job = run(store)
    now = clock.advance(2.0)
    after = run_call(ledger, job)
    assert_changed(
        store, job, after, holds_identity=False, lease_until=None, finished_at=now, wake_at=now + wake_in, **columns
    )
    assert store.history(job.id)[-1].detail == columns["reason"]


@pytest.mark.parametrize(("run_call", "columns", "wake_in"), ENDS)
def test_a_run_with_a_canvas_ends(
    ledger: Ledger, store: Store, clock: ManualClock,
    run_call: Callable[[Ledger, Job], Job], columns: dict[str, Any], wake_in: float,
) -> None:  # fmt: skip
    """A worker has one lease to notify the canvas of an end, before a sweep does."""
    job = run(store, canvas=True)
    now = clock.advance(2.0)
    after = run_call(ledger, job)
    assert_changed(
        store, job, after, holds_identity=False, lease_until=None, finished_at=now, wake_at=now + LEASE, **columns
    )


@pytest.mark.parametrize(("run_call", "columns", "wake_in"), WAITS)
def test_a_run_ends_in_a_wait(
    ledger: Ledger, store: Store, clock: ManualClock,
    run_call: Callable[[Ledger, Job], Job], columns: dict[str, Any], wake_in: float,
) -> None:  # fmt: skip
    """A run that ends in a wait keeps the identity, and is due at its `run_at` or in one lease."""
    job = run(store)
    now = clock.advance(2.0)
    after = run_call(ledger, job)
    due = {"run_at": now + _delay_of(columns)} if columns["state"] is State.RETRYING else {}
    assert_changed(store, job, after, lease_until=None, wake_at=now + wake_in, **columns, **due)
    assert store.history(job.id)[-1].detail == columns["reason"]


@pytest.mark.parametrize("run_call", RUN_CALLS)
def test_a_second_end_of_a_run_is_refused(ledger: Ledger, store: Store, run_call: Callable[[Ledger, Job], Job]) -> None:
    """A second end of one run is refused, whatever the first was."""
    job = run(store)
    ledger.release(job, "first")
    with untouched(store), pytest.raises(StaleTokenError, match="queued"):
        run_call(ledger, job)


@pytest.mark.parametrize("run_call", RUN_CALLS)
def test_a_run_that_lost_its_lease_is_refused(
    ledger: Ledger, store: Store, clock: ManualClock, run_call: Callable[[Ledger, Job], Job]
) -> None:
    """A worker that resumes after its job was recovered is refused, with an error."""
    job = run(store)
    _crash(ledger, job)
    clock.advance(1.0)
    start(store)
    with untouched(store), pytest.raises(StaleTokenError) as caught:
        run_call(ledger, job)
    assert (caught.value.job_id, caught.value.token, caught.value.state) == (job.id, job.token, "running")


@pytest.mark.parametrize("limit", [1, 2])
def test_the_crash_of_an_earlier_run_does_not_change_the_current_run(
    store: Store, clock: ManualClock, limit: int
) -> None:
    """A late report that an earlier run crashed neither queues nor dead-letters the job of the current run."""
    lost = run(store)
    apply(store, lost, Transition.RELEASE)
    clock.advance(1.0)
    current = start(store)
    clock.advance(LEASE)
    ledger = Ledger(store, Policy(crash_limit=limit))
    with untouched(store):
        assert not ledger.crash(lost, "killed", '"error"').applied
        assert not ledger.crash(lost, "silent", '"error"', lapsed=True).applied
    assert ledger.crash(current, "killed", '"error"').applied


@pytest.mark.parametrize("run_call", RUN_CALLS)
def test_a_refused_run_cancels_nothing(
    ledger: Ledger, store: Store, clock: ManualClock, run_call: Callable[[Ledger, Job], Job]
) -> None:
    """A run that is over is refused also when the job waits for its cancellation to be finished."""
    job = run(store)
    apply(store, apply(store, job, Transition.REQUEST_CANCEL, cancel=Cancel.ASKED), Transition.RELEASE)
    with untouched(store), pytest.raises(StaleTokenError):
        run_call(ledger, job)


@pytest.mark.parametrize(("delay", "wake_in"), [(0.5, 0.5), (600.0, 600.0), (0.0, LEASE), (-1.0, LEASE)])
def test_a_retry_wakes_when_it_is_due(
    ledger: Ledger, store: Store, clock: ManualClock, delay: float, wake_in: float
) -> None:
    """A retry with a delay is published when it is due; one without was published, and has one lease to start."""
    job = run(store)
    now = clock.advance(1.0)
    after = ledger.retry(job, delay=delay, payload="[]", options="[]", retries=1, error='"bad"', reason="again")
    assert (after.run_at, after.wake_at) == (now + delay, now + wake_in)


@pytest.mark.parametrize("lease", [5.0, 900.0])
def test_a_released_job_wakes_in_one_lease(ledger: Ledger, store: Store, clock: ManualClock, lease: float) -> None:
    """A job that was released, or whose worker crashed, has one lease of its own to start before it is published."""
    job = run(store, lease=lease)
    now = clock.advance(1.0)
    assert ledger.release(job, "shutting down").wake_at == now + lease
    job = start(store)
    now = clock.advance(1.0)
    assert _crash(ledger, job).wake_at == now + lease


@pytest.mark.parametrize("wake_in", [0.0, 4.0])
def test_a_release_can_set_an_earlier_wake_at(ledger: Ledger, store: Store, clock: ManualClock, wake_in: float) -> None:
    """A worker that releases a job without publishing it chooses when the sweep publishes it."""
    job = run(store)
    now = clock.advance(1.0)
    after = ledger.release(job, "shutting down", wake_in=wake_in)
    assert (after.state, after.wake_at, after.published) == (State.QUEUED, now + wake_in, 0)
    clock.advance(wake_in)
    assert sweep(ledger, lambda _: None).published == 1


def test_the_error_of_an_earlier_run_stays(ledger: Ledger, store: Store) -> None:
    """A job that completes keeps the error of an earlier run, and the notification of its canvas keeps the result."""
    ledger.retry(
        run(store, canvas=True), delay=0.0, payload="[]", options="[]", retries=1, error='"bad"', reason="again"
    )
    ended = ledger.complete(start(store), "42")
    assert (ended.result, ended.error) == ("42", '"bad"')
    ledger.mark_canvas_notified(ended)
    assert (ledger.get("job-1").result, ledger.get("job-1").error) == ("42", '"bad"')


def test_the_end_of_a_purged_job_is_refused(ledger: Ledger, store: Store) -> None:
    """The end of a job that no longer exists is refused."""
    job = run(store)
    ledger.complete(job, "1")
    store.delete([job.id], sources=frozenset({State.COMPLETED}))
    with pytest.raises(StaleTokenError, match="deleted"):
        ledger.complete(job, "2")
    assert get(store, job.id) is None


@pytest.mark.parametrize("run_call", RUN_CALLS[3:])
def test_a_run_with_a_cancel_request_is_canceled_when_it_would_wait(
    ledger: Ledger, store: Store, clock: ManualClock, run_call: Callable[[Ledger, Job], Job]
) -> None:
    """A run with a cancel request that ends in a wait is canceled at once."""
    job = run(store)
    ledger.cancel(job.id)
    after = run_call(ledger, job)
    assert (after.state, after.holds_identity, after.finished_at) == (State.CANCELED, False, clock())
    assert after.wake_at == clock() + DAY
    assert after == get(store, job.id)


def test_a_run_with_a_cancel_request_is_canceled_when_it_crashes(ledger: Ledger, store: Store) -> None:
    """The crash of a run with a cancel request cancels the job."""
    job = run(store)
    ledger.cancel(job.id, force=True)
    applied = ledger.crash(job, "killed", '"error"')
    assert applied.applied
    assert applied.job == get(store, job.id)
    assert applied.job is not None
    assert applied.job.state is State.CANCELED


@pytest.mark.parametrize("run_call", [run_call for run_call, _, _ in ENDS])
def test_a_run_with_a_cancel_request_may_complete_or_fail(
    ledger: Ledger, store: Store, run_call: Callable[[Ledger, Job], Job]
) -> None:
    """A cancel request does not discard finished work: the run's own end is accepted."""
    job = run(store)
    ledger.cancel(job.id)
    assert run_call(ledger, job).state.final


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_job_at_the_crash_limit_is_dead_lettered(store: Store, clock: ManualClock, limit: int) -> None:
    """At the crash limit the job fails, with its error and the number of crashes; before, it is queued again."""
    ledger = Ledger(store, Policy(crash_limit=limit))
    submit(store)
    for crashes in range(1, limit):
        after = _crash(ledger, start(store))
        assert (after.state, after.crashes, after.holds_identity) == (State.QUEUED, crashes, True)
    failed = _crash(ledger, start(store))
    assert (failed.state, failed.crashes, failed.holds_identity, failed.error) == (
        State.FAILED,
        limit,
        False,
        '"error"',
    )
    assert failed.wake_at == clock() + 14 * DAY
    assert f"{limit} times" in failed.reason
    assert [entry.event for entry in store.history("job-1")][-1] == "dead_letter"


def test_only_crashes_count_towards_the_crash_limit(store: Store) -> None:
    """Retries and releases do not count towards the crash limit."""
    ledger = Ledger(store, Policy(crash_limit=2))
    submit(store)
    _crash(ledger, start(store))
    ledger.release(start(store), "shutting down")
    ledger.retry(start(store), delay=0.0, payload="[]", options="[]", retries=1, error=None, reason="again")
    assert start(store).crashes == 1


def test_a_crash_is_refused_when_the_run_is_over(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """The report of a crash of a run that is over is refused, and changes nothing."""
    job = run(store)
    ledger.complete(job, "1")
    with untouched(store):
        applied = ledger.crash(job, "killed", '"error"')
    assert not applied.applied
    assert applied.job == get(store, job.id)


@pytest.mark.parametrize(("passed", "done"), [(0.0, False), (LEASE - 0.5, False), (LEASE, True)])
def test_a_lapse_waits_for_the_end_of_the_lease(
    ledger: Ledger, store: Store, clock: ManualClock, passed: float, done: bool
) -> None:
    """A presumed crash counts only after the lease has expired."""
    job = run(store)
    clock.advance(passed)
    assert ledger.crash(job, "silent", '"error"', lapsed=True).applied is done


@pytest.mark.parametrize("published", [1, 6])
@pytest.mark.parametrize("run_call", [run_call for run_call, _, _ in WAITS])
def test_the_publications_of_a_new_wait_are_counted_from_zero(
    ledger: Ledger, store: Store, run_call: Callable[[Ledger, Job], Job], published: int
) -> None:
    """A job that waits again counts its publications from zero."""
    job = apply(store, run(store), Transition.UPDATE_PROGRESS, published=published)
    assert run_call(ledger, job).published == 0


def test_the_ledger_claims_waiting_jobs_only(ledger: Ledger, clock: ManualClock) -> None:
    """A claim through the ledger starts a run of a waiting job, and of no other."""
    ledger.submit(submission())
    first = ledger.claim("job-1", nonce="a", node="n")
    assert first.applied
    assert first.job == ledger.get("job-1")
    second = ledger.claim("job-1", nonce="b", node="n")
    assert (second.applied, second.job) == (False, first.job)
    assert ledger.claim(UNKNOWN, nonce="c", node="n").job is None


def test_a_claim_of_an_expired_job_cancels_it(ledger: Ledger, clock: ManualClock) -> None:
    """The claim of an expired job cancels it, and its refusal has the expiry as the reason."""
    ledger.submit(submission(expires_in=5.0))
    now = clock.advance(5.0)
    answer = ledger.claim("job-1", nonce="a", node="n")
    assert not answer.applied
    assert answer.job == ledger.get("job-1")
    assert answer.job is not None
    assert (answer.job.state, answer.job.finished_at, answer.job.holds_identity) == (State.CANCELED, now, False)
    assert "expired" in answer.job.reason


def test_a_claim_before_the_job_is_due_changes_nothing(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A job whose claim is refused because it is not due continues to wait, and keeps its expiry."""
    ledger.submit(submission(delay=5.0, expires_in=50.0))
    with untouched(store):
        assert not ledger.claim("job-1", nonce="a", node="n").applied


def test_a_claim_finishes_a_requested_cancellation(ledger: Ledger, store: Store) -> None:
    """If a cancellation was requested and not finished, the next claim finishes it."""
    job = apply(store, run(store), Transition.REQUEST_CANCEL, cancel=Cancel.ASKED)
    apply(store, job, Transition.RELEASE)
    answer = ledger.claim("job-1", nonce="a", node="n")
    assert not answer.applied
    assert answer.job is not None
    assert answer.job.state is State.CANCELED
