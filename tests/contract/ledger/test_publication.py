"""Publication: what fails for one job is recorded with it, backs off, and ends; a canvas is notified or given up."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.policy import DAY, Policy
from onejob.ledger.explain import explain
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
from tests.contract.ledger.world import World, publish_nothing, refuse
from tests.contract.support import LEASE, untouched

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.jobs.model import Applied, Job
    from onejob.ledger.ledger import Ledger


# --- the record -----------------------------------------------------------------------------------------------------


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
    assert world.details(Transition.PUBLISH) == [
        "the broker did not accept its message when it was queued; a sweep publishes it"
    ]
    (sentence,) = (each for each in explain(world.ledger, job.id).sentences if "did not accept" in each)
    assert "sweep found" not in sentence


def test_a_sweep_waits_as_long_again_as_a_message_has_waited(world: World) -> None:
    """A sweep looks again after as long as a message has waited: at least one lease, at most `PATIENCE_LEASES`."""
    job = replace(world.submit(), published_at=1000.0)
    assert [patience(job, 1000.0 + waited * LEASE) for waited in (0, 1, 5, 50)] == [
        LEASE, LEASE, 5 * LEASE, PATIENCE_LEASES * LEASE,
    ]  # fmt: skip
    assert PATIENCE_LEASES == 20
    assert patience(replace(job, published_at=None), 1000.0) == LEASE


# --- a message that cannot be sent ----------------------------------------------------------------------------------


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


def test_a_notification_during_the_sweep_is_not_overwritten(world: World) -> None:
    """If Celery notifies the canvas while the sweep publishes the end, the job keeps its retention."""
    world.ledger.complete(world.run(canvas=True), "1")
    now = world.clock.advance(LEASE)
    world.sweep(lambda job: world.ledger.mark_canvas_notified(world.read(job.id)))
    assert world.read().wake_at == now + DAY
    assert world.sweep(publish_nothing) == SweepResult()
