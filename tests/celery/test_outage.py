"""The store or the broker is away: no job is lost or repeated, and a healthy run goes on."""

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import redis
from celery.result import GroupResult

from onejob import Outcome, State, StoreUnavailableError
from onejob.celery.messages.publisher import Publisher
from onejob.celery.results.result import EndWait
from onejob.errors import BrokerUnavailableError, StoreUnusableError
from onejob.jobs.lifecycle import Transition
from tests.celery.app import PLAIN
from tests.celery.harness import LEASE, LONG_LEASE, PATIENCE, Cluster, await_, is_running, pause_until
from tests.conftest import make_ledger
from tests.quiet import KILLED, provokes
from tests.services import RedisServer, Server, start_postgres, start_redis

# --- the store --------------------------------------------------------------------------------------------------------


KEYS = ("one", "two", "three", "four")
AWAY = 2 * LEASE
"""Seconds that the store is away."""


@contextmanager
def _server_away(server: Server) -> Iterator[None]:
    server.stop()
    yield
    server.start()


@contextmanager
def _file_locked(path: Path) -> Iterator[None]:
    """Lock a ledger's file, as a backup or a forgotten transaction would."""
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("begin exclusive")
        yield
        connection.execute("rollback")
    connection.close()


@contextmanager
def _file_moved(path: Path) -> Iterator[None]:
    """Move a ledger's files away under the workers, and back."""
    away = path.with_name("away")
    away.mkdir()
    names = [each.name for each in path.parent.glob(f"{path.name}*")]
    for name in names:
        path.with_name(name).rename(away / name)
    yield
    for name in names:
        (away / name).rename(path.with_name(name))


@contextmanager
def _snapshot_failed(server: RedisServer) -> Iterator[None]:
    """Have a Redis refuse writes, as it does after a snapshot for which the disk had no room."""
    with redis.Redis.from_url(server.url) as client:
        file = Path(client.config_get("dir")["dir"]) / "dump.rdb"
        client.config_set("save", "3600 1")
        file.mkdir()
        client.bgsave()
        await_(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
        yield
        file.rmdir()
        client.bgsave()
        await_(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "ok")
        client.config_set("save", "")


@contextmanager
def _password_changed(server: RedisServer) -> Iterator[None]:
    """Have a Redis demand a password that no worker has."""
    with redis.Redis.from_url(server.url) as client:
        client.config_set("requirepass", "changed")
        client.client_kill_filter(_type="normal", skipme=True)
        yield
        client.config_set("requirepass", "")


AWAYS: dict[str, Callable[[Any], Any]] = {"snapshot": _snapshot_failed, "password": _password_changed}


@pytest.fixture
def new_failing_cluster(
    tmp_path: Path, broker: RedisServer
) -> Iterator[Callable[[str], tuple[Cluster, Callable[[], Any]]]]:
    """Return a way to build a cluster with a store of its own, and a context in which that store is away."""
    with ExitStack() as stack:

        def build(outage: str) -> tuple[Cluster, Callable[[], Any]]:
            settings: dict[str, Any] = {"onejob_lease": LEASE, "test_heartbeat": 1.0}
            kind, _, fault = outage.partition(", ")
            if kind != "sqlite":
                server: Any = start_postgres() if kind == "postgresql" else start_redis(tmp_path, "--appendonly", "yes")
                stack.callback(server.remove if kind == "postgresql" else server.stop)
                settings |= {"onejob_store": server.url, "onejob_namespace": "outage"}
                if kind == "postgresql":
                    make_ledger(server.url, "outage")
            cluster = Cluster(tmp_path, broker, kind, settings)
            stack.callback(cluster.close)
            cluster.app.set_current()
            if kind == "sqlite":
                return cluster, lambda: (_file_moved if fault else _file_locked)(tmp_path / "ledger.db")
            return cluster, lambda: AWAYS.get(fault, _server_away)(server)

        yield build


@pytest.mark.deep
@pytest.mark.parametrize("outage", ["sqlite", "sqlite, moved", "postgresql", "redis", "redis, password"])
@provokes(logs=["failed, and goes on"], because="the store is away")
def test_an_outage_longer_than_a_lease_costs_no_run(
    new_failing_cluster: Callable[[str], tuple[Cluster, Callable[[], Any]]], outage: str
) -> None:
    """After an outage longer than a lease each run of each worker goes on: one attempt, no crash, one result."""
    cluster, away = new_failing_cluster(outage)
    cluster.two_workers("-c", "4")  # each could run all: a worker reserves more than it runs
    results = {key: cluster.play.delay(key, ["hold"]) for key in KEYS}
    for key in KEYS:
        cluster.await_mark(key)
    with away():
        pause_until(time.monotonic() + AWAY)
        cluster.open(KEYS[0])  # this one's body ends while the store is away
        cluster.await_mark(KEYS[0], "end")
    back = time.time()
    await_(lambda: all((cluster.job(results[key]).lease_until or 0.0) > back + LEASE for key in KEYS[1:]))
    for key in KEYS[1:]:
        cluster.open(key)
    for key, result in results.items():
        assert result.get(PATIENCE) == key
        job = cluster.assert_ran(result, State.COMPLETED, key, 1)
        assert (job.attempt, job.crashes) == (1, 0)
    cluster.assert_quiet()


@pytest.mark.parametrize("outage", ["redis", pytest.param("postgresql", marks=pytest.mark.deep)])
@provokes(logs=["failed, and goes on"], because="the store is away")
def test_a_wait_for_a_result_outlives_an_outage(
    new_failing_cluster: Callable[[str], tuple[Cluster, Callable[[], Any]]],
    outage: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`get` of a job, and of a group, that began before the store is away returns the result after it is back."""
    cluster, away = new_failing_cluster(outage)
    cluster.use_lease(LONG_LEASE)
    cluster.worker("-c", "2")
    results = [cluster.begin(key, ["hold:gate>return:done"]) for key in ("alone", "member")]
    read, waiting, failed = EndWait.read, set[str](), set[str]()

    def note(wait: EndWait) -> Any:
        try:
            job: Any = read(wait)
        except StoreUnavailableError:
            failed.add(wait._job_id)
            raise
        waiting.add(wait._job_id)
        return job

    monkeypatch.setattr(EndWait, "read", note)
    group = GroupResult("group", results[1:])
    with ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(each.get, PATIENCE) for each in (results[0], group)]
        await_(lambda: len(waiting) == 2)
        with away():
            await_(lambda: failed == waiting)
        cluster.open("gate")
        assert [wait.result(PATIENCE) for wait in waits] == ["done", ["done"]]


@provokes(logs=["failed, and goes on"], because="the store refuses writes")
def test_a_run_waits_for_a_store_that_refuses_writes(
    new_failing_cluster: Callable[[str], tuple[Cluster, Callable[[], Any]]],
) -> None:
    """A run that ends while the store refuses writes records its end afterwards; a submission meanwhile is told so."""
    cluster, away = new_failing_cluster("redis, snapshot")
    worker = cluster.worker("-c", "1")
    result = cluster.begin("waits")
    with away():
        cluster.open("waits")
        with pytest.raises(StoreUnusableError, match="MISCONF"):
            cluster.play.delay("meanwhile", ["return"])
        worker.await_text(f"job {result.id}: its run waits for the store")
    assert result.get(PATIENCE) == "waits"
    job = cluster.assert_ran(result, State.COMPLETED, "waits", 1)
    assert (job.attempt, job.crashes) == (1, 0)
    cluster.assert_quiet()


# --- the broker -------------------------------------------------------------------------------------------------------


PUBLISH_TIMEOUT = 1.0
loses_messages = provokes(
    Transition.PUBLISH, logs=["Cannot connect to redis", "onejob-sweeper failed"], because="the broker loses messages"
)


@pytest.fixture
def own(own_cluster: Callable[..., Cluster]) -> Cluster:
    """Return a cluster with a broker of its own, which the test may stop, freeze and empty."""
    cluster = own_cluster(onejob_publish_timeout=PUBLISH_TIMEOUT, result_backend=None)
    cluster.use_lease(LEASE)
    return cluster


@loses_messages
def test_a_job_waits_for_its_broker(own: Cluster) -> None:
    """While the broker is down, or accepts connections without replying, `delay` returns; the jobs run afterwards."""
    own.play.delay("before", ["return"])  # a connection that is open already must not be waited on either
    os.kill(own.server.pid, signal.SIGSTOP)
    try:
        hanging = own.play.delay("hanging", ["return"])
        assert own.job(hanging).state is State.QUEUED
    finally:
        os.kill(own.server.pid, signal.SIGCONT)
    own.server.stop()
    dead, again = (own.play.delay("dead", ["return"]) for _ in range(2))
    assert (dead.outcome, again.outcome) == (Outcome.ADMITTED, Outcome.ATTACHED)
    assert own.job(dead).state is State.QUEUED
    own.server.start()
    own.worker()
    assert (hanging.get(PATIENCE), dead.get(PATIENCE)) == ("hanging", "dead")
    own.assert_ran(hanging, State.COMPLETED, "hanging", 1)
    own.assert_ran(dead, State.COMPLETED, "dead", 1)
    own.assert_quiet()


@loses_messages
def test_running_and_waiting_jobs_outlive_the_broker(own: Cluster) -> None:
    """While the broker is away, and loses its data, a run goes on, one that retries loses nothing, and jobs wait."""
    worker = own.worker("-c", "2")
    outlives, retries = own.play.delay("outlives", ["hold"]), own.play.delay("retries", ["hold>retry", "return"])
    for key in ("outlives", "retries"):
        own.await_mark(key)
    waiting = [own.play.delay(f"waiting-{number}", ["return"]) for number in range(5)]
    own.server.kill()
    own.open("retries")
    own.await_state(retries, State.RETRYING)
    own.server.start()
    worker.await_text("Connected to redis", times=2)
    own.open("outlives")
    assert [result.get(PATIENCE) for result in waiting] == [f"waiting-{number}" for number in range(5)]
    for number, result in enumerate(waiting):
        own.assert_ran(result, State.COMPLETED, f"waiting-{number}", 1)
    own.assert_ran(outlives, State.COMPLETED, "outlives", 1)
    own.assert_ran(retries, State.COMPLETED, "retries", 2)
    own.assert_quiet()


@loses_messages
def test_an_interrupted_submission_is_not_lost(shared: Cluster) -> None:
    """Whatever interrupts a submission between the ledger and the broker, the job is stored, and runs once."""
    interrupts: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit, GeneratorExit, BrokerUnavailableError)
    for error in interrupts:

        def publish(*_args: object, error: type[BaseException] = error, **_options: object) -> None:
            raise error

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Publisher, "publish_all", publish)
            with nullcontext() if issubclass(error, Exception) else pytest.raises(error):
                shared.play_short_lease.delay(error.__name__, ["return"])
    for error, job in zip(interrupts, reversed(shared.jobs()[: len(interrupts)]), strict=True):
        assert shared.play_short_lease.AsyncResult(job.id).get(PATIENCE) == error.__name__
        assert shared.runs(error.__name__) == 1


@provokes(logs=["Received unregistered task"], because="one worker lacks the task")
@loses_messages
def test_an_unregistered_task_waits_for_a_worker_that_has_it(cluster: Cluster) -> None:
    """A job whose message a worker without its task has discarded runs soon, although that worker goes on so."""
    ignorant = cluster.worker("-c", "1", without="play")
    result = cluster.play.delay("unknown", ["return"])
    ignorant.await_text("Received unregistered task of type 'play'")
    assert cluster.job(result).state is State.QUEUED
    assert cluster.play.delay("unknown", ["return"]).outcome is Outcome.ATTACHED
    cluster.worker()
    assert result.get(PATIENCE) == "unknown"
    cluster.assert_ran(result, State.COMPLETED, "unknown", 1)
    cluster.await_rest()


def cut_connections(cluster: Cluster) -> None:
    with redis.Redis.from_url(cluster.config["broker_url"]) as client:
        client.client_kill_filter(_type="normal", skipme=True)
        client.client_kill_filter(_type="pubsub")


@loses_messages
def test_a_cut_connection_starts_no_second_run(own: Cluster) -> None:
    """When the worker's connections to the broker are cut, a job that is acknowledged late continues in its one run."""
    own.use_lease(LONG_LEASE)
    own.redeliver_after(1)
    worker = own.worker("-c", "3")
    result = own.begin("cut", task="play_acks_late")
    cut_connections(own)
    worker.await_text("Restoring 1 unacknowledged message(s)")
    worker.await_text(f"play_acks_late[{result.id}] received", times=2)
    worker.await_text(f"job {result.id}: not claimed")
    own.open("cut")
    assert result.get(PATIENCE) == "cut"
    own.assert_ran(result, State.COMPLETED, "cut", 1)
    own.assert_quiet()


@provokes(Transition.RELEASE, because="the worker cancels its runs")
@loses_messages
def test_a_run_that_celery_cancels_is_no_crash(own: Cluster) -> None:
    """If Celery is configured to cancel late-acknowledged runs on a lost connection, the job runs again."""
    own.use_lease(LONG_LEASE)
    worker = own.worker("-c", "3", worker_cancel_long_running_tasks_on_connection_loss=True)
    result = own.play_acks_late.delay("canceled", ["hold:never", "hold"])
    first = own.await_mark("canceled")[0]
    cut_connections(own)
    worker.await_text("Connected to redis", times=2)
    own.await_mark("canceled", times=2)
    assert not is_running(first["pid"])
    own.open("canceled")
    assert result.get(PATIENCE) == "canceled"
    assert own.assert_ran(result, State.COMPLETED, "canceled", 2).crashes == 0
    own.assert_quiet()


# --- without acknowledgements to a Redis broker: nothing that the ledger knows is lost --------------------------------


SETTINGS: dict[str, Any] = {PLAIN: False, "worker_prefetch_multiplier": 10}
RECEIVED = 6
"""How many messages a worker has received whose jobs wait for the one that runs."""


def hold_one(cluster: Cluster, number: int = RECEIVED) -> tuple[Any, list[Any]]:
    """Return the result of a running job, and those of others whose messages its worker has received."""
    held = cluster.begin("held", ["hold:never", "return"])
    results = [cluster.play.delay(f"received-{number}", ["return"]) for number in range(number)]
    await_(lambda: not cluster.queued_messages())
    return held, results


@pytest.mark.parametrize(("setting", "copies"), [(False, 2), (True, 3)])
def test_the_broker_keeps_the_messages_of_other_tasks(cluster: Cluster, *, setting: bool, copies: int) -> None:
    """By default the broker keeps received messages that are not the ledger's; with the setting those of jobs, too."""
    cluster.config |= {"onejob_broker_acks": setting, "worker_prefetch_multiplier": 10}
    cluster.worker("-c", "1")
    held = cluster.begin("kept")
    cluster.app.send_task("play", ("sent", ["return"]), task_id="sent")
    results = [cluster.plain.delay(1), cluster.play.delay("waits", ["return"])]
    await_(lambda: cluster.queued_messages() == cluster.broker.hlen("unacked") == copies)
    cluster.open("kept")
    assert held.get(PATIENCE) == "kept"
    assert [result.get(PATIENCE) for result in results][1] == "waits"
    cluster.await_state("sent", State.COMPLETED)
    await_(lambda: not cluster.broker.exists("unacked", "unacked_index"))
    cluster.assert_quiet()


@provokes(Transition.RELEASE, logs=[KILLED], because="the worker shuts down")
def test_a_stopping_worker_returns_what_it_has_received(cluster: Cluster) -> None:
    """A worker that is told to stop puts the messages of jobs that it has not begun back, long before a lease ends."""
    cluster.config |= SETTINGS
    cluster.use_lease(2 * PATIENCE)
    worker = cluster.worker("-c", "1")
    held, results = hold_one(cluster)
    worker.stop()
    assert "could not be returned" not in worker.text
    assert cluster.queued_messages() == 1 + RECEIVED
    cluster.worker("-c", "1")
    assert [result.get(PATIENCE) for result in results] == [f"received-{number}" for number in range(RECEIVED)]
    assert held.get(PATIENCE) == "held"
    assert {cluster.job(result).attempt for result in results} == {1}
    cluster.assert_quiet()


@pytest.mark.deep
@provokes(Transition.PUBLISH, logs=["Cannot connect to redis"], because="the broker restarts")
def test_a_new_connection_has_no_acknowledgements_either(own_cluster: Callable[..., Cluster]) -> None:
    """After a restart of the broker, the worker receives messages as before; the ledger sends what it had received.

    No file with messages is left for an operator, as Celery does otherwise.
    """
    own = own_cluster(**SETTINGS, result_backend=None)
    own.use_lease(LEASE)
    worker = own.worker("-c", "1")
    held, results = hold_one(own)
    own.server.stop()
    own.server.start()
    worker.await_text("6 received messages could not be returned")
    assert "DUMP" not in worker.text
    own.open("never")
    for each in (held, *results):
        own.await_state(each, State.COMPLETED)
    later = own.begin("later")
    assert not own.broker.exists("unacked", "unacked_index")
    own.open("later")
    own.await_state(later, State.COMPLETED)
    own.assert_quiet()
