"""A store on the broker's Redis pushes the message of a job in the same atomic operation that makes the job due."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from kombu.exceptions import OperationalError

from onejob import Outcome
from onejob.celery.app_state import app_state_of
from onejob.celery.messages.broker import Broker
from onejob.celery.submission.options import tasks_of
from onejob.celery.submission.submit import needs_message
from onejob.client.operation import Operation
from onejob.client.operator import Operator
from onejob.client.redrive import redrive
from onejob.errors import StoreUnavailableError
from onejob.jobs.handover import BY_SWEEP
from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import JobRow, Submission
from onejob.ledger.ledger import Ledger
from onejob.ledger.sweep import Publishing, sweep
from tests.cases import for_each
from tests.celery.app import build
from tests.celery.harness import Cluster, await_
from tests.proxies import Carry, Proxy, carry
from tests.quiet import provokes
from tests.services import free_port, start_redis
from tests.stores.support import accepted, not_none
from tests.submissions import submission_of


@pytest.fixture
def one(new_cluster: Callable[..., Cluster]) -> Cluster:
    """Return a cluster without a worker whose ledger is in the database of its broker."""
    return new_cluster("broker")


def publisher_of(cluster: Cluster) -> Any:
    return app_state_of(cluster.app).publisher


def submission(cluster: Cluster, key: str, *acts: str, **options: Any) -> Submission:
    """Return a submission of `play` with its message."""
    return submission_of(cluster.play, {"key": key, "acts": [*acts]}, **options)


def ids(cluster: Cluster, queue: str = "celery") -> list[str]:
    """Return the ids of the jobs whose messages are in a queue, the oldest first."""
    return [json.loads(text)["headers"]["id"] for text in reversed(cluster.broker.lrange(queue, 0, -1))]


def sweep_once(cluster: Cluster) -> int:
    """Sweep as a worker does; return how many jobs were published."""
    publisher, tasks = publisher_of(cluster), frozenset(tasks_of(cluster.app))
    return sweep(cluster.ledger, Publishing(publisher.publish, publisher.handover.by_store), tasks=tasks).published


# --- where ----------------------------------------------------------------------------------------------------------


def _other_database(one: Cluster) -> dict[str, Any]:
    return {"onejob_store": one.config["result_backend"]}


def _other_user(one: Cluster) -> dict[str, Any]:
    one.broker.acl_setuser("ledger", enabled=True, nopass=True, categories=["+@all"], keys=["*"])
    return {"onejob_store": one.config["broker_url"].replace("redis://", "redis://ledger:x@")}


def _other_store(one: Cluster) -> dict[str, Any]:
    return {"onejob_store": f"sqlite:///{one.directory / 'ledger.db'}"}


def _failover(one: Cluster) -> dict[str, Any]:
    return {"broker_url": f"{one.config['broker_url']};redis://127.0.0.1:1/0"}


@for_each("elsewhere", [_other_database, _other_user, _other_store, _failover])
def test_only_a_store_in_the_place_of_the_broker_pushes(
    one: Cluster, elsewhere: Callable[[Cluster], dict[str, Any]]
) -> None:
    """A message is handed to the store if it is the broker's server, database and user, and to no other."""
    new = submission_of(one.play, {"key": "a", "acts": []})
    assert publisher_of(one).handover.by_store(new) is not None
    assert app_state_of(one.another_app(**elsewhere(one))).publisher.handover.by_store(new) is None


@pytest.mark.parametrize(("prefix", "pushes"), [("{celery}:", False), ("{onejob}:", True)])
def test_a_cluster_gets_messages_of_any_slot(
    request: pytest.FixtureRequest, tmp_path: Path, prefix: str, *, pushes: bool
) -> None:
    """In cluster mode the store pushes messages to lists in its own slot, and Celery sends all others."""
    server = start_redis(tmp_path, "--cluster-enabled", "yes", "--databases", "1")
    request.addfinalizer(server.stop)
    app = build({
        "broker_url": server.url, "onejob_store": server.url, "test_directory": "", "test_heartbeat": 0.5,
        "broker_transport_options": {"global_keyprefix": prefix},
    })  # fmt: skip
    add: Any = app.tasks["add"]
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        await_(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"))
        assert [add.delay(number).outcome for number in range(3)] == [Outcome.ADMITTED] * 3
        assert client.llen(f"{prefix}celery") == 3
    handover = app_state_of(app).publisher.handover.by_store(submission_of(add, {"a": 9}))
    assert (handover is not None) == pushes
    app_state_of(app).ledger.close()
    app_state_of(app).publisher.close()
    app.close()


# --- when -----------------------------------------------------------------------------------------------------------


def _run(one: Cluster, job_id: str, nonce: str) -> JobRow:
    return accepted(one.ledger.claim(job_id, nonce=f"{nonce:>16}", node="a"))


@provokes(Transition.CRASH, Transition.RELEASE, because="the test ends the runs")
def test_each_change_that_makes_a_job_due_pushes_its_message(one: Cluster) -> None:
    """When a job becomes due, by whatever operation, its message is in the queue; nobody sends it once more."""
    expected: list[str] = []
    due, same, late = submission(one, "due"), submission(one, "due"), submission(one, "late", countdown=3600)
    admissions = one.ledger.submit_many([due, same, late], handover_of=publisher_of(one).handover.of)
    expected.append(due.id)
    assert [each.handed_over for each in admissions] == [True, False, False]
    assert not needs_message(due, admissions[0])
    assert ids(one) == expected
    run = _run(one, due.id, "1")
    assert one.ledger.crash(run, "lost", "{}", handover=publisher_of(one).handover.of(run)).handed_over
    again = _run(one, due.id, "2")
    one.ledger.release(again, "later", handover=publisher_of(one).handover.of(again))
    expected += [due.id] * 2
    stale = one.ledger.crash(run, "lost", "{}", handover=publisher_of(one).handover.of(run))
    assert not stale.applied
    assert not stale.handed_over
    assert ids(one) == expected
    dead = one.ledger.fail(_run(one, due.id, "3"), "{}", "broken")
    redrive(one.app, one.ledger, dead, forget_steps=False, reason="again")
    operator = Operator(app=one.app, ledger=one.ledger, origin="by ops")
    job = not_none(operator.operate(Operation.RUN_NOW, one.ledger.get(late.id)))
    expected += [due.id, late.id]
    assert operator.operate(Operation.RUN_NOW, job) == job
    assert (sweep_once(one), ids(one)) == (0, expected)


def test_a_sweep_pushes_what_it_records(one: Cluster) -> None:
    """A sweep publishes a due job in the change that records it, also one that another ledger has made due."""
    swept = submission(one, "swept")
    one.ledger.submit(swept, handover=BY_SWEEP)
    await_(lambda: sweep_once(one) == 1)
    job = one.job(swept.id)
    assert (job.published, job.publish_error) == (1, "")
    assert [entry.event for entry in one.ledger.history(swept.id)] == ["submit", "publish"]
    early, other = one.play.apply_async(("early", []), countdown=3600), Ledger(one.ledger.store)
    Operator(app=one.app, ledger=other, origin="by ops").operate(Operation.RUN_NOW, other.get(early.id))
    assert ids(one) == [swept.id]
    assert (sweep_once(one), ids(one)) == (1, [swept.id, early.id])


# --- faults ---------------------------------------------------------------------------------------------------------


def test_a_broker_that_is_away_is_not_asked_for_each_job(one: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the broker cannot be reached, no message is handed to the store, and one attempt is enough to know it."""
    app = one.another_app(broker_url=f"redis://127.0.0.1:{free_port()}/0")
    broker = app_state_of(app).publisher._broker
    asked = Mock(wraps=broker.producer)
    monkeypatch.setattr(broker, "producer", asked)
    new, handover = submission(one, "new"), app_state_of(app).publisher.handover
    assert [handover.by_store(new) for _ in range(10)] == [None] * 10
    asked.assert_called_once_with()


def test_a_broker_that_fails_later_leaves_the_second_step(one: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the broker fails when a message is to be recorded, the store gets none; the second step is left."""
    new = submission(one, "later")
    assert publisher_of(one)._direct_broker() is not None
    monkeypatch.setattr(Broker, "producer", Mock(side_effect=OperationalError("away")))
    assert publisher_of(one).handover.by_store(replace(new, priority_rank=-3)) is None
    assert publisher_of(one).handover.by_store(new) is None


def test_one_reset_connection_does_not_stop_pushing(one: Cluster) -> None:
    """After the broker has closed the connections of a submitter, its next messages are pushed by the store."""
    one.play.delay("first", ["return"])
    for client in one.broker.client_list():
        if one.config["broker_url"].endswith(f"/{client['db']}"):
            one.broker.client_kill_filter(_id=client["id"], skipme=True)
    results = one.play.submit_many([(f"key-{number}", ["return"]) for number in range(3)], queue="other")
    assert publisher_of(one).handover.by_store(submission(one, "new")) is not None
    assert len(ids(one, "other")) == len(results)


POINTS = ("before the request", "in the request", "before the reply", "in the reply")


class CuttingProxy(Proxy):
    """While it is armed, it cuts the connections of the next calls of scripts at a point."""

    def __init__(self, port: int) -> None:
        self.point = ""
        self.cuts = 0
        """How many requests are still to be cut."""
        self.reached = threading.Event()
        super().__init__(port)

    def arm(self, point: str, cuts: int) -> None:
        """Cut the next requests at a point."""
        self.point, self.cuts = point, cuts
        self.reached.clear()

    def carries(self) -> tuple[Carry, Carry]:
        """Return what carries requests and replies up to a point."""
        point = ""

        def request(data: bytes, server: socket.socket) -> None:
            nonlocal point
            if self.cuts > 0 and b"EVALSHA" in data:
                self.cuts -= 1
                point = self.point
            if data and point.endswith("request"):
                server.sendall(data[: len(data) // 2] if point == "in the request" else b"")
                self._cut()
            carry(data, server)

        def reply(data: bytes, client: socket.socket) -> None:
            if data and point:
                client.sendall(data[: len(data) // 2] if point == "in the reply" else b"")
                self._cut()
            carry(data, client)

        return request, reply

    def _cut(self) -> None:
        self.reached.set()
        raise ConnectionError


@pytest.fixture
def proxy(one: Cluster) -> Iterator[CuttingProxy]:
    """Return a proxy in front of the one Redis, which cuts connections."""
    proxy = CuttingProxy(one.server.port)
    yield proxy
    proxy.close()


def remote(one: Cluster, proxy: CuttingProxy) -> dict[str, Any]:
    """Return the configuration of a submitter that reaches ledger and broker through a proxy."""
    url = one.config["broker_url"].replace(f":{one.server.port}/", f":{proxy.port}/")
    return one.config | {"broker_url": url, "onejob_store": url}


def assert_submitted(one: Cluster, first: str, *later: str) -> None:
    """Assert that the newest jobs, from the one with the first key on, are these, and that each has one message."""
    keys = {job.id: json.loads(job.payload)["args"][0] for job in reversed(one.jobs())}
    made = [*keys.values()]
    assert made[made.index(first) :] == [first, *later]
    assert [keys[job_id] for job_id in ids(one)][-1 - len(later) :] == [first, *later]


@for_each("point, always", [(point, always) for point in POINTS for always in (False, True)])
def test_a_job_has_a_message_exactly_if_it_is_in_the_ledger(
    one: Cluster, proxy: CuttingProxy, point: str, *, always: bool
) -> None:
    """A submission that loses its connection is made once; one that always does raises, and leaves all or nothing."""
    first, cut = f"first {point} {always}", f"cut {point} {always}"
    app = one.another_app(**remote(one, proxy))
    app.tasks["play"].delay(first, ["return"])
    assert app_state_of(app).publisher.handover.by_store(submission(one, "new")) is not None
    proxy.arm(point, 100 if always else 1)
    if always:
        with pytest.raises(StoreUnavailableError):
            app.tasks["play"].delay(cut, ["return"])
    else:
        app.tasks["play"].delay(cut, ["return"])
    assert proxy.reached.is_set()
    proxy.arm(point, 0)
    assert_submitted(one, first, *([cut] if not always or point.endswith("reply") else []))
