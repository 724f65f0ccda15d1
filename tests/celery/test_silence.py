"""A worker that its broker does not reach runs the jobs that wait for it, and connects anew."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from kombu import Queue

from onejob.celery.app_state import app_state_of
from onejob.celery.run import draining
from onejob.celery.worker.probe import find_fault
from onejob.celery.worker.silence import STALL, Silence
from onejob.doctor import examine
from onejob.health.finding import Installation
from onejob.jobs.workers import Registration
from onejob.ledger.explain import explain
from onejob.ledger.stuck import Stuck
from onejob.observability.events import WORKER_SILENT
from tests.cases import for_each
from tests.celery.harness import PATIENCE, Cluster, await_
from tests.doctor.support import names
from tests.proxies import HalfOpen
from tests.quiet import provokes
from tests.services import rabbitmq_url

SILENCE = 1.5
NODE = "w1@test"


# --- half-open connections of real workers ----------------------------------------------------------------------------


@pytest.fixture
def behind(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Callable[..., HalfOpen]]:
    """Return a way to start a worker that reaches its broker through a proxy."""
    proxies = []

    def start(broker: str, *args: str, **settings: Any) -> HalfOpen:
        given = {"broker_url": cluster.config["broker_url"]}
        if broker == "rabbitmq":
            name = request.getfixturevalue("queue")
            given = {"broker_url": rabbitmq_url(), "task_default_queue": name, "control_exchange": name}
            given["broker_transport_options"] = {}
            cluster.config |= given
            cluster.app.conf.update(given)
        where = urlsplit(given["broker_url"])
        proxies.append(proxy := HalfOpen(where.port or 5672))
        netloc = f"{where.netloc.rpartition('@')[0]}@127.0.0.1:{proxy.port}".lstrip("@")
        own = {"broker_url": where._replace(netloc=netloc).geturl(), "test_silence": SILENCE}
        cluster.worker(*args, **own, **settings)
        return proxy

    yield start
    for proxy in proxies:
        proxy.close()


silent = provokes(
    logs=["Cannot connect", "Connection to broker lost", "RESOURCE_LOCKED"], because="the broker is silent"
)


@pytest.mark.parametrize(
    ("kind", "pool"),
    [
        ("redis", "prefork"),
        *(pytest.param(*each, marks=pytest.mark.deep) for each in (("rabbitmq", "prefork"), ("redis", "threads"))),
    ],
)
@silent
def test_a_worker_behind_a_dead_connection_heals(
    cluster: Cluster, behind: Callable[..., HalfOpen], kind: str, pool: str
) -> None:
    """A job for a worker whose connection passes nothing any more runs, once, and so do later ones, by the broker."""
    proxy = behind(kind, "-c", "2", "-P", pool)
    (worker,) = cluster.workers
    assert cluster.play.delay("before", ["return"]).get(PATIENCE) == "before"
    proxy.cut()
    assert cluster.play.delay("silent", ["return"]).get(PATIENCE) == "silent"
    worker.await_text("Connected to", times=2)
    assert cluster.play.delay("after", ["return"]).get(PATIENCE) == "after"
    assert [cluster.runs(key) for key in ("before", "silent", "after")] == [1, 1, 1]
    worker.await_text(f"event={WORKER_SILENT} node={NODE}")
    assert worker.alive


@silent
def test_a_silence_ends_no_run_and_shows(cluster: Cluster, behind: Callable[..., HalfOpen]) -> None:
    """Where a lost connection cancels runs, it is renewed after them; until then the silence shows everywhere."""
    path = cluster.directory / "probe"
    own = {"worker_cancel_long_running_tasks_on_connection_loss": True, "onejob_probe_file": str(path)}
    proxy = behind("rabbitmq", "-c", "2", **own)
    (worker,) = cluster.workers
    late = cluster.begin("late", task="play_acks_late")
    await_(lambda: find_fault(path, time.time(), ready=True) is None)
    proxy.cut()
    assert cluster.play.delay("taken", ["return"]).get(PATIENCE) == "taken"
    await_(lambda: [worker.silent_since for worker in cluster.ledger.workers() if worker.silent_since])
    await_(lambda: "hears nothing from its broker" in str(find_fault(path, time.time(), ready=True)))
    assert find_fault(path, time.time()) is None
    assert "worker-silent" in names(
        examine(Installation(settings=app_state_of(cluster.app).settings, ledger=cluster.ledger))
    )
    await_(lambda: cluster.ledger.store.totals().get('["taken_from_ledger_total"]', 0.0) >= 1.0)
    waits = cluster.play.delay("waits", ["return"])
    found = explain(cluster.ledger, waits.id)
    assert found.stuck in {Stuck.BROKER_SILENT, None}  # it may run already
    assert worker.text.count("Connected to") == 1
    cluster.open("late")
    assert (late.get(PATIENCE), waits.get(PATIENCE)) == ("late", "waits")
    assert cluster.play.delay("again", ["return"]).get(PATIENCE) == "again"
    worker.await_text("Connected to", times=2)
    assert (cluster.runs("late"), cluster.job(late).attempt) == (1, 1)


# --- when a worker takes jobs -----------------------------------------------------------------------------------------


class Consumer:
    """What a worker's silence uses of a consumer."""

    connection: Any = object()
    hub = None
    steps: tuple[Any, ...] = ()

    def __init__(self, app: Any) -> None:
        self.app = app
        self.calls: list[tuple[Any, ...]] = []

    def call_soon(self, *call: Any) -> None:
        self.calls.append(call)

    def create_task_handler(self) -> Callable[[Any], None]:
        return lambda _message: None

    def ensure_connected(self, connection: Any) -> Any:
        return connection


class Listener:
    """The silence of a worker of a cluster, which has heard nothing for a long time, on a clock of the test's own."""

    def __init__(self, cluster: Cluster, **settings: Any) -> None:
        self.cluster, self.now, self.reserved, self.queues = cluster, 0.0, [""] * 0, ["celery"]
        self.app = cluster.another_app(**settings)
        self.consumer = Consumer(self.app)
        pool = SimpleNamespace(num_processes=2)
        worker = SimpleNamespace(app=self.app, hostname=NODE, pool=pool, consumer=self.consumer)
        self.silence = Silence(worker, lambda: self.queues, lambda: tuple(self.reserved), lambda: self.now)
        self.silence.listen(self.consumer)
        self.silence.look()
        self.now = 3600.0

    def taken(self) -> list[str]:
        """Let it look, and return the jobs that it has handed over since the last call."""
        self.silence.look()
        calls, self.consumer.calls = self.consumer.calls, []
        for call in calls:
            if call == (self.silence._note_taken,):
                call[0]()
        return [call[2].headers["id"] for call in calls if len(call) == 3]


@pytest.fixture
def later(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the jobs of the test have waited for a minute."""
    monkeypatch.setattr(type(cluster.ledger), "read_clock", lambda _self: time.time() + 60)


def _registered(listener: Listener, **registration: Any) -> None:
    ids = tuple(job.id for job in listener.cluster.live())
    more = {"tasks": ("play",), "queues": ("celery",), "reserved": ids} | registration
    listener.cluster.ledger.heartbeat("w2@test", lasts=60.0, registration=Registration(**more))


def _heard(listener: Listener) -> None:
    listener.consumer.create_task_handler()("a message")


SINGLE = Queue("celery", queue_arguments={"x-single-active-consumer": True})
SITUATIONS: dict[str, tuple[dict[str, Any], Callable[[Listener], object]]] = {
    "it has received something": ({}, _heard),
    "its slots are taken": ({}, lambda it: it.reserved.extend(["one", "two"])),
    "it holds the message": ({}, lambda it: it.reserved.extend(job.id for job in it.cluster.live())),
    "another worker holds the message": ({}, _registered),
    "it is not due": ({"countdown": 3600}, lambda _: None),
    "it has not been published": ({}, lambda it: it.cluster.ledger.mark_lost([job.id for job in it.cluster.live()])),
    "it is in another queue": ({"queue": "another"}, lambda _: None),
    "it does not consume the queue": ({}, lambda it: it.queues.clear()),
    "it has no connection": ({}, lambda it: setattr(it.consumer, "connection", None)),
    "it has a new connection": ({}, lambda it: setattr(it.consumer, "connection", object())),
    "another consumer is the active one": ({}, lambda it: it.app.amqp.queues.select_add(SINGLE)),
    "it stops": ({}, lambda _: draining.set()),
}


@pytest.mark.usefixtures("later")
@for_each("situation", SITUATIONS)
def test_a_worker_takes_nothing_while(cluster: Cluster, situation: str) -> None:
    """A worker leaves a job to the broker, and its connection as it is, in each of these situations."""
    options, arrange = SITUATIONS[situation]
    cluster.clear()
    cluster.play.apply_async((situation, ["return"]), **options)
    cluster.ledger.heartbeat("w2@test", lasts=0.0)
    listener = Listener(cluster)
    try:
        arrange(listener)
        assert (listener.taken(), listener.silence.since) == ([], 0.0)
    finally:
        draining.clear()


@pytest.mark.usefixtures("later")
def test_a_silent_worker_takes_what_it_has_slots_for(cluster: Cluster) -> None:
    """It takes one job per free slot, each once, at intervals; none that just arrived."""
    jobs = {cluster.play.delay(f"job-{number}", ["return"]).id for number in range(3)}
    listener = Listener(cluster)
    first = listener.taken()
    assert len(first) == 2
    assert listener.silence.since > 0
    listener.reserved = first
    assert listener.taken() == []
    listener.reserved = []
    for job_id in first:
        cluster.ledger.cancel(job_id)
    listener.now += 60.0
    assert {*first, *listener.taken()} == jobs


@pytest.mark.usefixtures("later")
@for_each("node, renewals", [(NODE, 1), ("w2@test", 0)])
def test_a_worker_renews_its_connection_if_nobody_else_had_the_message(
    cluster: Cluster, node: str, renewals: int
) -> None:
    """It connects anew if it has run a job that it took; a job that another worker runs was no sign of silence."""
    cluster.clear()
    result = cluster.play.delay(f"taken by {node}", ["return"])
    listener = Listener(cluster)
    assert listener.taken() == [result.id]
    cluster.ledger.claim(result.id, nonce="nonce", node=node)
    listener.silence.look()
    assert len(listener.consumer.calls) == renewals
    assert (listener.silence.since > 0) == bool(renewals)


@pytest.mark.usefixtures("later")
def test_the_length_of_a_silence_is_known_while_jobs_are_handed_over(cluster: Cluster) -> None:
    """A worker whose event loop hangs knows since when, also when another worker runs what was handed to the loop."""
    result = cluster.play.delay("handed", ["return"])
    listener = Listener(cluster)
    listener.silence.look()
    since = listener.silence.since
    cluster.ledger.claim(result.id, nonce="nonce", node="w2@test")
    listener.now += STALL
    listener.silence.look()
    assert listener.silence.since == since > 0


@pytest.mark.usefixtures("later")
def test_a_busy_event_loop_is_no_silence(cluster: Cluster) -> None:
    """A worker whose event loop is busy keeps its connection; one whose loop waits in one call for ever does not."""
    cluster.play.delay("busy", ["return"])
    listener, stop, turned = Listener(cluster), threading.Event(), threading.Event()
    silence = listener.silence

    def run(wait: Callable[[], object]) -> None:
        listener.consumer.create_task_handler()
        while not stop.is_set():
            wait()
            turned.set()

    def work() -> None:
        json.dumps([{"key": number} for number in range(100)], indent=1)  # in Python, by many functions

    renewals = []
    waits: list[tuple[Callable[[], object], float]] = [(work, PATIENCE), (stop.wait, 0.01)]
    for wait, pause in waits:
        stop.clear()
        thread = threading.Thread(target=run, args=(wait,))
        silence.look()
        silence._next_look = 0.0
        thread.start()
        await_(partial(lambda thread: silence._loop_thread == thread.ident, thread))
        for _ in range(20):
            turned.clear()
            listener.now += STALL
            silence.look()
            turned.wait(pause)  # for a busy loop to go on, however busy the machine is
        renewals.append(silence._renewals)
        stop.set()
        thread.join()
    assert renewals[0] == 0
    assert renewals[1] > 0
