"""The ledger as the broker of messages that are no jobs: real workers on `broker_url = "onejob://"`."""

import gc
import json
import select
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import celery
import psycopg
import pytest
from celery.exceptions import TaskRevokedError
from kombu import Exchange, Queue

import onejob
from onejob.celery.transport.connection import name_of
from onejob.config import NO_BROKER
from onejob.errors import ConfigurationError
from tests import forks
from tests.cases import further
from tests.celery.app import CONFIG
from tests.celery.harness import DELIVERS, PATIENCE, Cluster, await_, event_loop, program_environment
from tests.quiet import KILLED, provokes

HOLD = 2.0
"""After how many seconds a test's dead worker is replaced."""


@pytest.fixture
def ledger_cluster(request: pytest.FixtureRequest, new_cluster: Callable[..., Cluster]) -> Cluster:
    """Return a cluster whose ledger is the broker, without a worker."""
    return new_cluster(getattr(request, "param", "sqlite"), **DELIVERS)


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.deep)])
def served(
    request: pytest.FixtureRequest, build_cluster: Callable[..., Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Return a cluster of each kind whose ledger is the broker, with a worker that tests share."""
    cluster = build_cluster(tmp_path_factory.mktemp(request.param), request.param, **DELIVERS)
    cluster.app.set_current()
    cluster.worker("-c", "2", "-E")
    yield cluster
    cluster.close()


def replies(cluster: Cluster, command: str, *args: Any) -> Any:
    """Return what the workers answer to a command of remote control."""
    return await_(lambda: getattr(cluster.app.control.inspect(timeout=1.0), command)(*args))


def test_plain_tasks_and_canvases_run(served: Cluster) -> None:
    """Tasks of Celery's own class, a chord of them, and a task with a countdown run, and nothing is left over."""
    assert served.plain.delay(1, "a").get(PATIENCE) == [1, "a"]
    header = [served.plain.s(number, "part") for number in range(3)]
    chord = celery.chord(header, served.gather.s("all"))()
    assert chord.get(PATIENCE) == [[number, "part"] for number in range(3)]
    assert served.plain.apply_async(("later",), countdown=0.1).get(PATIENCE) == ["later"]
    assert served.play.delay("job", ["return:done"]).get(PATIENCE) == "done"
    await_(lambda: served.offered_messages() == 0)


def test_remote_control_reaches_a_worker(served: Cluster) -> None:
    """A worker answers inspections, and a revocation ends a task that runs."""
    held = served.hold.delay("held")
    served.await_mark("held")
    name = f"{served.workers[0].name}@test"
    assert replies(served, "ping") == {name: {"ok": "pong"}}
    assert "plain" in replies(served, "registered")[name]
    assert [each["id"] for each in replies(served, "active")[name]] == [held.id]
    assert replies(served, "stats")[name]["broker"]["transport"] == "onejob"
    served.app.control.revoke(held.id, terminate=True)
    with pytest.raises(TaskRevokedError):
        held.get(PATIENCE)


def test_a_rate_limit_delays_tasks(ledger_cluster: Cluster) -> None:
    """A task whose rate limit is used up waits, and the other tasks of the worker do not."""
    ledger_cluster.worker("-c", "1", worker_prefetch_multiplier=4)
    ledger_cluster.app.control.rate_limit("plain", "1/h", reply=True)
    first, second = ledger_cluster.plain.delay("first"), ledger_cluster.plain.delay("second")
    assert first.get(PATIENCE) == ["first"]
    assert ledger_cluster.gather.delay("free", "key").get(PATIENCE) == "free"
    assert second.state == "PENDING"


def test_events_are_received(served: Cluster) -> None:
    """Who listens to events gets those of workers and of tasks, and its queue ends with it."""
    with listening(served) as received:
        served.plain.delay("x").get(PATIENCE)
        await_(lambda: received() >= {"worker-heartbeat", "task-received", "task-succeeded"})
    assert not [queue for _, _, queue in bindings(served) if queue.startswith("celeryev")]


@provokes(logs=[KILLED], because="the body kills its process")
def test_the_last_crash_is_an_event(served: Cluster) -> None:
    """A job that becomes a dead letter because its process died is a failed task for who listens to events."""
    with listening(served) as received:
        served.play.delay("poison", ["kill"])
        await_(lambda: "task-failed" in received())


@contextmanager
def listening(cluster: Cluster) -> Iterator[Callable[[], set[str]]]:
    """Receive events; yield a function that waits for one more, and returns the types of all."""
    found: set[str] = set()
    with cluster.app.connection_for_read() as connection:
        receiver = cluster.app.events.Receiver(connection, handlers={"*": lambda event: found.add(event["type"])})
        with receiver.consumer_context() as (own, _, _):

            def receive() -> set[str]:
                own.drain_events(timeout=PATIENCE)
                return found

            yield receive


def bindings(cluster: Cluster) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = cluster.ledger.store.bindings()  # type: ignore[attr-defined] # of a `MessageStore`
    return found


def test_a_killed_workers_messages_are_delivered_again(ledger_cluster: Cluster) -> None:
    """What a killed worker had not acknowledged runs again, and what a living one runs is not delivered twice."""
    options = {"broker_transport_options": {"visibility_timeout": HOLD}}
    first = ledger_cluster.worker("-c", "1", **options)
    held = ledger_cluster.hold.delay("held")
    ledger_cluster.await_mark("held")
    first.sigkill()
    ledger_cluster.worker("-c", "2", **options)
    ledger_cluster.await_mark("held", times=2)
    began = time.monotonic()
    await_(lambda: time.monotonic() - began > 2 * HOLD)  # a law about a duration
    ledger_cluster.open("held")
    assert held.get(PATIENCE) == "held"
    assert ledger_cluster.runs("held") == 2


def test_a_stopped_worker_returns_its_messages(ledger_cluster: Cluster) -> None:
    """What a worker had taken and not started when it stopped is there for the next one, at once."""
    worker = ledger_cluster.worker("-c", "1", worker_prefetch_multiplier=4)
    held = ledger_cluster.hold.delay("held")
    ledger_cluster.await_mark("held")
    waiting = [ledger_cluster.hold.delay("next") for _ in range(3)]
    await_(lambda: ledger_cluster.offered_messages() == 0)
    worker.sigterm()
    ledger_cluster.open("held")
    worker.await_end()
    assert held.get(PATIENCE) == "held"
    assert ledger_cluster.offered_messages() == len(waiting)
    ledger_cluster.open("next")
    ledger_cluster.worker("-c", "1")
    assert [each.get(PATIENCE) for each in waiting] == ["next"] * 3
    assert ledger_cluster.runs("next") == 3


def test_priorities_order_what_waits(ledger_cluster: Cluster) -> None:
    """A worker begins with the messages of the highest priority."""
    keys = {"low": 0, "high": 9, "middle": 5}
    results = [ledger_cluster.hold.apply_async((key,), priority=priority) for key, priority in keys.items()]
    for key in keys:
        ledger_cluster.open(key)
    ledger_cluster.worker("-c", "1")
    assert [each.get(PATIENCE) for each in results] == [*keys]
    at = {key: ledger_cluster.marks(key)[0]["at"] for key in keys}
    assert sorted(at, key=lambda key: at[key]) == ["high", "middle", "low"]


def test_a_command_precedes_a_job(ledger_cluster: Cluster) -> None:
    """What needs no acknowledgement, as a command to a worker, is received before the messages of tasks."""
    received: list[str] = []

    def note(name: str, _message: Any) -> None:
        received.append(name)

    with ledger_cluster.app.connection_for_read() as connection, ExitStack() as stack:
        for name, no_ack in (("celery", False), ("commands", True)):
            channel = stack.enter_context(connection.channel())
            queue = Queue(name, Exchange(name), name)(channel)
            queue.declare()
            queue.consume(no_ack=no_ack, callback=partial(note, name))
        with connection.Producer() as producer:
            for name in ("celery", "celery", "commands"):
                producer.publish({}, exchange=name, routing_key=name)
        while len(received) < 3:
            connection.drain_events(timeout=PATIENCE)
    assert received[0] == "commands"


def test_an_event_loop_has_another_round_after_a_delivery(ledger_cluster: Cluster) -> None:
    """A delivery in a round in which the pool has looked for work already is followed by another round at once."""
    ledger_cluster.plain.delay(1)
    received = list[Any]()
    with event_loop(ledger_cluster, received.append) as (hub, channel):
        channel.connection._waker.clear()
        for tick in [*hub.on_tick]:
            tick()
        assert len(received) == 1
        assert select.select([channel.connection._waker.reader], [], [], 0)[0]


@pytest.mark.parametrize("pool", ["threads", *further("solo")])
def test_other_pools_consume(ledger_cluster: Cluster, pool: str) -> None:
    """Pools of threads, and of none, run tasks and answer remote control."""
    ledger_cluster.worker("-c", "2", f"--pool={pool}")
    results = [ledger_cluster.plain.delay(number) for number in range(5)]
    assert [each.get(PATIENCE) for each in results] == [[number] for number in range(5)]
    assert replies(ledger_cluster, "ping")


@provokes(logs=["terminating connection"], because="the test cuts the connections")
@pytest.mark.parametrize("ledger_cluster", ["postgresql"], indirect=True)
def test_a_worker_survives_cut_connections(ledger_cluster: Cluster) -> None:
    """When PostgreSQL ends all connections, the worker goes on with new ones."""
    ledger_cluster.worker("-c", "1")
    url = ledger_cluster.config["onejob_store"]
    ledger_cluster.plain.delay("before").get(PATIENCE)
    with psycopg.connect(url, autocommit=True) as connection:
        query = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'onejob'"
        assert connection.execute(query).rowcount > 0
    assert ledger_cluster.plain.delay("after").get(PATIENCE) == ["after"]
    assert replies(ledger_cluster, "ping")


def _nothing() -> None: ...


def test_a_ledger_in_redis_is_no_such_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a ledger in Redis a task says, when it is defined, that its URL belongs to `broker_url`, too.

    Where the environment names the broker, which is in no configuration, the first message says it.
    """
    app = celery.Celery("shop", set_as_current=False, changes={"onejob_store": "redis://127.0.0.1:1/0"})
    define: Any = app.task
    monkeypatch.setenv("CELERY_BROKER_URL", "onejob://")
    task = define(base=onejob.Task, shared=False, name="shop.late")(_nothing)
    transport: Any = app.connection_for_write().transport
    with pytest.raises(ConfigurationError, match="set the URL of that Redis") as refused:
        _ = transport.store
    assert (str(refused.value), task.unique_for) == (NO_BROKER, None)
    app = celery.Celery("shop", broker="onejob://", set_as_current=False, changes=app.conf.changes)
    define = app.task
    task = define(base=onejob.Task, shared=False, name="shop.early")(_nothing)
    with pytest.raises(ConfigurationError, match="set the URL of that Redis"):
        task.unique_for  # noqa: B018 - binds the task


def test_commands_find_the_ledger(ledger_cluster: Cluster) -> None:
    """Celery's own commands use the ledger of the app that they are given: `purge` deletes what no worker has taken."""
    for number in range(3):
        ledger_cluster.plain.delay(number)
    assert ledger_cluster.offered_messages() == 3
    command = ["-m", "celery", "-A", ledger_cluster.module, "purge", "-f"]
    environment = program_environment() | {CONFIG: json.dumps(ledger_cluster.config)}
    done = forks.run(command, environment=environment, cwd=ledger_cluster.directory, modules=forks.CELERY)
    assert "Purged 3 messages" in done.stdout, done.stdout + done.stderr
    assert ledger_cluster.offered_messages() == 0


def test_an_app_has_its_own_ledger(ledger_cluster: Cluster, new_cluster: Callable[..., Cluster]) -> None:
    """Two apps of one process, neither of them current, write to their own ledgers."""
    other = new_cluster("sqlite", "other", **DELIVERS)
    celery.Celery("current").set_current()
    ledger_cluster.plain.delay(1)
    assert (ledger_cluster.offered_messages(), other.offered_messages()) == (1, 0)
    other.plain.delay(1)
    other.plain.delay(2)
    assert (ledger_cluster.offered_messages(), other.offered_messages()) == (1, 2)


def test_an_app_has_its_own_connections() -> None:
    """Connections of one app are the same for kombu, and an app never gets those of an earlier one that is gone."""
    app = celery.Celery(set_as_current=False)
    assert name_of(app) == name_of(app)
    seen = {name_of(app)}
    for _ in range(5):
        seen.add(name_of(celery.Celery(set_as_current=False)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # of apps that earlier tests have left
            gc.collect()
    assert len(seen) == 6
