"""Publication: what fails for one job is recorded with it, backs off, and ends; a canvas is notified or given up."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from onejob.errors import BrokerUnavailableError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Outcome
from onejob.jobs.policy import DAY, Policy
from onejob.jobs.route import Route
from onejob.ledger.explain import explain
from onejob.ledger.ledger import Ledger
from onejob.ledger.publication import note_canvas_error
from onejob.ledger.sweep import Swept
from tests.contract.support import LEASE, ManualClock, after, events, read, run, start, submission, submit, sweep

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from onejob.stores.protocol import Store


def refuse(job: Job) -> None:
    """Fail like a message that cannot be sent, whatever the state of the broker."""
    raise LookupError(job.queue)


def details(ledger: Ledger, event: Transition) -> list[str]:
    """Return the details of the history entries of one transition."""
    return [entry.detail for entry in ledger.history("job-1") if entry.event == event]


# --- the record -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "route", [Route.to_queue("celery"), Route.to_queue("[odd"), Route("topics", "a.b", "q"), Route("x", "", ""), None]
)
def test_a_route_is_stored_with_its_job(ledger: Ledger, route: Route | None) -> None:
    """A job has the route of its submission, which is its queue's name alone where the rest follows from it."""
    text = "" if route is None else route.encode()
    job = ledger.submit(submission(route=text)).job
    assert (job.route, job.queue) == (text, "" if route is None else route.queue)
    assert route is None or Route.decode(job.route) == route
    assert Route.to_queue("celery").encode() == "celery"


def test_replaced_arguments_come_with_their_route(ledger: Ledger) -> None:
    """A submission that replaces the arguments of a waiting job replaces its route; one that is attached does not."""
    ledger.submit(submission(identity="same", route="first"))
    attached = submission("job-2", identity="same", route="other", nonce="nonce-2")
    assert ledger.submit(attached).job.route == "first"
    newest = submission("job-3", identity="same", route="newest", nonce="nonce-3", replaces=True, fingerprint="newest")
    admission = ledger.submit(newest)
    assert (admission.outcome, admission.job.route) == (Outcome.REPLACED, "newest")


@pytest.mark.parametrize(("given", "stored"), [(None, "first"), ("other", "other")])
def test_a_retry_keeps_the_route_unless_it_has_another(
    ledger: Ledger, store: Store, given: str | None, stored: str
) -> None:
    """A retry is published by the job's own route, or by the one that was resolved for its new options."""
    job = run(store, route="first")
    job = ledger.retry(job, delay=1.0, payload="[]", options="{}", retries=1, error=None, reason="again", route=given)
    assert job.route == stored


def test_a_publication_is_recorded_with_its_queue(ledger: Ledger, clock: ManualClock) -> None:
    """The history says where a message was sent, the number of the attempt, and when the next one is due."""
    ledger.submit(submission(route="slow", lease=30.0))
    for pause in (30.0, 30.0):
        clock.advance(pause)
        sweep(ledger, lambda _: None)
    assert details(ledger, Transition.PUBLISH) == [
        "published to queue slow: attempt 1; again in 30 s unless a worker claims it",
        "published to queue slow: attempt 2; again in 60 s unless a worker claims it",
    ]


# --- a message that cannot be sent ----------------------------------------------------------------------------------


def test_a_job_whose_message_cannot_be_sent_becomes_a_dead_letter(
    ledger: Ledger, store: Store, clock: ManualClock
) -> None:
    """After eight attempts, with pauses that double, the job fails with its reason, and its identity is free."""
    ledger.submit(submission(route="typo", lease=10.0))
    clock.advance(10.0)
    for number, leases in enumerate([1, 2, 4, 8, 16, 32, 64], start=1):
        assert sweep(ledger, refuse) == Swept()
        job = read(store)
        assert (job.state, job.published, job.publish_error) == (State.QUEUED, number, "LookupError: typo")
        assert job.wake_at == clock() + 10.0 * leases
        clock.advance(10.0 * leases)
    assert sweep(ledger, refuse) == Swept()
    job = read(store)
    assert (job.state, job.holds_identity) == (State.FAILED, False)
    assert job.reason == "its message could not be sent 8 times: LookupError: typo"
    assert events(store)[-1] == "unpublishable"
    assert ledger.redrive("job-1").published == 0


def test_a_policy_limits_the_attempts(store: Store, clock: ManualClock) -> None:
    """The policy sets after how many failed attempts a job becomes a dead letter."""
    ledger = Ledger(store, Policy(publish_limit=1))
    ledger.submit(submission())
    clock.advance(LEASE)
    sweep(ledger, refuse)
    assert read(store).state is State.FAILED


def test_only_failures_in_a_row_count(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """Successful publications do not count as failures, and one of them ends a row of failures."""
    ledger.submit(submission())
    for _ in range(9):
        clock.advance(1e6)
        sweep(ledger, lambda _: None)
    clock.advance(1e6)
    sweep(ledger, refuse)
    assert (read(store).state, read(store).published) == (State.QUEUED, 1)
    clock.advance(1e6)
    sweep(ledger, lambda _: None)
    assert (read(store).published, read(store).publish_error) == (1, "")


def test_a_claim_clears_the_error(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A job that a worker has claimed has no publication error."""
    ledger.submit(submission())
    clock.advance(LEASE)
    sweep(ledger, refuse)
    job = start(store)
    assert (job.published, job.publish_error) == (0, "")


def test_a_job_claimed_meanwhile_is_no_dead_letter(store: Store, clock: ManualClock) -> None:
    """A job that a worker claims while its publication fails runs, whatever the number of failures."""
    ledger = Ledger(store, Policy(publish_limit=1))
    ledger.submit(submission())
    clock.advance(LEASE)

    def claim_and_fail(job: Job) -> None:
        start(store, job.id)
        refuse(job)

    sweep(ledger, claim_and_fail)
    assert read(store).state is State.RUNNING


def test_bad_jobs_never_end_a_sweep(ledger: Ledger, store: Store) -> None:
    """Whatever number of jobs cannot be sent, the same sweep publishes all others."""
    sent: list[str] = []

    def publish(job: Job) -> None:
        if job.id.startswith("bad"):
            refuse(job)
        sent.append(job.id)

    for number in range(20):
        submit(store, f"bad-{number}", wake_in=0.0)
    submit(store, "good", wake_in=0.0)
    assert sweep(ledger, publish).published == 1
    assert sent == ["good"]


def test_a_recovered_job_that_cannot_be_sent_says_so(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """When the lease of a run has expired and its job cannot be published, the error is recorded."""
    run(store)
    clock.advance(LEASE)
    assert sweep(ledger, refuse) == Swept(lapsed=1)
    assert read(store).publish_error == "LookupError: "


# --- the canvas -----------------------------------------------------------------------------------------------------


def test_the_notification_of_a_canvas_backs_off_and_is_given_up(
    ledger: Ledger, store: Store, clock: ManualClock
) -> None:
    """An end is published for its canvas after 1, 2, 4, ... leases, until the job's retention is over."""
    sent: list[float] = []
    ledger.complete(run(store, canvas=True), "1")
    began = clock()
    for _ in range(2 * 24 * 60 * 2):
        clock.advance(30.0)
        sweep(ledger, lambda _: sent.append(clock() - began))
        if not read(store).canvas_pending:
            break
    gaps = [later - earlier for earlier, later in pairwise(sent)]
    assert all(later >= 1.5 * earlier for earlier, later in pairwise(gaps[2:-1]))
    assert len(sent) < 20
    assert clock() - began == pytest.approx(DAY, abs=31.0)
    assert events(store)[-1] == "canvas_abandoned"
    assert f"{len(sent)} attempts" in ledger.history("job-1")[-1].detail
    clock.advance(DAY)
    assert sweep(ledger, refuse) == Swept(purged=1)


def test_a_canvas_that_was_notified_is_not_notified_again(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """After the canvas was notified, the job is kept for its retention, and its end is not published any more."""
    ledger.complete(run(store, canvas=True), "1")
    clock.advance(LEASE)
    assert sweep(ledger, lambda _: None) == Swept(published=1)
    ledger.mark_canvas_notified(read(store))
    clock.advance(DAY - 1.0)
    assert sweep(ledger, refuse) == Swept()
    clock.advance(1.0)
    assert sweep(ledger, refuse) == Swept(purged=1)


def test_a_notification_during_the_sweep_is_not_overwritten(store: Store, clock: ManualClock) -> None:
    """If Celery notifies the canvas while the sweep publishes the end, the job keeps its retention."""
    ledger = Ledger(store)
    ledger.complete(run(store, canvas=True), "1")
    now = clock.advance(LEASE)
    sweep(ledger, lambda job: ledger.mark_canvas_notified(read(store, job.id)))
    assert read(store).wake_at == now + DAY
    late = Ledger(after(store, "take_due", lambda: None))
    assert sweep(late, refuse) == Swept()


def test_an_end_starts_to_count_anew(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """The attempts to notify a canvas are counted from the end of the job."""
    ledger.submit(submission(canvas=True))
    for _ in range(5):
        clock.advance(1e5)
        sweep(ledger, refuse)
    job = ledger.cancel("job-1")
    assert (job.published, job.publish_error) == (0, "")


def test_why_a_canvas_is_not_notified_is_visible(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """The error of a notification is in the job, and its explanation has the attempts and the time of the next."""
    ledger.complete(run(store, canvas=True), "1")
    clock.advance(LEASE)
    sweep(ledger, lambda _: None)
    note_canvas_error(ledger, read(store), "OperationalError: {no} backend")
    job = read(store)
    assert (job.published, job.publish_error) == (1, "OperationalError: {no} backend")
    *_, error, tried, following = explain(ledger, "job-1").sentences
    assert error.endswith("The last error: OperationalError: {no} backend.")
    assert tried == "Sweeps have sent its end to Celery for that once."
    assert following.startswith("Unless a worker does it first, a sweep does so at 2")
    clock.advance(LEASE)
    sweep(ledger, lambda _: None)
    assert (read(store).published, read(store).publish_error) == (2, "OperationalError: {no} backend")


def test_an_end_waits_for_the_broker(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """While the broker is away, no attempt to notify a canvas is counted."""

    def away(job: Job) -> None:
        raise BrokerUnavailableError(job.id)

    ledger.complete(run(store, canvas=True), "1")
    clock.advance(LEASE)
    with pytest.raises(BrokerUnavailableError):
        sweep(ledger, away)
    assert read(store).published == 0
