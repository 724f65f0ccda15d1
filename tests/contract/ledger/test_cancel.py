"""Cancel: at once before a run, by a request during a run, never after the end."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import RULES, State, Transition
from onejob.jobs.model import Cancel, Renewal
from onejob.jobs.policy import DAY
from onejob.ledger.ledger import Ledger
from tests.cases import for_each
from tests.conftest import every_store
from tests.contract.support import after, apply, assert_changed, end, untouched

if TYPE_CHECKING:
    from tests.contract.ledger.world import World

REQUESTS = [(False, Cancel.ASKED), (True, Cancel.FORCED)]
ENDS = [Transition.COMPLETE, Transition.FAIL, Transition.ABANDON, Transition.DEAD_LETTER]


@every_store
@for_each("state, force", product([State.QUEUED, State.RETRYING], [False, True]))
def test_a_waiting_job_is_canceled_at_once(world: World, state: State, force: bool) -> None:
    """Before a run, a cancellation ends the job: it frees the identity, and the job is purged after its retention."""
    job = world.reach(state, f"{state}-{force}")
    now = world.clock.advance(1.0)
    canceled = world.ledger.cancel(job.id, force=force, reason="not needed")
    ended = {"state": State.CANCELED, "finished_at": now, "wake_at": now + DAY, "reason": "not needed"}
    assert_changed(world.store, job, canceled, holds_identity=False, **ended)
    assert world.store.history(job.id)[-1].detail == "not needed"
    assert world.submit(f"next-{job.id}", identity=job.identity).id == f"next-{job.id}"


def test_the_canvas_of_a_canceled_job_is_notified_at_once(world: World) -> None:
    """If a canvas waits for a job that is canceled before a run, the job is due at once, so a sweep notifies it."""
    world.submit(canvas=True)
    now = world.clock.advance(1.0)
    assert world.ledger.cancel("job-1").wake_at == now


@for_each("force, requested", REQUESTS)
def test_a_running_job_gets_a_cancel_request(world: World, force: bool, requested: Cancel) -> None:
    """A running job keeps its state, lease and identity: the request is in its history and its next heartbeat."""
    job = world.run(f"job-{force}")
    world.clock.advance(1.0)
    asked = world.ledger.cancel(job.id, force=force, reason="not needed")
    assert_changed(world.store, job, asked, cancel=requested)
    entry = world.store.history(job.id)[-1]
    assert (entry.event, entry.state, entry.detail) == ("request_cancel", State.RUNNING, "not needed")
    assert world.ledger.renew([(job.id, job.claim)]) == [Renewal(job.id, job.claim, held=True, cancel=requested)]


def test_a_request_is_made_stronger_and_not_weaker(world: World) -> None:
    """A request to stop can be followed by force, which no later, weaker request replaces."""
    job = world.run()
    answers = [world.ledger.cancel("job-1", force=force).cancel for force in (False, True, False)]
    assert answers == [Cancel.ASKED, Cancel.FORCED, Cancel.FORCED]
    assert world.read().cancel is world.ledger.renew([(job.id, job.claim)])[0].cancel is Cancel.FORCED


@for_each("event", [*ENDS, Transition.CANCEL])
def test_an_ended_job_stays_as_it_is(world: World, event: Transition) -> None:
    """A cancellation of a job that has ended, or was canceled, returns the job and changes nothing."""
    if event is Transition.CANCEL:
        world.submit(event)
        ended = world.ledger.cancel(event, reason="first")
    else:
        ended = end(world.store, world.run(event), event)
    with untouched(world.store, event):
        assert world.ledger.cancel(event, force=True, reason="second") == ended


# --- what happens between the read and the change -------------------------------------------------------------------


@for_each("force, requested", REQUESTS)
def test_a_job_that_is_claimed_meanwhile_gets_a_cancel_request(world: World, force: bool, requested: Cancel) -> None:
    """If a waiting job is claimed during its cancellation, the cancellation is requested of the run."""
    job_id = world.submit(f"job-{force}").id
    raced = Ledger(after(world.store, "get_many", lambda: world.start(job_id)))
    job = raced.cancel(job_id, force=force)
    assert (job.state, job.cancel, job) == (State.RUNNING, requested, world.read(job_id))


@for_each("event", [Transition.RELEASE, Transition.RETRY, Transition.CRASH])
def test_a_job_that_is_released_meanwhile_is_canceled(world: World, event: Transition) -> None:
    """If a running job is released during its cancellation, the job is canceled at once."""
    job = world.run(event)
    raced = Ledger(after(world.store, "get_many", lambda: apply(world.store, job, event)))
    canceled = raced.cancel(event)
    assert (canceled.state, canceled.holds_identity, canceled) == (State.CANCELED, False, world.read(event))


@for_each("event", ENDS)
def test_a_run_that_ends_meanwhile_has_ended(world: World, event: Transition) -> None:
    """If a run ends during its cancellation, the cancellation returns that end."""
    job = world.run(event)
    raced = Ledger(after(world.store, "get_many", lambda: end(world.store, job, event)))
    ended = raced.cancel(event)
    assert (ended.state, ended.cancel, ended) == (RULES[event].target, Cancel.NO, world.read(event))


# --- followers and sweeps -------------------------------------------------------------------------------------------
