"""A revocation is stored in the ledger: it cancels queued jobs, running jobs, and jobs without a message."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from celery.exceptions import TaskRevokedError

from onejob import Outcome, State
from onejob.jobs.records import Query
from tests.celery.harness import LEASE, PATIENCE, await_, is_running, on_every_store

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


@pytest.mark.parametrize("source", REVOKES)
def test_a_waiting_job_is_canceled(shared: House, source: str) -> None:
    """Revoking a job that waits for its time cancels it: it never runs, and its identity is free."""
    result = shared.play.apply_async((f"waits {source}", ["return"]), countdown=3600)
    REVOKES[source](shared, result)
    assert_canceled(shared, result, f"waits {source}", 0)


@on_every_store("house")
def test_a_job_is_canceled_while_no_worker_is_up(house: House) -> None:
    """A job that was revoked while all workers were down does not run when one starts."""
    result = house.play.delay("offline", ["return"])
    result.revoke()
    assert house.job(result).state is State.CANCELED
    house.worker()
    house.await_rest()
    assert_canceled(house, result, "offline", 0)
    house.assert_quiet()


@pytest.mark.parametrize("source", TERMINATES)
def test_a_running_job_is_terminated(shared: House, source: str) -> None:
    """Terminating a running job ends its run and the job: it does not run again, and its identity is free."""
    result = shared.play.delay(f"runs {source}", ["hold:never"])
    shared.await_mark(f"runs {source}")
    TERMINATES[source](shared, result)
    assert_canceled(shared, result, f"runs {source}", 1)
    assert shared.job(result).attempt == 1


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


def test_a_broadcast_reaches_a_running_job(shared: House) -> None:
    """`app.control.revoke` without `terminate` stops a running job at its next progress call."""
    result = shared.play.delay("soft", ["poll"])
    shared.await_mark("soft")
    shared.app.control.revoke(result.id)
    assert_canceled(shared, result, "soft", 1)


def test_a_body_without_steps_or_progress_completes(shared: House) -> None:
    """A revoked job whose body takes no step and reports no progress ends as its body does."""
    result = shared.play.delay("deaf", ["hold"])
    shared.await_mark("deaf")
    result.revoke()
    shared.open("deaf")
    assert result.get(PATIENCE) == "deaf"
    shared.assert_ran(result, State.COMPLETED, "deaf", 1)


@pytest.mark.parametrize("act", ["retry", "requeue", "kill"])
def test_a_revoked_job_does_not_run_again(shared: House, act: str) -> None:
    """A revoked job is canceled when its run is retried or crashes."""
    result = shared.play.delay(f"again-{act}", [f"hold>{act}"])
    shared.await_mark(f"again-{act}")
    result.revoke()
    shared.open(f"again-{act}")
    assert_canceled(shared, result, f"again-{act}", 1)


@on_every_store("shared")
def test_a_job_that_waits_for_its_retry_is_canceled(shared: House) -> None:
    """Revoking a job that waits for its retry cancels it: there is no further run."""
    result = shared.play.delay("retrying", ["retry:3600"])
    shared.await_state(result, State.RETRYING)
    result.revoke()
    assert_canceled(shared, result, "retrying", 1)


def test_a_duplicate_revokes_the_job_that_serves_it(shared: House) -> None:
    """All submissions of a job share it: a revocation through one of them cancels it for all."""
    first = shared.play.apply_async(("of-two", ["return"]), countdown=3600)
    second = shared.play.apply_async(("of-two", ["return"]), countdown=3600)
    assert (second.id, second.outcome) == (first.id, Outcome.ATTACHED)
    second.revoke()
    assert_canceled(shared, first, "of-two", 0)


def test_revoking_a_job_that_has_ended_changes_nothing(shared: House) -> None:
    """A completed job stays completed, with its result, when it is revoked."""
    result = shared.play.delay("ended", ["return"])
    assert result.get(PATIENCE) == "ended"
    result.revoke(terminate=True)
    shared.app.control.revoke(result.id)
    shared.assert_ran(result, State.COMPLETED, "ended", 1)
    assert result.get(PATIENCE) == "ended"


def test_revoking_an_unknown_id_is_harmless(shared: House) -> None:
    """Revoking an unknown id is harmless, and the worker continues."""
    shared.play.AsyncResult("no-such-job").revoke(terminate=True)
    shared.app.control.revoke("no-such-job-either")
    assert shared.play.delay("unharmed", ["return"]).get(PATIENCE) == "unharmed"


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_a_run_without_a_process_of_its_own_stops_by_itself(house: House, pool: str) -> None:
    """Where a run cannot be killed, `terminate` stops it at its next progress call."""
    house.worker("--pool", pool)
    result = house.play.delay("cooperates", ["poll"])
    house.await_mark("cooperates")
    result.revoke(terminate=True)
    assert_canceled(house, result, "cooperates", 1)
    house.assert_quiet()


def test_an_old_revocation_does_not_reach_a_redriven_job(house: House, tmp_path: Path) -> None:
    """A revocation of a failed job is over when the job is redriven, also for a worker that remembers the id."""
    remembers = ("-c", "1", "--statedb", str(tmp_path / "state.db"))
    worker = house.worker(*remembers)
    result = house.play.delay("redriven", ["raise", "return"])
    house.await_state(result, State.FAILED)
    house.app.control.revoke(result.id)
    worker.await_text("Tasks flagged as revoked")
    worker.sigterm()
    worker.await_end()
    house.ledger.redrive(result.id)
    house.worker(*remembers).await_text("was redriven")
    house.assert_ran(result, State.COMPLETED, "redriven", 2)
    house.assert_quiet()


def test_a_redriven_job_can_be_revoked(house: House) -> None:
    """A job that was redriven is canceled by a new revocation through its result."""
    worker = house.worker("-c", "1")
    result = house.play.delay("revoked anew", ["raise", "return"])
    house.await_state(result, State.FAILED)
    worker.sigterm()
    worker.await_end()
    house.ledger.redrive(result.id)
    result.revoke()
    house.worker("-c", "1")
    assert_canceled(house, result, "revoked anew", 1)
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
    late = 0
    while any(house.ledger.counts(Query(task="play"))[state] for state in (State.QUEUED, State.RETRYING)):
        job = house.job(held)
        late += (job.lease_until or 0.0) < time.time()
        assert (job.state, job.attempt) == (State.RUNNING, 1)
        time.sleep(0.1)
    house.open("held")
    assert held.get(PATIENCE) == "held"
    job = house.job(held)
    assert (late, job.attempt, job.crashes) == (0, 1, 0)
    assert house.ledger.counts(Query(task="play"))[State.CANCELED] == len(waiting)
    house.assert_quiet()
