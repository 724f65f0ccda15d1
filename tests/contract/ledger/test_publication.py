"""Publication: what fails for one job is recorded with it, backs off, and ends; a canvas is notified or given up."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from onejob.errors import BrokerUnavailableError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Retention
from onejob.jobs.policy import DAY, Policy
from onejob.jobs.transitions import DST_SHIFT
from onejob.ledger.publication import (
    PATIENCE_LEASES,
    abandon_canvas,
    fail_unpublishable,
    note_canvas_error,
    note_notification,
    note_publication,
    note_unsent,
    patience,
)
from onejob.ledger.sweep import SweepResult
from tests.cases import for_each
from tests.conftest import every_store
from tests.contract.ledger.world import World, no_broker, publish_nothing, refuse, retry
from tests.contract.support import LEASE, untouched

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.jobs.model import Applied, Job
    from onejob.ledger.ledger import Ledger


# --- the record -----------------------------------------------------------------------------------------------------


@for_each("given, stored", [(None, "first"), ("other", "other")])
def test_a_retry_keeps_the_route_unless_it_has_another(world: World, given: str | None, stored: str) -> None:
    """A retry is published by the job's own route, or by the one that was resolved for its new options."""
    job = world.run(f"job-{stored}", route="first")
    assert retry(world.ledger, job, route=given).route == stored


def test_a_publication_is_recorded_with_its_queue(world: World) -> None:
    """The history says where a message was sent, and the number of the publication."""
    world.submit(route="slow", lease=30.0)
    world.submit("job-2", route="", lease=30.0)
    for _ in range(2):
        world.clock.advance(30.0)
        world.sweep(gone_in=lambda _: 0.0)
    assert world.details(Transition.PUBLISH) == [
        "published again to queue slow, publication 1",
        "published again to queue slow, publication 2",
    ]
    assert world.details(Transition.PUBLISH, "job-2")[0] == "published again, publication 1"


@every_store
@for_each("note", [note_unsent, partial(note_publication, error=""), partial(fail_unpublishable, reason="no queue")])
def test_a_note_on_an_earlier_wait_changes_nothing(world: World, note: Callable[[Ledger, Job], Applied]) -> None:
    """What is noted of a message is refused when a run has come in between, also if the job waits again."""
    stale = world.submit(str(note))
    world.ledger.release(world.start(stale.id), "again")
    with untouched(world.store, stale.id):
        assert not note(world.ledger, stale).applied


def test_a_message_that_was_not_accepted_is_due_at_once(world: World) -> None:
    """A job whose message the broker did not accept counts as unsent, is due, and its history says so."""
    note_unsent(world.ledger, world.submit(route="celery"))
    job = world.read()
    assert (job.published_at, job.wake_at, job.published) == (None, world.clock(), 0)
    assert world.details(Transition.PUBLISH) == ["the broker did not accept its message; a sweep publishes it"]


def test_a_sweep_waits_as_long_again_as_a_message_has_waited(world: World) -> None:
    """A sweep looks again after as long as a message has waited: at least one lease, at most `PATIENCE_LEASES`."""
    job = replace(world.submit(), published_at=1000.0)
    assert [patience(job, 1000.0 + waited * LEASE) for waited in (0, 1, 5, 50)] == [
        LEASE, LEASE, 5 * LEASE, PATIENCE_LEASES * LEASE,
    ]  # fmt: skip
    assert PATIENCE_LEASES == 20
    assert patience(replace(job, published_at=None), 1000.0) == LEASE


# --- a message that cannot be sent ----------------------------------------------------------------------------------


@every_store
def test_a_job_whose_message_cannot_be_sent_becomes_a_dead_letter(world: World) -> None:
    """After eight attempts, with pauses that double, the job fails with its reason, and its identity is free."""
    world.submit(route="typo", lease=10.0, delay=10.0)
    world.clock.advance(10.0)
    for number, leases in enumerate([1, 2, 4, 8, 16, 32, 64], start=1):
        assert world.sweep(refuse) == SweepResult()
        job = world.read()
        assert (job.state, job.published, job.publish_error) == (State.QUEUED, number, "LookupError: typo")
        assert job.wake_at == world.clock() + 10.0 * leases
        world.clock.advance(10.0 * leases)
    assert world.sweep(refuse) == SweepResult()
    job = world.read()
    assert (job.state, job.holds_identity) == (State.FAILED, False)
    assert job.reason == "its message could not be sent 8 times: LookupError: typo"
    assert world.events()[-1] == "unpublishable"
    assert json.loads(job.error or "") == {"type": "Unpublishable", "message": job.reason, "traceback": ""}
    assert world.ledger.redrive("job-1").published == 0


def test_a_policy_limits_the_attempts(world: World) -> None:
    """The policy sets after how many failed attempts a job becomes a dead letter; one that is claimed runs."""
    world.use(Policy(publish_limit=1))
    world.submit("job-1")
    world.submit("claimed")
    world.clock.advance(LEASE)

    def claim_and_fail(job: Job) -> None:
        if job.id == "claimed":
            world.start(job.id)
        refuse(job)

    world.sweep(claim_and_fail)
    assert (world.read().state, world.read("claimed").state) == (State.FAILED, State.RUNNING)


def test_only_failures_in_a_row_count(world: World) -> None:
    """Successful publications do not count as failures, and one of them ends a row of failures."""
    world.submit()
    for _ in range(9):
        world.clock.advance(1e6)
        world.sweep()
    world.clock.advance(1e6)
    world.sweep(refuse)
    assert (world.read().state, world.read().published) == (State.QUEUED, 1)
    world.clock.advance(1e6)
    world.sweep()
    assert (world.read().published, world.read().publish_error) == (1, "")


def test_a_recovered_job_that_cannot_be_sent_says_so(world: World) -> None:
    """When the lease of a run has expired and its job cannot be published, the error is recorded."""
    world.run()
    world.clock.advance(LEASE)
    assert world.sweep(refuse) == SweepResult(lapsed=1)
    assert world.read().publish_error == "LookupError: "


# --- the canvas -----------------------------------------------------------------------------------------------------


def test_the_notification_of_a_canvas_backs_off_and_is_given_up(world: World) -> None:
    """An end is published for its canvas after 1, 2, 4, ... leases, until the job's retention is over."""
    sent: list[float] = []
    world.ledger.complete(world.run(canvas=True), "1")
    began = world.clock()
    for _ in range(2 * 24 * 60 * 2):
        world.clock.advance(30.0)
        world.sweep(lambda _: sent.append(world.clock() - began))
        if not world.read().canvas_pending:
            break
    gaps = [later - earlier for earlier, later in pairwise(sent)]
    assert all(later >= 1.5 * earlier for earlier, later in pairwise(gaps[2:-1]))
    assert len(sent) < 20
    assert world.clock() - began == pytest.approx(DAY, abs=31.0)
    assert world.events()[-1] == "canvas_abandoned"
    assert f"{len(sent)} attempts" in world.ledger.history("job-1")[-1].detail
    world.clock.advance(DAY)
    assert world.sweep(publish_nothing) == SweepResult(purged=1)


@every_store
@for_each(
    "note, redriven",
    [(note, redriven) for redriven in (False, True) for note in
     (partial(note_notification, error=""), partial(note_canvas_error, error="away"), abandon_canvas)],
)  # fmt: skip
def test_a_note_on_an_earlier_end_changes_nothing(
    world: World, note: Callable[[Ledger, Job], Applied], redriven: bool
) -> None:
    """What is noted of a canvas is refused when it was notified, or when the job has run and ended once more."""
    stale = world.ledger.fail(world.run(f"{redriven} {note}", canvas=True), "{}", "failed")
    if redriven:
        world.ledger.redrive(stale.id, canvas=True)
        world.ledger.fail(world.start(stale.id), "{}", "failed again")
    else:
        world.ledger.mark_canvas_notified(stale)
    with untouched(world.store, stale.id):
        assert not note(world.ledger, stale).applied


def test_a_notification_is_recorded(world: World) -> None:
    """The history says whether an end was sent, and when again; one that could not be sent counts as unsent."""
    world.ledger.complete(world.run(canvas=True, route="celery"), "1")
    sent = world.clock.advance(LEASE)
    world.sweep()
    assert (world.read().published, world.read().published_at, world.read().publish_error) == (1, sent, "")
    note_canvas_error(world.ledger, world.read(), "backend")
    assert (world.read().published_at, world.read().publish_error) == (None, "backend")
    world.clock.advance(LEASE)
    world.sweep(refuse, gone_in=lambda _: 0.0)
    error, unless = "LookupError: celery", " unless its canvas is notified"
    assert (world.read().published, world.read().published_at, world.read().publish_error) == (2, None, error)
    assert world.details(Transition.NOTIFY_CANVAS) == [
        "published to queue celery, publication 1; again in 30 s unless its canvas is notified",
        "Celery could not notify its canvas: backend",
        f"its message could not be sent to queue celery, publication 2: {error}; again in 60 s{unless}",
    ]


@for_each("error, keep", [("", None), ("no backend", None), ("", Retention(identity_for=DAY))])
def test_a_canvas_is_given_up_exactly_at_the_end_of_the_retention(
    world: World, error: str, keep: Retention | None
) -> None:
    """The last attempt is followed by the end of the retention; then the job is kept once more as long."""
    job_id, kept_for = f"job-{error}-{keep}", DAY + (DST_SHIFT if keep else 0.0)
    world.ledger.complete(world.run(job_id, canvas=True), "1", keep=keep)
    world.clock.advance(kept_for - 1.0)
    assert world.sweep() == SweepResult(published=1)
    if error:
        note_canvas_error(world.ledger, world.read(job_id), error)
    now = world.clock.advance(1.0)
    assert world.sweep(refuse) == SweepResult()
    job = world.read(job_id)
    assert (world.events(job_id)[-1], job.canvas_pending, job.wake_at) == ("canvas_abandoned", False, now + kept_for)
    given_up = "1 attempts; the last error: no backend" if error else "1 attempts"
    assert world.details(Transition.CANVAS_ABANDONED, job_id) == [given_up]
    world.ledger.delete(job_id)


def test_a_canvas_that_was_notified_is_not_notified_again(world: World) -> None:
    """After the canvas was notified, the job is kept for its retention, and its end is not published any more."""
    world.ledger.complete(world.run(canvas=True), "1")
    world.clock.advance(LEASE)
    assert world.sweep() == SweepResult(published=1)
    world.ledger.mark_canvas_notified(world.read())
    world.clock.advance(DAY - 1.0)
    assert world.sweep(publish_nothing) == SweepResult()
    world.clock.advance(1.0)
    assert world.sweep(publish_nothing) == SweepResult(purged=1)


def test_a_notification_during_the_sweep_is_not_overwritten(world: World) -> None:
    """If Celery notifies the canvas while the sweep publishes the end, the job keeps its retention."""
    world.ledger.complete(world.run(canvas=True), "1")
    now = world.clock.advance(LEASE)
    world.sweep(lambda job: world.ledger.mark_canvas_notified(world.read(job.id)))
    assert world.read().wake_at == now + DAY
    assert world.sweep(publish_nothing) == SweepResult()


def test_an_end_starts_to_count_anew(world: World) -> None:
    """The attempts to notify a canvas are counted from the end of the job."""
    world.submit(canvas=True)
    for _ in range(5):
        world.clock.advance(1e5)
        world.sweep(refuse)
    job = world.ledger.cancel("job-1")
    assert (job.published, job.publish_error) == (0, "")


def test_the_error_of_a_notification_stays(world: World) -> None:
    """The error of a notification is in the job, and the next attempt, whose end nobody knows yet, keeps it."""
    world.ledger.complete(world.run(canvas=True), "1")
    for attempt in (1, 2):
        world.clock.advance(LEASE)
        world.sweep()
        if attempt == 1:
            note_canvas_error(world.ledger, world.read(), "OperationalError: {no} backend")
        assert (world.read().published, world.read().publish_error) == (attempt, "OperationalError: {no} backend")


def test_an_end_waits_for_the_broker(world: World) -> None:
    """While the broker is away, no attempt to notify a canvas is counted."""
    world.ledger.complete(world.run(canvas=True), "1")
    world.clock.advance(LEASE)
    with pytest.raises(BrokerUnavailableError):
        world.sweep(no_broker)
    assert world.read().published == 0
