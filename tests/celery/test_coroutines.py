"""Coroutines as bodies: the pool `-P onejob` runs many at once, and every other pool runs one after the other."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import celery
import pytest

from onejob.jobs.lifecycle import State, Transition
from onejob.ledger.explain import explain
from onejob.observability.events import LOOP_HELD
from onejob.stores.protocol import LOOK_INTERVAL
from tests.cases import further
from tests.celery.harness import DELIVERS, LEASE, PATIENCE, Cluster, await_
from tests.celery.test_crash import stops
from tests.quiet import provokes

POOL = ("--pool", "onejob")
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "SQLite, a Redis": ("sqlite", {}),
    "one Redis": ("broker", {}),
    "SQLite alone": ("sqlite", DELIVERS),
    "PostgreSQL alone": ("postgresql", DELIVERS),
    "PostgreSQL, a Redis": ("postgresql", {}),
}


@pytest.fixture(
    params=["one Redis", "SQLite alone", *further("SQLite, a Redis", "PostgreSQL alone", "PostgreSQL, a Redis")]
)
def looped(request: pytest.FixtureRequest, new_cluster: Callable[..., Cluster]) -> Cluster:
    """Return a cluster without a worker, by its ledger and its broker."""
    kind, settings = KINDS[request.param]
    return new_cluster(kind, **settings)


def test_many_wait_at_once_and_no_more_than_the_concurrency(looped: Cluster) -> None:
    """A worker runs as many coroutines at once as its concurrency, and the others after them."""
    results = looped.await_play.submit_many([(f"wait-{number}", ["hold:all"]) for number in range(45)])
    looped.worker(*POOL, "-c", "40")
    await_(lambda: sum(looped.runs(f"wait-{number}") for number in range(45)) == 40)
    late = looped.play.delay("late", ["return:late"])
    looped.open("all")
    assert [result.get(PATIENCE) for result in results] == [f"wait-{number}" for number in range(45)]
    assert late.get(PATIENCE) == "late"
    assert {looped.runs(f"wait-{number}") for number in range(45)} == {1}
    looped.assert_quiet()


@pytest.mark.parametrize("pool", ["prefork", "onejob", *further("threads", "solo")])
def test_every_pool_awaits_a_body(cluster: Cluster, pool: str) -> None:
    """The result of a job is that of its coroutine, its exception fails or retries it, and `retry` runs it again."""
    cluster.worker("--pool", pool, "-c", "1")
    done = cluster.await_play.delay("done", ["return:done"])
    again = cluster.await_play.delay("again", ["retry", "return:again"])
    auto = cluster.await_play_autoretry.delay("auto", ["raise", "return:auto"])
    failed = cluster.await_play.delay("failed", ["raise"])
    assert [each.get(PATIENCE) for each in (done, again, auto)] == ["done", "again", "auto"]
    with pytest.raises(ValueError, match="failed"):
        failed.get(PATIENCE)
    assert [cluster.runs(key) for key in ("done", "again", "auto", "failed")] == [1, 2, 2, 1]
    cluster.assert_quiet()


def test_canvases_of_coroutines_and_functions_go_on(looped: Cluster) -> None:
    """Chains and chords go on from a coroutine to a function and back, and a replacement runs."""
    looped.worker(*POOL, "-c", "20")
    link = looped.await_play.si("first", ["return:1"]) | looped.note.s("second") | looped.add.s([3])
    assert link.delay().get(PATIENCE) == ["second", "1", 3]
    header = [looped.await_play.si(f"member-{number}", [f"return:{number}"]) for number in range(5)]
    body = looped.gather.s("body")
    celery.chord([*header, looped.echo.si("5")], body).delay()
    (mark,) = looped.await_mark("body", "gather")
    assert mark["values"] == ["0", "1", "2", "3", "4", "5"]
    replaced = looped.await_play.delay("replaced", ["replace:add"], [1, 2])
    assert replaced.get(PATIENCE) == 3
    looped.assert_quiet()


def test_the_tasks_and_threads_of_a_body_are_of_its_job(cluster: Cluster) -> None:
    """`self.request` and `current_job` in a gathered coroutine, and in a thread of it, are those of the body."""
    cluster.worker(*POOL, "-c", "20")
    results = cluster.await_play.submit_many([(f"asks-{number}", ["children"]) for number in range(20)])
    assert [each.get(PATIENCE) for each in results] == [[True, True]] * 20
    cluster.assert_quiet()


# --- interruptions ----------------------------------------------------------------------------------------------------


@provokes(logs=["TimeLimitExceeded"], because="the limits are exceeded")
def test_a_cancellation_and_a_time_limit_interrupt_a_body(looped: Cluster) -> None:
    """A body that waits gets a `CancelledError` with the reason; its job ends as canceled, or failed by the limit."""
    looped.worker(*POOL, "-c", "20", test_heartbeat=0.2)
    asked, revoked = looped.begin("asked", task="await_play"), looped.begin("revoked", task="await_play")
    soft, hard = (looped.begin(key, task=f"await_play_{key}") for key in ("soft", "hard"))
    looped.ledger.cancel(asked.id)
    revoked.revoke(terminate=True)
    for result in (asked, revoked):
        looped.await_state(result, State.CANCELED)
    for result, error in ((soft, "SoftTimeLimitExceeded"), (hard, "TimeLimitExceeded")):
        assert looped.await_state(result, State.FAILED).reason.startswith(error)
    assert looped.job(hard).attempt == 1, "a hard time limit is not retried, whatever `autoretry_for` says"
    reasons = {"asked": "JobCanceled", "revoked": "JobCanceled", "soft": "SoftTimeLimit", "hard": "TimeLimit"}
    for key, reason in reasons.items():
        (mark,) = looped.await_mark(key, "interrupted")
        assert mark["reason"].startswith(reason)
        looped.assert_free(key, task="await_play")
    looped.assert_quiet()


@provokes(logs=["goes on after JobCanceled"], because="the body goes on")
def test_a_body_that_goes_on_is_ended_without_it(cluster: Cluster) -> None:
    """A body that swallows its cancellation is ended in the ledger, its place is free, and its result is refused."""
    worker = cluster.worker(*POOL, "-c", "1", test_heartbeat=0.2)
    result = cluster.begin("swallows", ["swallow"], task="await_play")
    cluster.ledger.cancel(result.id)
    cluster.await_state(result, State.CANCELED)
    assert cluster.await_play.delay("next", ["return:next"]).get(PATIENCE) == "next"
    cluster.open("swallows")
    cluster.await_mark("swallows", "end")
    worker.await_text("that run is over, the job is canceled")
    assert cluster.job(result).state is State.CANCELED
    cluster.assert_quiet()


@stops
def test_a_stopping_worker_releases_its_coroutines(looped: Cluster) -> None:
    """A worker that shuts down interrupts the bodies, and the next worker runs the jobs again, without a crash."""
    looped.use_lease(2 * PATIENCE)
    worker = looped.worker(*POOL, "-c", "10")
    results = [looped.begin(f"leaves-{number}", ["hold", "return:again"], task="await_play") for number in range(5)]
    worker.stop()
    for number, result in enumerate(results):
        assert looped.job(result).state is State.QUEUED
        assert looped.marks(f"leaves-{number}", "interrupted")[0]["reason"].startswith("JobReleased")
    looped.worker(*POOL, "-c", "10")
    assert [result.get(PATIENCE) for result in results] == ["again"] * 5
    assert {(looped.job(result).attempt, looped.job(result).crashes) for result in results} == {(2, 0)}
    looped.assert_quiet()


@provokes(Transition.CRASH, because="a worker is killed")
def test_a_killed_worker_loses_no_coroutine(looped: Cluster) -> None:
    """The jobs of a worker that is killed run once more elsewhere, when their leases are over."""
    looped.use_lease(LEASE)
    first = looped.worker(*POOL, "-c", "20")
    results = [looped.begin(f"lost-{number}", ["hold", "return:again"], task="await_play") for number in range(5)]
    first.sigkill()
    looped.worker(*POOL, "-c", "20")
    assert [result.get(PATIENCE) for result in results] == ["again"] * 5
    assert {(looped.job(each).attempt, looped.job(each).crashes) for each in results} == {(2, 1)}
    looped.assert_quiet()


@pytest.mark.deep
@provokes(Transition.CRASH, because="a worker is frozen for longer than its leases")
def test_a_thawed_worker_ends_the_bodies_that_others_run(looped: Cluster) -> None:
    """A body whose lease was lost to another worker is interrupted, and its writes are refused."""
    looped.use_lease(LEASE)
    first = looped.worker(*POOL, "-c", "5")
    result = looped.begin("frozen", ["hold", "hold:other"], task="await_play")
    first.freeze()
    looped.worker(*POOL, "-c", "5")
    looped.await_mark("frozen", times=2)
    first.thaw()
    (mark,) = looped.await_mark("frozen", "interrupted")
    assert mark["reason"].startswith("LeaseLost")
    looped.open("other")
    assert result.get(PATIENCE) == "frozen"
    looped.assert_quiet()


# --- beside coroutines ------------------------------------------------------------------------------------------------


def test_code_that_holds_the_loop_is_named(cluster: Cluster) -> None:
    """A body that blocks the event loop is named by an event, in the log of its run, and where one asks why."""
    worker = cluster.worker(*POOL, "-c", "5")
    for act in ("block:2", "hog:2"):  # the second one ends its run before the loop can say so
        result = cluster.await_play.delay(act, [act])
        assert result.get(PATIENCE) == act
        worker.await_text(f"event={LOOP_HELD} job_id={result.id}")
        (log,) = await_(partial(cluster.ledger.run_logs, cluster.job(result)))
        assert "held the event loop for" in log.text
        assert " s at app.py:" in log.text
        sentences = explain(cluster.ledger, result.id).sentences
        assert any("held the event loop of its worker for" in each for each in sentences)
    cluster.assert_quiet()


def test_a_function_blocks_no_coroutine(cluster: Cluster) -> None:
    """Functions run in threads: while they block, coroutines go on."""
    cluster.worker(*POOL, "-c", "10")
    held = [cluster.begin(f"held-{number}", ["hold:held"]) for number in range(3)]
    assert cluster.await_play.delay("quick", ["return:quick"]).get(PATIENCE) == "quick"
    cluster.open("held")
    assert [each.get(PATIENCE) for each in held] == ["held-0", "held-1", "held-2"]
    cluster.assert_quiet()


def test_a_coroutine_of_celery_runs_and_is_terminated(looped: Cluster) -> None:
    """A task of Celery's own class with an `async def` body runs in the pool, and `terminate` interrupts it."""
    looped.worker(*POOL, "-c", "10")
    looped.await_plain.delay("runs")
    looped.await_mark("runs")
    looped.open("runs")
    looped.await_mark("runs", "end")
    ended = looped.await_plain.delay("ended")
    looped.await_mark("ended")
    ended.revoke(terminate=True)
    looped.await_mark("ended", "end")
    looped.assert_quiet()


def test_messages_of_other_tasks_pass_the_feed(new_cluster: Callable[..., Cluster]) -> None:
    """In a list of messages of jobs and of plain tasks by turns, all run once."""
    cluster = new_cluster("broker")
    for number in range(30):
        cluster.await_play.delay(f"job-{number}", ["return:job"])
        cluster.plain.delay(f"plain-{number}")
    cluster.worker(*POOL, "-c", "4")
    await_(lambda: all(cluster.marks(f"plain-{number}", "plain") for number in range(30)))
    cluster.await_rest()
    assert {len(cluster.marks(f"plain-{number}", "plain")) for number in range(30)} == {1}
    assert {cluster.runs(f"job-{number}") for number in range(30)} == {1}
    cluster.assert_quiet()


@pytest.mark.parametrize("kind", ["PostgreSQL alone", "one Redis", *further("SQLite alone")])
def test_an_idle_worker_begins_a_job_at_its_signal(new_cluster: Callable[..., Cluster], kind: str) -> None:
    """Jobs that come one after the other, and one that waits for a new queue's consumer, wait for no regular look."""
    store, settings = KINDS[kind]
    cluster = new_cluster(store, **settings)
    cluster.worker(*POOL, "-c", "4")
    began = time.monotonic()
    for number in range(5):
        assert cluster.await_play.delay(f"{number}", [f"return:{number}"]).get(PATIENCE) == f"{number}"
    waiting = cluster.await_play.apply_async(("later", ["return:later"]), queue="later")
    cluster.app.control.add_consumer("later", reply=True)
    assert waiting.get(PATIENCE) == "later"
    assert time.monotonic() - began < 2 * LOOK_INTERVAL, "with a look for each job it would be five times that interval"
    cluster.assert_quiet()


def test_limits_hold_for_coroutines(looped: Cluster) -> None:
    """Of jobs with a limit as many run at once as it permits, also in one event loop."""
    looped.worker(*POOL, "-c", "20")
    results = looped.await_play_limited.submit_many([(f"a-{number}", ["hold:limited"]) for number in range(6)])
    await_(lambda: sum(looped.runs(f"a-{number}") for number in range(6)) == 2)
    looped.open("limited")
    assert len([each.get(PATIENCE) for each in results]) == 6
    looped.assert_quiet()


@stops
def test_a_cold_shutdown_releases_its_coroutines(looped: Cluster) -> None:
    """After SIGQUIT the jobs of a worker are queued, without a crash: whether or not it took one again."""
    looped.use_lease(2 * PATIENCE)
    worker = looped.worker(*POOL, "-c", "5")
    results = [looped.begin(f"cold-{number}", ["hold:cold"], task="await_play") for number in range(3)]
    os.kill(worker.pid, signal.SIGQUIT)
    worker.await_end()
    assert {(looped.job(result).state, looped.job(result).crashes) for result in results} == {(State.QUEUED, 0)}
    looped.open("cold")
    looped.worker(*POOL, "-c", "5")
    assert [result.get(PATIENCE) for result in results] == [f"cold-{number}" for number in range(3)]


@stops
@provokes(logs=["goes on after JobReleased"], because="the body goes on")
def test_a_stopping_worker_releases_a_body_that_goes_on(cluster: Cluster) -> None:
    """A worker that shuts down waits until it has given up a body that swallows its interruption."""
    worker = cluster.worker(*POOL, "-c", "2")
    result = cluster.begin("swallows", ["swallow", "return:again"], task="await_play")
    worker.stop()
    assert cluster.job(result).state is State.QUEUED


def test_an_autoscaler_adds_places_for_waiting_jobs(looped: Cluster) -> None:
    """A worker with `--autoscale` takes jobs for as many places as it may have, and runs them at once."""
    results = looped.await_play.submit_many([(f"scales-{number}", ["hold:scales"]) for number in range(6)])
    looped.worker(*POOL, "--autoscale", "6,1")
    await_(lambda: sum(looped.runs(f"scales-{number}") for number in range(6)) == 6)
    looped.open("scales")
    assert len([result.get(PATIENCE) for result in results]) == 6
    looped.assert_quiet()


@provokes(logs=["the worker cannot start"], because="the pool refuses the option")
def test_what_the_pool_cannot_do_is_refused_at_the_start(cluster: Cluster) -> None:
    """A worker with a number of tasks per process does not start, and says why."""
    worker = cluster.start(*POOL, "--max-tasks-per-child", "5")
    worker.await_end()
    assert "which it cannot replace as worker_max_tasks_per_child says" in worker.text


def test_remote_control_changes_how_many_run(cluster: Cluster) -> None:
    """`pool_grow` and `pool_shrink` change how many coroutines run at once, from then on."""
    cluster.worker(*POOL, "-c", "2")
    cluster.await_play.submit_many([(f"grows-{number}", ["hold:grows"]) for number in range(5)])
    await_(lambda: sum(cluster.runs(f"grows-{number}") for number in range(5)) == 2)
    cluster.app.control.pool_grow(2)
    await_(lambda: sum(cluster.runs(f"grows-{number}") for number in range(5)) == 4)
    cluster.app.control.pool_shrink(3)
    cluster.open("grows")
    cluster.await_rest()
    cluster.assert_quiet()
