"""What operators do with one job: delete, run now, redrive and drop it; and a run that goes on as another task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onejob.errors import (
    IdentityHeldError,
    JobNotEndedError,
    JobNotFoundError,
    JobPurgedError,
    NoDeadLetterError,
    NotWaitingError,
    StaleTokenError,
    UniquenessWindowError,
)
from onejob.jobs.lifecycle import FINAL, State, Transition
from onejob.jobs.model import Cancel, Retention
from onejob.jobs.policy import DAY
from onejob.jobs.timestamps import format_timestamp
from onejob.ledger.explain import explain
from onejob.ledger.ledger import Ledger, NextRun
from tests.cases import for_each
from tests.conftest import every_store
from tests.contract.support import (
    LEASE,
    START,
    UNKNOWN,
    after,
    apply,
    assert_changed,
    claim,
    holders,
    queue_next,
    submit,
    take_due,
    untouched,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from onejob.jobs.model import Job
    from tests.contract.ledger.world import World


OPERATIONS: dict[str, tuple[Collection[State], Any]] = {
    "delete": (FINAL, JobNotEndedError), "run_now": ({State.QUEUED, State.RETRYING}, NotWaitingError),
    "redrive": ({State.FAILED}, NoDeadLetterError), "drop": ({State.FAILED}, NoDeadLetterError),
}  # fmt: skip
"""The states in which each operation is possible, and its refusal in others."""


@for_each("name", OPERATIONS)
def test_an_operation_is_refused_in_other_states(world: World, name: str) -> None:
    """An unknown id raises `JobNotFoundError`; the refusal of a job has its state, and changes nothing."""
    states, refusal = OPERATIONS[name]
    operation = getattr(world.ledger, name)
    with pytest.raises(JobNotFoundError):
        operation(UNKNOWN)
    for state in {*State}.difference(states):
        job_id = world.reach(state, f"{name}-{state}").id
        with untouched(world.store, job_id), pytest.raises(refusal) as caught:
            operation(job_id)
        assert caught.value.state == state


# --- delete ---------------------------------------------------------------------------------------------------------


@every_store
@for_each("state", sorted(FINAL))
def test_an_ended_job_is_deleted(world: World, state: State) -> None:
    """A job in a final state is deleted with its history, and its id says how it ended."""
    world.reach(state, state)
    world.ledger.delete(state)
    assert (world.gone(state), world.store.history(state)) == (True, [])
    for operation in (world.ledger.get, world.ledger.delete):
        with pytest.raises(JobPurgedError) as caught:
            operation(state)
        assert caught.value.state == state


def test_a_job_that_answers_duplicates_is_not_deleted(world: World) -> None:
    """A completed job is refused within its uniqueness window, with the end of that, and deleted after it."""
    world.ledger.complete(world.run(), "1", keep=Retention(identity_for=60.0))
    with untouched(world.store), pytest.raises(UniquenessWindowError) as caught:
        world.ledger.delete("job-1")
    assert caught.value.until == format_timestamp(START + 60.0)
    world.clock.advance(60.0)
    world.ledger.delete("job-1")
    assert world.gone()
    assert world.submit("job-2", identity="identity-of-job-1").id == "job-2"


# --- run now --------------------------------------------------------------------------------------------------------


@every_store
@for_each("state", [State.QUEUED, State.RETRYING])
def test_a_delayed_job_becomes_due(world: World, state: State) -> None:
    """A delayed or retrying job is due at once, keeps its state and reason, and the next sweep publishes it."""
    if state is State.QUEUED:
        job = submit(world.store, state, delay=3600.0)
    else:
        later = {"run_in": 3600.0, "wake_after": 3600.0, "published": 2, "publish_error": "no"}
        job = apply(world.store, world.run(state), Transition.RETRY, **later)
    now = world.clock.advance(1.0)
    due = world.ledger.run_now(state, reason="made due by ops")
    assert_changed(world.store, job, due, run_at=now, wake_at=now, published=0, publish_error="")
    entry = world.store.history(state)[-1]
    assert (entry.event, entry.state, entry.detail) == ("run_now", state, "made due by ops")
    assert "The job was made due at once: made due by ops." in "\n".join(explain(world.ledger, state).sentences)
    world.sweep()
    assert world.sent_ids[-1] == state
    world.ledger.complete(world.start(state), "1")
    world.assert_legal(state)


def test_a_job_that_is_due_is_unchanged(world: World) -> None:
    """A job that is due already is returned as it is, with no entry in its history."""
    job = world.submit(delay=5.0)
    world.clock.advance(5.0)
    with untouched(world.store):
        assert world.ledger.run_now("job-1") == job


def test_a_job_that_waits_for_another_is_refused(world: World) -> None:
    """A follower, and the job that is queued next, are refused with the job whose end they wait for."""
    world.run(identity="same")
    queue_next(world.store, "job-2")
    world.follow("job-3")
    for job_id in ("job-2", "job-3"):
        with untouched(world.store, job_id), pytest.raises(NotWaitingError, match="until job job-1 has") as caught:
            world.ledger.run_now(job_id)
        assert caught.value.follows_id == "job-1"


@pytest.mark.parametrize("retries", [False, True])
def test_a_job_that_is_claimed_meanwhile(world: World, retries: bool) -> None:
    """If the job is claimed between the read and the change, it is refused as running; a retry since then is due."""
    world.submit(delay=5.0)

    def claim_when_due() -> None:
        world.clock.advance(5.0)
        run = world.start()
        if retries:
            apply(world.store, run, Transition.RETRY, run_in=3600.0, wake_after=3600.0)

    raced = Ledger(after(world.store, "read_clock", claim_when_due))
    if retries:
        job = raced.run_now("job-1")
        assert (job.state, job.run_at, job.attempt) == (State.RETRYING, world.clock(), 1)
    else:
        with pytest.raises(NotWaitingError) as caught:
            raced.run_now("job-1")
        assert caught.value.state is State.RUNNING


def test_a_cancellation_that_was_requested_wins(world: World) -> None:
    """A waiting job whose cancellation was requested is canceled instead of made due."""
    job = apply(world.store, world.run(), Transition.REQUEST_CANCEL, cancel=Cancel.ASKED)
    apply(world.store, job, Transition.RETRY, run_in=60.0, wake_after=60.0)
    assert world.ledger.run_now("job-1").state is State.CANCELED


# --- redrive --------------------------------------------------------------------------------------------------------


def fail(world: World, job_id: str = "job-1", **values: object) -> Job:
    """Have a job crash and be asked to stop, store a step, and fail."""
    world.ledger.crash(world.run(job_id, **values), "its worker died", "{}")
    job = world.start(job_id)
    world.ledger.cancel(job_id)
    world.ledger.keep_step(job, "one", "1")
    return world.ledger.fail(job, '{"type": "E", "message": "", "traceback": ""}', "E: no")


@every_store
def test_a_dead_letter_is_queued_again(world: World) -> None:
    """A redriven job waits like a new one: it is due at once, holds its identity, is not purged, and may complete."""
    failed = fail(world, retries=3)
    now = world.clock.advance(100.0)
    job = world.ledger.redrive("job-1")
    assert (job.id, job.state, job.holds_identity) == ("job-1", State.QUEUED, True)
    assert (job.run_at, job.wake_at, job.finished_at, job.lease_until) == (now, now, None, None)
    assert (job.result, job.error, job.retries, job.crashes, job.published) == (None, None, 0, 0, 0)
    assert (job.attempt, job.token, job.payload, job.cancel) == (2, failed.token, failed.payload, Cancel.NO)
    assert world.store.steps("job-1") == {"one": "1"}
    assert holders(world.store, job.identity) == [job] == [world.read()]
    assert world.submit("job-2", identity=job.identity).id == "job-1"
    world.clock.advance(14 * DAY)
    world.sweep()
    assert (world.read().state, world.sent_ids) == (State.QUEUED, ["job-1"])
    again = world.start()
    assert (again.attempt, again.token > failed.token) == (3, True)
    done = world.ledger.complete(again, '"at last"')
    assert (done.state, done.result, done.holds_identity) == (State.COMPLETED, '"at last"', False)
    world.assert_legal()


@every_store
def test_a_window_that_is_over_prevents_no_redrive(world: World) -> None:
    """A completed job that holds the identity refuses a redrive within its uniqueness window, and releases it after."""
    fail(world, identity="same")
    world.ledger.complete(world.run("job-2", identity="same"), "1", keep=Retention(identity_for=60.0))
    world.clock.advance(59.0)
    with untouched(world.store, "job-1", "job-2"), pytest.raises(IdentityHeldError) as caught:
        world.ledger.redrive("job-1")
    assert (caught.value.holder_id, caught.value.holder_state) == ("job-2", State.COMPLETED)
    world.clock.advance(1.0)
    assert world.ledger.redrive("job-1") == world.read() == holders(world.store, "same")[0]
    assert not world.read("job-2").holds_identity
    for job_id in ("job-1", "job-2"):
        world.assert_legal(job_id)


def test_a_job_is_redriven_once(world: World) -> None:
    """Of two concurrent redrives of a job, one succeeds, and the other is refused."""
    fail(world)
    raced = Ledger(after(world.store, "get_many", lambda: world.ledger.redrive("job-1")))
    with pytest.raises(NoDeadLetterError):
        raced.redrive("job-1")
    assert world.events().count("redrive") == 1


def test_a_redriven_follower_runs_by_itself(world: World) -> None:
    """A follower that failed with the followed job runs by itself after its redrive."""
    followed = world.run()
    world.follow()
    world.ledger.fail(followed, "{}", "no")
    world.ledger.fail(world.start("follower"), "{}", "the followed job failed")
    assert world.ledger.redrive("follower").follows_id is None
    assert claim(world.store, "follower").applied


def test_the_canvas_is_notified_again(world: World) -> None:
    """A redriven job notifies its canvas of the new end, and forgets its steps, if the redrive says so."""
    world.ledger.mark_canvas_notified(fail(world, canvas=True))
    assert world.ledger.redrive("job-1", canvas=True).canvas_pending
    fail(world, "job-2")
    assert not world.ledger.redrive("job-2", forget_steps=True).canvas_pending
    assert world.store.steps("job-2") == {}


# --- replace --------------------------------------------------------------------------------------------------------

NEW: dict[str, Any] = {"payload": '{"task": "other"}', "options": '{"queue": "slow"}'}
REPLACED = "replaced by other"


def replaced(world: World, job: Job, **values: Any) -> Job:
    """Replace a job; `values` are those of `NextRun`."""
    return world.ledger.replace(job, NextRun(**({"retries": 0} | NEW | values)), canvas=False, reason=REPLACED)


def test_a_replaced_job_is_queued_as_the_new_task(world: World) -> None:
    """A replaced job is queued with the new payload and options, and without steps; nothing else of it changes."""
    job = world.run(retries=3)
    world.ledger.keep_step(job, "one", "1")
    world.ledger.crash(job, "its worker died", "{}")
    job = world.start()
    now = world.clock.advance(5.0)
    columns = {"state": State.QUEUED, "lease_until": None, "run_at": now, "wake_at": now + LEASE, "retries": 0}
    assert_changed(
        world.store, job, replaced(world, job), crashes=0, published_at=now, reason=REPLACED, **columns, **NEW
    )
    assert world.store.steps("job-1") == {}
    assert world.start().token > job.token
    world.assert_legal()


def test_a_delayed_replacement_waits(world: World) -> None:
    """A replacement with a delay runs when it is due, and not before."""
    replaced(world, world.run(), delay=60.0)
    assert take_due(world.store, limit=1, hold=1.0) == []
    world.clock.advance(60.0)
    assert [job.id for job in take_due(world.store, limit=1, hold=1.0)] == ["job-1"]
    assert world.start().attempt == 2


def test_an_overtaken_run_replaces_nothing(world: World) -> None:
    """The replacement of a run that has lost its job is refused."""
    late = world.run()
    world.ledger.crash(late, "it was presumed dead", "{}")
    world.start()
    with untouched(world.store), pytest.raises(StaleTokenError):
        replaced(world, late, payload="{}")


def test_a_cancel_request_ends_a_replaced_job(world: World) -> None:
    """A job whose run was asked to stop is canceled instead of replaced."""
    job = world.run()
    world.ledger.cancel("job-1")
    assert replaced(world, job).state is State.CANCELED
