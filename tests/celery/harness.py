"""Real workers on a real broker: started by the tests, controlled by signals and gates, killed at the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import celery
import kombu.pools
import pytest
import redis
from kombu.asynchronous import Hub

from onejob import AsyncResult
from onejob.celery.app_state import app_state_of
from onejob.jobs.lifecycle import FINAL, State
from onejob.jobs.model import JobRow, Outcome
from onejob.jobs.query import Query
from onejob.ledger.ledger import Ledger
from tests import quiet
from tests.celery.app import CONFIG, HOOK, PROVOKES, WITHOUT
from tests.celery.reports import lines_of
from tests.forks import FORKS, fork, interpret
from tests.services import RedisServer, eventually
from tests.stores.support import assert_legal

PATIENCE = 40.0
"""Seconds to wait for a condition; far more than it takes, since a test must not depend on the machine."""
LONG_LEASE = 3 * PATIENCE
"""The default lease of a cluster's jobs: no test waits until an expired lease, or a repeated message, heals a fault."""
HEARTBEAT = 0.5
"""How often a worker renews leases, in seconds."""
LEASE = 3.0
"""The lease of jobs whose lease a test lets expire."""
REDELIVERY = {"unacked_restore_interval": 1, "unacked_restore_throttle": 1}
"""Without these two the broker looks for unacknowledged messages every 100 s only."""
DELIVERS: dict[str, Any] = {"broker_url": "onejob://", "broker_transport_options": {}}
"""The settings of a cluster whose ledger is its broker."""
two_waiters = pytest.mark.skipif(
    tuple(celery.VERSION) < (5, 7), reason="before Celery 5.7, only one result can wait for a task id"
)
ROOT = Path(__file__).parents[2]


def await_(condition: Callable[[], Any], timeout: float = PATIENCE) -> Any:
    """Return the first truthy value of a condition."""
    return eventually(condition, timeout)


class Worker:
    """One worker in a process group of its own."""

    def __init__(
        self, cluster: Cluster, name: str, args: tuple[str, ...], environment: dict[str, str], *, forked: bool
    ) -> None:
        self._cluster = cluster
        self.name = name
        self.log = cluster.directory / f"{name}.log"
        self.errors = quiet.LogReader(self.log)
        options = ["-l", "INFO", "-n", f"{name}@test", "--without-gossip", "--without-mingle", *args]
        celery = ["-m", "celery", "-A", cluster.module, "worker", *options]
        start = fork if forked else interpret
        self._program = start(celery, environment=os.environ | environment, output=self.log, cwd=cluster.directory)

    @property
    def pid(self) -> int:
        """The process id of the parent, and the id of the group."""
        return self._program.pid

    @property
    def alive(self) -> bool:
        return self._program.alive

    @property
    def text(self) -> str:
        """What the worker has logged."""
        return self.log.read_text(errors="replace")

    def await_ready(self) -> Worker:
        """Wait until the worker consumes messages."""
        await_(lambda: f"{self.name}@test ready." in self.text or not self.alive)
        assert self.alive, self.text
        return self

    def await_text(self, text: str, times: int = 1) -> None:
        """Wait until the worker has logged something."""
        await_(lambda: self.text.count(text) >= times)

    def sigterm(self) -> None:
        """Start a warm shutdown, as Kubernetes does."""
        os.kill(self.pid, signal.SIGTERM)

    def await_end(self) -> None:
        await_(lambda: not self.alive)

    def stop(self) -> None:
        """Shut the worker down warmly, and wait until it has ended."""
        self.sigterm()
        self.await_end()

    def sigkill(self) -> None:
        """Kill the parent and its children at once."""
        self._signal(signal.SIGKILL)
        self._program.process.wait()

    def freeze(self) -> None:
        """Suspend the whole group, as a suspended machine would, but not while it locks a SQLite ledger for all."""
        with self._cluster.no_writer():
            self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume a frozen group."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


@dataclass
class Cluster:
    """One app with its ledger and its broker, and the workers that were started for it."""

    directory: Path
    server: RedisServer
    kind: str
    """The kind of its store; `broker` is a Redis that is the broker's database."""
    settings: dict[str, Any] = field(default_factory=dict)
    workers: list[Worker] = field(default_factory=list)
    module: str = "tests.celery.app"
    """The module with the app: its `build` makes one, and a worker imports it."""

    def __post_init__(self) -> None:
        broker, own = self.server.database(), self.server.database()
        stores = {"sqlite": f"sqlite:///{self.directory / 'ledger.db'}", "broker": broker}
        self.config = {
            "broker_url": broker,
            "onejob_store": stores.get(self.kind, own),
            "onejob_lease": LONG_LEASE,
            "test_heartbeat": HEARTBEAT,
            "test_sweep": 0.2,
            "test_directory": str(self.directory),
            "broker_transport_options": {"visibility_timeout": 3600, **REDELIVERY},
            "broker_connection_retry_on_startup": True,
            "worker_prefetch_multiplier": 1,
            "worker_proc_alive_timeout": PATIENCE,  # a busy machine kills no child
            "result_backend": own,
            **self.settings,
        }
        self.app = import_module(self.module).build(self.config)
        self.broker = redis.Redis.from_url(broker)
        self.at_close = ExitStack()
        """What is closed with the cluster."""
        self.at_close.callback(_close, self.app)
        self._closed = False
        self._told: set[str] = set()
        self._jobs = quiet.JobReader(lambda: self.ledger)
        quiet.watch(self)

    def another_app(self, **settings: Any) -> celery.Celery:
        """Return an app like that of the cluster, with other settings, which is closed with the cluster."""
        app: celery.Celery = import_module(self.module).build(self.config | settings)
        self.at_close.callback(_close, app)
        return app

    # --- submitting ------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """A task by its name."""
        try:
            return self.app.tasks[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def ledger(self) -> Ledger:
        return app_state_of(self.app).ledger

    def job(self, result: AsyncResult | str) -> JobRow:
        return self.ledger.get(result if isinstance(result, str) else result.id)

    def events(self, result: AsyncResult) -> list[str]:
        """The names of what happened to a job."""
        return [entry.event for entry in self.ledger.history(result.id)]

    def begin(self, key: str, acts: Sequence[str] = ("hold",), task: str = "play") -> Any:
        """Submit a job, which waits for its gate unless it has other acts, and wait until its body runs."""
        result = self.app.tasks[task].delay(key, [*acts])
        self.await_mark(key)
        return result

    def open(self, gate: str) -> None:
        """Let the bodies that wait for a gate continue."""
        (self.directory / f"gate-{gate}").touch()

    def clear(self) -> None:
        """Remove what earlier tests left: marks, gates, and jobs."""
        for job in self.live():
            self.ledger.cancel(job.id, force=True)
        self.ledger.store.delete([job.id for job in self.jobs()], sources=FINAL)
        for path in [*self.directory.glob("gate-*"), *self.directory.glob("effects")]:
            path.unlink()

    # --- looking --------------------------------------------------------------------------------------------------

    def marks(self, key: str, event: str | None = "run") -> list[dict[str, Any]]:
        """What the bodies with a key have recorded."""
        return [entry for entry in self._effects() if entry["key"] == key and event in (None, entry["event"])]

    def _effects(self) -> list[dict[str, Any]]:
        return lines_of(self.directory / "effects")

    def runs(self, key: str) -> int:
        """How often a body with this key was started."""
        return len(self.marks(key))

    def await_mark(self, key: str, event: str = "run", times: int = 1) -> list[dict[str, Any]]:
        """Wait until bodies with a key have recorded an event so often."""
        await_(lambda: len(self.marks(key, event)) >= times)
        return self.marks(key, event)

    def await_state(self, result: AsyncResult | str, *states: State) -> JobRow:
        """Wait until a job is in one of these states; one that its canvas has yet to submit is waited for."""
        id_ = result if isinstance(result, str) else result.id
        await_(lambda: (job := self.ledger.get_or_none(id_)) is not None and job.state in states)
        return self.job(result)

    def await_settled(self, job: JobRow) -> None:
        """Wait until the canvas of an ended job has been notified."""
        await_(lambda: not self.job(job.id).canvas_pending)

    def jobs(self, **filters: Any) -> list[JobRow]:
        """The jobs in the ledger, the newest first."""
        return self.ledger.find(Query(limit=10_000, **filters))

    def live(self) -> list[JobRow]:
        """The jobs that have not ended, or whose canvas has not been notified."""
        return self.jobs(unsettled=True)

    def queued_messages(self) -> int:
        """How many messages lie in the broker, unacknowledged ones included."""
        others = [key for key in self.broker.scan_iter() if not key.startswith(b"{")]  # which are no rows of a ledger
        lists = [key for key in others if self.broker.type(key) == b"list"]
        return sum(self.broker.llen(key) for key in lists) + self.broker.hlen("unacked")

    def offered_messages(self, queue: str = "celery") -> int:
        """How many messages nobody has taken from a queue of a ledger that is the broker."""
        found: int = self.ledger.store.queue_size(queue) or 0  # type: ignore[attr-defined] # of a `MessageStore`
        return found

    def await_rest(self) -> None:
        """Wait until every job has ended, every canvas has been notified, and every message has been consumed.

        A task that the ledger does not know may send a message after that moment.
        """
        try:
            await_(lambda: not self.live() and not self.queued_messages())
        except AssertionError:
            left = [(job, self.ledger.history(job.id)) for job in self.live()]
            raise AssertionError((left, self.queued_messages())) from None

    # --- asserting ------------------------------------------------------------------------------------------------

    def assert_ran(self, result: AsyncResult, state: State, key: str, runs: int) -> JobRow:
        """Assert that a job ends in a state after this many runs of its body, and blocks nothing."""
        job = self.await_state(result, *FINAL)
        assert (job.state, self.runs(key)) == (state, runs), (job, self.marks(key, None))
        self.assert_free(key, job.task)
        return job

    def assert_free(self, key: str, task: str = "play") -> None:
        """Assert that a fresh job with this key is admitted and runs."""
        before = self.runs(key)
        again = getattr(self, task).delay(key, ["return:again"])
        assert again.outcome is Outcome.ADMITTED, again.job
        assert again.get(PATIENCE) == "again"
        assert self.runs(key) == before + 1

    def assert_quiet(self) -> None:
        """Assert that nothing is left over: no live job, no message, no critical log line, no illegal history."""
        self.await_rest()
        for job in self.jobs():
            assert_legal(self.ledger.history(job.id), job)
        for worker in self.workers:
            assert "CRITICAL" not in worker.text, worker.text[-4000:]
            assert "Unrecoverable" not in worker.text, worker.text[-4000:]

    def troubles(self) -> Iterator[quiet.Trouble]:
        """Yield what has gone wrong since the last call, except what bodies did as they were told."""
        provoked = [entry for entry in self._effects() if entry["event"] == PROVOKES]
        self._told |= {entry["error"] for entry in provoked if entry["error"]}  # some are logged after their test
        for worker in self.workers:
            errors = worker.errors.troubles()
            yield from (each for each in errors if not any(told in each.text for told in self._told))
        yield from self._jobs.troubles(Counter(str(entry["job"]) for entry in provoked))

    @contextmanager
    def no_writer(self) -> Iterator[None]:
        """Have no process write to a ledger in SQLite for the duration of the context."""
        if self.kind != "sqlite":
            yield
            return
        with closing(sqlite3.connect(self.directory / "ledger.db", timeout=PATIENCE, isolation_level=None)) as other:
            other.execute("begin immediate")
            yield

    def use_lease(self, seconds: float) -> None:
        """Use another lease for the jobs and workers that start from now on."""
        self.config["onejob_lease"] = self.app.conf.onejob_lease = seconds

    def redeliver_after(self, seconds: int) -> None:
        """Have the broker deliver again what is unacknowledged for so long; for the workers that start from now on."""
        if kombu.VERSION < (5, 7):  # type: ignore[attr-defined] # missing in the published types
            pytest.skip("before version 5.7, kombu looks for unacknowledged messages too rarely for a test")
        self.config["onejob_broker_acks"] = True  # otherwise there is no copy to redeliver
        self.config["broker_transport_options"] = {"visibility_timeout": seconds, **REDELIVERY}

    # --- workers --------------------------------------------------------------------------------------------------

    def start(
        self, *args: str, hook: str = "", without: str = "", zone_files: str = "", forked: bool = FORKS, **settings: Any
    ) -> Worker:
        """Start a worker without waiting for it; `settings` differ from the cluster's, and `zone_files` from ours."""
        environment = {
            CONFIG: json.dumps(self.config | settings),
            "PYTHONPATH": program_environment()["PYTHONPATH"],
            **({HOOK: hook} if hook else {}),
            **({WITHOUT: without} if without else {}),
            **({"PYTHONTZPATH": zone_files} if zone_files else {}),
        }
        name = f"w{len(self.workers) + 1}"
        self.workers.append(Worker(self, name, args or ("-c", "2"), environment, forked=forked and not zone_files))
        return self.workers[-1]

    def worker(self, *args: str, **more: Any) -> Worker:
        """Start a worker and wait until it takes messages."""
        return self.start(*args, **more).await_ready()

    def worker_of(self, mark: dict[str, Any]) -> Worker:
        """The worker in which a body made a mark."""
        return next(worker for worker in self.workers if worker.pid in (mark["pid"], mark["ppid"]))

    def other_than(self, worker: Worker) -> Worker:
        """The worker of two that is not this one."""
        return next(other for other in self.workers if other is not worker)

    def two_workers(self, *args: str) -> tuple[Worker, Worker]:
        """Start two workers and wait until they take messages."""
        first, second = self.start(*args), self.start(*args)
        return first.await_ready(), second.await_ready()

    def close(self) -> None:
        """End all workers, and print the ends of their logs for a report of failure; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        quiet.unwatch(self)
        for worker in self.workers:
            worker.sigkill()
            print(f"--- {worker.name}\n{worker.text[-6000:]}")  # noqa: T201 - pytest shows it when a test fails
        self.at_close.close()
        self.broker.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def _close(app: celery.Celery) -> None:
    state = app_state_of(app)
    pool: Any = app.pool
    pool.force_close_all()  # a connection to the ledger renews what it has taken, which `app.close` does not end
    for group in (kombu.pools.connections, kombu.pools.producers):  # the next app with this broker gets new ones
        for key in [key for key, each in group.items() if pool in (each, getattr(each, "connections", None))]:
            dict.pop(group, key)
    state.close()
    if "publisher" in vars(state):
        state.publisher.close()
    local: Any = vars(app)["_local"]
    backend = getattr(local, "backend", None)  # of this thread; Celery leaves it open
    if backend is not None and isinstance(client := vars(backend).get("client"), redis.Redis):
        backend.result_consumer._pubsub = None  # a result that is garbage would connect it, to unsubscribe
        client.connection_pool.disconnect()
    app.close()


@contextmanager
def event_loop(cluster: Cluster, receive: Callable[..., object]) -> Iterator[tuple[Hub, Any]]:
    """Consume messages as a worker's event loop does; yield the loop, whose rounds the test makes, and a channel."""
    with cluster.app.connection_for_read() as connection, connection.channel() as channel:
        hub = Hub()
        cluster.app.amqp.queues["celery"](channel).consume(callback=receive)
        connection.transport.register_with_event_loop(connection.connection, hub)
        yield hub, channel
        hub.close()


def program_environment() -> dict[str, str]:
    """Return the environment of a program that imports the tests."""
    own = [str(Path(entry).resolve()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *own])}


def is_running(pid: int) -> bool:
    """Return whether a process can still act: it exists, and is no zombie."""
    command = ["/bin/ps", "-o", "stat=", "-p", str(pid)]
    state = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def pause_until(deadline: float) -> None:
    """Wait until a time of the monotonic clock: only for laws about durations."""
    time.sleep(max(0.0, deadline - time.monotonic()))


def on_every_store(fixture: str) -> pytest.MarkDecorator:
    """Run a test on each kind of store: on one of them in every run, on the others in the deep tier."""
    others = [pytest.param(kind, marks=pytest.mark.deep) for kind in ("postgresql", "redis")]
    return pytest.mark.parametrize(fixture, ["sqlite", *others], indirect=True)
