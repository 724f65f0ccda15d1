"""A revocation, or an expiry, is stored in the ledger: it ends jobs that wait, run, or have no message."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError

from onejob import AsyncResult, Outcome, State
from onejob.jobs.model import Cancel
from onejob.jobs.query import Query
from tests.cases import further
from tests.celery.harness import HEARTBEAT, LEASE, PATIENCE, Cluster, await_, is_running
from tests.quiet import KILLED, provokes

REVOKES: dict[str, Callable[[Cluster, AsyncResult], object]] = {
    "AsyncResult.revoke": lambda _, result: result.revoke(),
    "control.revoke": lambda cluster, result: cluster.app.control.revoke(result.id),
}
TERMINATES: dict[str, Callable[[Cluster, AsyncResult], object]] = {
    "AsyncResult.revoke": lambda _, result: result.revoke(terminate=True),
    "control.revoke KILL": lambda cluster, result: cluster.app.control.revoke(
        result.id, terminate=True, signal="SIGKILL"
    ),
    "control.terminate": lambda cluster, result: cluster.app.control.terminate(result.id),
    "ledger.cancel": lambda cluster, result: cluster.ledger.cancel(result.id, force=True),
}


def assert_canceled(cluster: Cluster, result: AsyncResult, key: str, runs: int) -> None:
    """Assert that a job was canceled after this many runs, is reported as canceled, and blocks no equal job."""
    cluster.assert_ran(result, State.CANCELED, key, runs)
    with pytest.raises(TaskRevokedError):
        result.get(PATIENCE)


def test_a_waiting_job_is_canceled(shared: Cluster) -> None:
    """A job that waits for its time or its retry is canceled, through any of its submissions, and never runs again."""
    for source, revoke in REVOKES.items():
        result, again = (shared.play.apply_async((source, ["return"]), countdown=3600) for _ in range(2))
        assert (again.id, again.outcome) == (result.id, Outcome.ATTACHED)
        revoke(shared, again)
        assert_canceled(shared, result, source, 0)
    retrying = shared.play.delay("retrying", ["retry:3600"])
    shared.await_state(retrying, State.RETRYING)
    retrying.revoke()
    assert_canceled(shared, retrying, "retrying", 1)
    ended = shared.play.delay("ended", ["return"])
    assert ended.get(PATIENCE) == "ended"
    for harmless in (ended, shared.play.AsyncResult("no-such-job")):
        harmless.revoke(terminate=True)
        shared.app.control.revoke(harmless.id)
    shared.assert_ran(ended, State.COMPLETED, "ended", 1)


def test_a_job_expires_before_it_starts(shared: Cluster) -> None:
    """A job that expires before it is due never runs; a start, or a duplicate without an expiry, ends the expiry."""
    forms = {"seconds": 0.5, "datetime": datetime.now(UTC) + timedelta(seconds=0.5)}
    for key, expires in forms.items():
        result = shared.play.apply_async((key, ["return"]), countdown=3600, expires=expires)
        assert "expired" in shared.assert_ran(result, State.CANCELED, key, 0).reason
    started = shared.play.apply_async(("started", ["hold"]), expires=600)
    shared.await_mark("started")
    assert shared.job(started).expires_at is None
    shared.open("started")
    assert started.get(PATIENCE) == "started"


def test_a_message_without_a_use_runs_nothing(cluster: Cluster) -> None:
    """Revoked and expired before a worker is up, a job does not run; an expired copy cancels no run."""
    revoked, late = (
        cluster.play.delay("offline", ["return"]),
        cluster.play.apply_async(("late", ["return"]), expires=0.2),
    )
    revoked.revoke()
    past = datetime.now(UTC) - timedelta(seconds=5)
    foreign = cluster.app.send_task("play", ("foreign", ["return"]), expires=past).id
    await_(lambda: cluster.ledger.read_clock() > (cluster.job(late).expires_at or 0.0))
    cluster.worker("-c", "2").await_text(f"Discarding revoked task: play[{foreign}]")
    cluster.await_rest()
    assert_canceled(cluster, revoked, "offline", 0)
    cluster.assert_ran(late, State.CANCELED, "late", 0)
    assert cluster.runs("foreign") == 0
    cluster.assert_free("foreign")
    sent = cluster.app.send_task("play", ("copied", ["hold"])).id
    cluster.await_mark("copied")
    for _ in range(2):  # Celery regards the second as revoked, since the first has expired
        cluster.app.send_task("play", ("copied", ["hold"]), task_id=sent, expires=past)
    assert cluster.anywhere.delay("behind them").get(PATIENCE) == "behind them"
    assert cluster.job(sent).cancel is Cancel.NO
    cluster.open("copied")
    cluster.assert_ran(cluster.play.AsyncResult(sent), State.COMPLETED, "copied", 1)
    cluster.assert_quiet()


def test_a_revoked_stamp_is_for_jobs_that_have_not_started(cluster: Cluster) -> None:
    """A revocation by a stamp cancels the jobs with it that wait or come later, and none whose copy runs."""
    cluster.worker("-c", "2")
    stamps: Any = {"stamped_headers": ["tenant"], "tenant": "ada"}
    running = cluster.play.apply_async(("running", ["hold"]), **stamps)
    cluster.await_mark("running")
    cluster.app.control.revoke_by_stamped_headers({"tenant": ["ada"]}, reply=True)
    cluster.app.send_task("play", ("running", ["hold"]), task_id=running.id, **stamps)
    cluster.assert_ran(cluster.play.apply_async(("later", ["return"]), **stamps), State.CANCELED, "later", 0)
    assert cluster.job(running).cancel is Cancel.NO
    cluster.open("running")
    cluster.assert_ran(running, State.COMPLETED, "running", 1)
    cluster.assert_quiet()


@provokes(logs=[KILLED], because="the heartbeat kills the child")
def test_a_running_job_is_terminated(shared: Cluster) -> None:
    """Terminating a job ends its run, also one that ignores its signal, and the job; then its identity is free."""
    for source, terminate in TERMINATES.items():
        result = shared.begin(source, ["hold:never"])
        terminate(shared, result)
        assert_canceled(shared, result, source, 1)
    refuses = shared.play.delay("refuses", ["stay"])
    mark = shared.await_mark("refuses", "stays")[0]
    shared.app.control.terminate(refuses.id)
    shared.await_state(refuses, State.CANCELED)
    await_(lambda: not is_running(mark["pid"]))
    assert_canceled(shared, refuses, "refuses", 1)


@pytest.mark.parametrize("pool", ["threads", *further("solo")])
def test_a_run_without_a_process_of_its_own_stops_by_itself(cluster: Cluster, pool: str) -> None:
    """Where a run cannot be killed, `terminate` stops it at its next progress call."""
    cluster.worker("--pool", pool)
    result = cluster.begin("cooperates", ["poll"])
    result.revoke(terminate=True)
    assert_canceled(cluster, result, "cooperates", 1)
    cluster.assert_quiet()


def test_a_revocation_shows_at_what_the_body_does_next(shared: Cluster) -> None:
    """A revoked run ends at its step, progress, state, retry, requeue or crash; without one it completes, unkilled."""
    acts = ("poll:never", "hold>update_state", "hold>retry", "hold>requeue", "hold>kill")
    steps = shared.run_steps.delay("stops", ["one", "two", "three"], {"two": "hold"})
    shared.await_mark("stops", "before two")
    steps.revoke()
    shared.open("stops")
    for act in acts:
        result = shared.begin(act, [act.replace("hold", "hold:go")])
        shared.app.control.revoke(result.id) if "poll" in act else result.revoke()
        shared.open("go")
        assert_canceled(shared, result, act, 1)
        assert not shared.marks(act, "updated")
        (shared.directory / "gate-go").unlink()
    shared.await_state(steps, State.CANCELED)
    assert [len(shared.marks("stops", f"step {name}")) for name in ("one", "two", "three")] == [1, 0, 0]
    held = shared.begin("hold")
    held.revoke()
    twice_renewed = (shared.job(held).lease_until or 0.0) + 2 * HEARTBEAT
    await_(lambda: (shared.job(held).lease_until or 0.0) > twice_renewed)
    shared.open("hold")
    shared.assert_ran(held, State.COMPLETED, "hold", 1)


def test_an_old_revocation_does_not_reach_a_redriven_job(cluster: Cluster, tmp_path: Path) -> None:
    """A revocation of a failed job is over at its redrive, also for a worker that remembers it; a new one counts."""
    remembers = ("-c", "1", "--statedb", str(tmp_path / "state.db"))
    worker = cluster.worker(*remembers)
    redriven, anew = (cluster.play.delay(key, ["raise", "return"]) for key in ("redriven", "anew"))
    for result in (redriven, anew):
        cluster.await_state(result, State.FAILED)
    cluster.app.control.revoke(redriven.id)
    worker.await_text("Tasks flagged as revoked")
    worker.stop()
    for result in (redriven, anew):
        cluster.ledger.redrive(result.id)
    anew.revoke()
    cluster.worker(*remembers).await_text("was redriven")
    cluster.assert_ran(redriven, State.COMPLETED, "redriven", 2)
    assert_canceled(cluster, anew, "anew", 1)
    cluster.assert_quiet()


@pytest.mark.deep
@pytest.mark.parametrize("cluster", ["postgresql"], indirect=True)
def test_thousands_of_revocations_delay_no_heartbeat(cluster: Cluster) -> None:
    """While thousands of revocations are handled, each lease is renewed in time, and each named job is canceled."""
    cluster.use_lease(LEASE)
    cluster.worker("-c", "2", test_heartbeat=1.0)
    held = cluster.begin("held")
    waiting = cluster.play.submit_many([(f"waits {number}", ["return"]) for number in range(3000)], countdown=3600)
    unknown = [f"unknown-{number}" for number in range(32_000)]
    cluster.app.control.revoke([*unknown, *(result.id for result in waiting)])
    while any(cluster.ledger.counts(Query(task="play"))[state] for state in (State.QUEUED, State.RETRYING)):
        job = cluster.job(held)
        assert (job.state, job.attempt) == (State.RUNNING, 1)
        time.sleep(0.1)
    cluster.open("held")
    assert held.get(PATIENCE) == "held"
    assert (cluster.job(held).attempt, cluster.job(held).crashes) == (1, 0)
    assert cluster.ledger.counts(Query(task="play"))[State.CANCELED] == len(waiting)
    cluster.assert_quiet()
