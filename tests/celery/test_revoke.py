"""A revocation is stored in the ledger: it cancels queued jobs, running jobs, and jobs without a message."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from celery.exceptions import TaskRevokedError

from onejob import Outcome, State
from onejob.jobs.records import Query
from tests.celery.harness import LEASE, PATIENCE, await_, is_running
from tests.quiet import KILLED, provokes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from onejob import AsyncResult
    from tests.celery.harness import House

REVOKES: dict[str, Callable[[House, AsyncResult], object]] = {
    "AsyncResult.revoke": lambda _, result: result.revoke(),
    "control.revoke": lambda house, result: house.app.control.revoke(result.id),
}
TERMINATES: dict[str, Callable[[House, AsyncResult], object]] = {
    "AsyncResult.revoke": lambda _, result: result.revoke(terminate=True),
    "AsyncResult.revoke KILL": lambda _, result: result.revoke(terminate=True, signal="SIGKILL"),
    "control.revoke": lambda house, result: house.app.control.revoke(result.id, terminate=True),
    "control.revoke KILL": lambda house, result: house.app.control.revoke(result.id, terminate=True, signal="SIGKILL"),
    "control.terminate": lambda house, result: house.app.control.terminate(result.id),
    "ledger.cancel": lambda house, result: house.ledger.cancel(result.id, force=True),
}


def assert_canceled(house: House, result: AsyncResult, key: str, runs: int) -> None:
    """Assert that a job was canceled after this many runs, is reported as canceled, and blocks no equal job."""
    house.assert_ran(result, State.CANCELED, key, runs)
    with pytest.raises(TaskRevokedError):
        result.get(PATIENCE)


def test_a_waiting_job_is_canceled(shared: House) -> None:
    """A job that waits for its time or its retry is canceled, through any of its submissions, and never runs again."""
    for source, revoke in REVOKES.items():
        result = shared.play.apply_async((source, ["return"]), countdown=3600)
        again = shared.play.apply_async((source, ["return"]), countdown=3600)
        assert (again.id, again.outcome) == (result.id, Outcome.ATTACHED)
        revoke(shared, again)
        assert_canceled(shared, result, source, 0)
    retrying = shared.play.delay("retrying", ["retry:3600"])
    shared.await_state(retrying, State.RETRYING)
    retrying.revoke()
    assert_canceled(shared, retrying, "retrying", 1)


def test_a_job_is_canceled_while_no_worker_is_up(house: House) -> None:
    """A job that was revoked while all workers were down does not run when one starts."""
    result = house.play.delay("offline", ["return"])
    result.revoke()
    assert house.job(result).state is State.CANCELED
    house.worker()
    house.await_rest()
    assert_canceled(house, result, "offline", 0)
    house.assert_quiet()


@provokes(logs=[KILLED], because="the heartbeat kills the child")
def test_a_running_job_is_terminated(shared: House) -> None:
    """Terminating a running job ends its run and the job: it does not run again, and its identity is free."""
    for source, terminate in TERMINATES.items():
        result = shared.play.delay(source, ["hold:never"])
        shared.await_mark(source)
        terminate(shared, result)
        assert_canceled(shared, result, source, 1)
        assert shared.job(result).attempt == 1


@provokes(logs=[KILLED], because="the body ignores its signal")
def test_a_run_that_ignores_its_signal_is_killed(shared: House) -> None:
    """A body that ignores its termination signal is killed, and its identity is freed only then."""
    result = shared.play.delay("refuses", ["stay"])
    mark = shared.await_mark("refuses")[0]
    shared.app.control.terminate(result.id)
    shared.await_mark("refuses", "stays")
    shared.await_state(result, State.CANCELED)
    await_(lambda: not is_running(mark["pid"]))
    assert_canceled(shared, result, "refuses", 1)


def test_a_running_job_stops_at_its_next_step(shared: House) -> None:
    """A job that is revoked while it runs is canceled at its next step; the step is not computed."""
    result = shared.walk.delay("stops", ["one", "two", "three"], {"two": "hold"})
    shared.await_mark("stops", "before two")
    result.revoke()
    shared.open("stops")
    shared.await_state(result, State.CANCELED)
    assert [len(shared.marks("stops", f"step {name}")) for name in ("one", "two", "three")] == [1, 0, 0]
    assert shared.runs("stops") == 1
    assert shared.walk.delay("stops", ["one"]).get(PATIENCE) != []


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_a_run_without_a_process_of_its_own_stops_by_itself(house: House, pool: str) -> None:
    """Where a run cannot be killed, `terminate` stops it at its next progress call."""
    house.worker("--pool", pool)
    result = house.play.delay("cooperates", ["poll"])
    house.await_mark("cooperates")
    result.revoke(terminate=True)
    assert_canceled(house, result, "cooperates", 1)
    house.assert_quiet()


def test_a_revocation_shows_at_what_the_body_does_next(shared: House) -> None:
    """A revoked run ends at its progress, state, retry, requeue or crash; one that does nothing of these completes."""
    acts = ("poll:never", "hold>update_state", "hold>retry", "hold>requeue", "hold>kill")
    for act in acts:
        result = shared.play.delay(act, [act.replace("hold", "hold:go")])
        shared.await_mark(act)
        shared.app.control.revoke(result.id) if "poll" in act else result.revoke()
        shared.open("go")
        assert_canceled(shared, result, act, 1)
        assert not shared.marks(act, "updated")
        (shared.directory / "gate-go").unlink()
    deaf = shared.play.delay("deaf", ["hold"])
    shared.await_mark("deaf")
    deaf.revoke()
    shared.open("deaf")
    assert deaf.get(PATIENCE) == "deaf"
    shared.assert_ran(deaf, State.COMPLETED, "deaf", 1)


def test_revoking_what_does_not_wait_or_run_changes_nothing(shared: House) -> None:
    """A completed job stays completed, with its result, when it is revoked; an unknown id is harmless."""
    result = shared.play.delay("ended", ["return"])
    assert result.get(PATIENCE) == "ended"
    result.revoke(terminate=True)
    shared.app.control.revoke(result.id)
    shared.play.AsyncResult("no-such-job").revoke(terminate=True)
    shared.app.control.revoke("no-such-job-either")
    shared.assert_ran(result, State.COMPLETED, "ended", 1)
    assert result.get(PATIENCE) == "ended"


def test_an_old_revocation_does_not_reach_a_redriven_job(house: House, tmp_path: Path) -> None:
    """A revocation of a failed job is over at its redrive, also for a worker that remembers it; a new one counts."""
    remembers = ("-c", "1", "--statedb", str(tmp_path / "state.db"))
    worker = house.worker(*remembers)
    redriven, anew = (house.play.delay(key, ["raise", "return"]) for key in ("redriven", "anew"))
    for result in (redriven, anew):
        house.await_state(result, State.FAILED)
    house.app.control.revoke(redriven.id)
    worker.await_text("Tasks flagged as revoked")
    worker.sigterm()
    worker.await_end()
    for result in (redriven, anew):
        house.ledger.redrive(result.id)
    anew.revoke()
    house.worker(*remembers).await_text("was redriven")
    house.assert_ran(redriven, State.COMPLETED, "redriven", 2)
    assert_canceled(house, anew, "anew", 1)
    house.assert_quiet()


@pytest.mark.deep
@pytest.mark.parametrize("house", ["postgresql"], indirect=True)
def test_thousands_of_revocations_delay_no_heartbeat(house: House) -> None:
    """While thousands of revocations are handled, each lease is renewed in time, and each named job is canceled."""
    house.use_lease(LEASE)
    house.worker("-c", "2", onejob_heartbeat=1.0)
    held = house.play.delay("held", ["hold"])
    house.await_mark("held")
    waiting = house.play.submit_many([(f"waits {number}", ["return"]) for number in range(3000)], countdown=3600)
    unknown = [f"unknown-{number}" for number in range(32_000)]
    house.app.control.revoke([*unknown, *(result.id for result in waiting)])
    while any(house.ledger.counts(Query(task="play"))[state] for state in (State.QUEUED, State.RETRYING)):
        job = house.job(held)
        assert (job.state, job.attempt) == (State.RUNNING, 1)
        time.sleep(0.1)
    house.open("held")
    assert held.get(PATIENCE) == "held"
    job = house.job(held)
    assert (job.attempt, job.crashes) == (1, 0)
    assert house.ledger.counts(Query(task="play"))[State.CANCELED] == len(waiting)
    house.assert_quiet()
