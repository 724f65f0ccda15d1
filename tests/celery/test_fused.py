"""A store on the broker's Redis pushes the message of a job in the same atomic operation that makes the job due."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import redis
from kombu.exceptions import OperationalError

from onejob import Outcome, State
from onejob.celery import control
from onejob.celery.app_state import app_state_of
from onejob.celery.broker import Broker
from onejob.celery.operations import Operation, operate
from onejob.celery.options import tasks_of
from onejob.celery.send import needs_message
from onejob.celery.submission import prepare_submission
from onejob.jobs.lifecycle import Transition
from onejob.ledger.ledger import Ledger
from onejob.ledger.sweep import sweep
from tests.cases import for_each
from tests.celery.app import build
from tests.celery.harness import PATIENCE, House, await_
from tests.quiet import provokes
from tests.services import free_port, start_redis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from celery import Celery

    from onejob.jobs.model import Job, Submission
    from tests.services import RedisServer


class OneRedis(House):
    """A house whose ledger is in the database of its broker."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.config["onejob_store"] = self.config["broker_url"]
        self.app.close()
        self.app = build(self.config)

    @property
    def publisher(self) -> Any:
        """The publisher of the app."""
        return app_state_of(self.app).publisher

    def submission(self, key: str, *acts: str, **options: Any) -> Submission:
        """Return a submission of `play` with its message."""
        new = prepare_submission(self.play, {"key": key, "acts": [*acts]}, source="test", **options)
        return replace(new, message=partial(self.publisher.message_of, new))

    def ids(self, queue: str = "celery") -> list[str]:
        """Return the ids of the jobs whose messages are in a queue, the newest first."""
        return [json.loads(text)["headers"]["id"] for text in self.broker.lrange(queue, 0, -1)]


@pytest.fixture
def one(tmp_path: Path, broker: RedisServer) -> Iterator[OneRedis]:
    """Return such a house without a worker."""
    house = OneRedis(tmp_path, broker, "redis")
    house.app.set_current()
    yield house
    house.close()


def _sweep(app: Celery) -> Any:
    state = app_state_of(app)
    publisher = state.publisher
    tasks = frozenset(tasks_of(app))
    return sweep(state.ledger, publisher.publish, tasks=tasks, message_of=publisher.message_of)


# --- where ----------------------------------------------------------------------------------------------------------


def _other_database(one: OneRedis) -> dict[str, Any]:
    return {"onejob_store": one.config["result_backend"]}


def _other_user(one: OneRedis) -> dict[str, Any]:
    one.broker.acl_setuser("ledger", enabled=True, nopass=True, categories=["+@all"], keys=["*"])
    return {"onejob_store": one.config["broker_url"].replace("redis://", "redis://ledger:x@")}


def _other_store(one: OneRedis) -> dict[str, Any]:
    return {"onejob_store": f"sqlite:///{one.directory / 'ledger.db'}"}


def _failover(one: OneRedis) -> dict[str, Any]:
    return {"broker_url": f"{one.config['broker_url']};redis://127.0.0.1:1/0"}


@for_each("elsewhere", [_other_database, _other_user, _other_store, _failover])
def test_only_a_store_in_the_place_of_the_broker_pushes(
    one: OneRedis, elsewhere: Callable[[OneRedis], dict[str, Any]]
) -> None:
    """A message is handed to the store if it is the broker's server, database and user, and to no other."""
    assert one.publisher.fuses
    app = build(one.config | elsewhere(one))
    publisher = app_state_of(app).publisher
    assert not publisher.fuses
    assert publisher.message_of(prepare_submission(one.play, {"key": "a", "acts": []}, source="test")) is None


def test_a_broker_that_is_away_is_not_asked_for_each_job(one: OneRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the broker cannot be reached, no message is handed to the store, and one attempt is enough to know it."""
    app = build(one.config | {"broker_url": f"redis://127.0.0.1:{free_port()}/0"})
    publisher, asked = app_state_of(app).publisher, []
    connect = Broker.producer

    def counted(self: Broker) -> Any:
        asked.append(self)
        return connect(self)

    monkeypatch.setattr(Broker, "producer", counted)
    assert [publisher.fuses for _ in range(10)] == [False] * 10
    assert len(asked) == 1


# --- when -----------------------------------------------------------------------------------------------------------


def test_a_submission_pushes_its_message(one: OneRedis) -> None:
    """A new job that is due has its message in the queue when its submission is answered; nothing more is sent."""
    for number in range(3):
        new = one.submission(f"key-{number}", "return")
        admission = one.ledger.submit(new)
        assert admission.sent
        assert not needs_message(new, admission)
        assert one.ids()[0] == new.id
    assert len(one.ids()) == 3


def test_a_duplicate_and_a_delayed_job_push_nothing(one: OneRedis) -> None:
    """A submission that makes no job due pushes no message."""
    first = one.submission("same", "return")
    admissions = one.ledger.submit_many([first, one.submission("same", "return"), one.submission("late", countdown=60)])
    assert [each.sent for each in admissions] == [True, False, False]
    assert one.ids() == [first.id]


def test_a_run_that_ends_for_another_one_pushes_the_next_message(one: OneRedis) -> None:
    """Retries and replacements run to their end by their pushed messages, each of which starts one run."""
    one.worker("-c", "1")
    results = [
        one.play.delay("retried", ["retry", "return"]),
        one.play.delay("requeued", ["hold>retry", "return"]),
    ]
    one.await_mark("requeued")
    one.open("requeued")
    assert [result.get(PATIENCE) for result in results] == ["retried", "requeued"]
    await_(lambda: not one.ids() and not one.broker.hlen("unacked"))
    for result in results:
        assert one.ledger.store.duplicates(result.id) == []


def test_a_sweep_pushes_what_it_records(one: OneRedis) -> None:
    """A sweep publishes a due job in the change that records it: one message, and one entry in the history."""
    new = replace(one.submission("swept", "return"), message=None)
    one.ledger.submit(new, wake_in=0.0)
    swept = await_(lambda: (found := _sweep(one.app)).published and found)
    assert (swept.published, one.ids()) == (1, [new.id])
    job = one.job(new.id)
    assert (job.state, job.published, job.publish_error) == (State.QUEUED, 1, "")
    assert [entry.event for entry in one.ledger.history(new.id)] == ["submit", "publish"]


def _dead(one: OneRedis) -> Job:
    new = replace(one.submission("dead", "return"), message=None)
    one.ledger.submit(new)
    claimed = one.ledger.claim(new.id, nonce="0123456789abcdef", node="a").job
    assert claimed is not None
    return one.ledger.fail(claimed, "{}", "broken")


def test_a_redrive_pushes_its_message(one: OneRedis) -> None:
    """A dead letter that is redriven has its message in the queue at once, without a sweep, and no sweep repeats it."""
    job = _dead(one)
    redriven = control.redrive(one.app, one.ledger, job, forget_steps=False, reason="again")
    assert (redriven.state, one.ids()) == (State.QUEUED, [job.id])
    assert _sweep(one.app).published == 0


def test_a_job_that_is_made_due_pushes_its_message(one: OneRedis) -> None:
    """A delayed job that is made due has its message in the queue at once, and no sweep repeats it."""
    job_id = one.play.apply_async(("early", ["return"]), countdown=3600).id
    job = operate(one.app, one.ledger, Operation.RUN_NOW, one.ledger.get(job_id), origin="by ops")
    assert one.ids() == [job_id]
    assert job is not None
    assert _sweep(one.app).published == 0
    assert operate(one.app, one.ledger, Operation.RUN_NOW, job, origin="by ops") == job
    assert one.ids() == [job_id]


def test_another_ledger_gets_no_message(one: OneRedis) -> None:
    """For a ledger that is not the app's own nothing is pushed: a sweep of its workers publishes the job."""
    job_id = one.play.apply_async(("early", ["return"]), countdown=3600).id
    other = Ledger(one.ledger.store)
    operate(one.app, other, Operation.RUN_NOW, other.get(job_id), origin="by ops")
    assert one.ids() == []
    assert _sweep(one.app).published == 1
    assert one.ids() == [job_id]


@provokes(Transition.CRASH, Transition.RELEASE, because="the test ends the runs")
def test_a_crash_and_a_release_push_their_messages(one: OneRedis) -> None:
    """A job that goes back to the queue has its message there with that change; a stale run pushes nothing."""
    new = replace(one.submission("crashed", "return"), message=None)
    one.ledger.submit(new)
    runs = []
    for nonce, back in (("0123456789abcde1", "crash"), ("0123456789abcde2", "release")):
        run = one.ledger.claim(new.id, nonce=nonce, node="a").job
        assert run is not None
        runs.append(run)
        message = one.publisher.message_of(run)
        if back == "crash":
            assert one.ledger.crash(run, "lost", "{}", message=message).sent
        else:
            one.ledger.release(run, "later", message=message)
    assert one.ids() == [new.id] * 2
    stale = one.ledger.crash(runs[0], "lost", "{}", message=one.publisher.message_of(runs[0]))
    assert (stale.applied, stale.sent) == (False, False)
    assert len(one.ids()) == 2


def test_a_broker_that_fails_later_leaves_the_second_step(tmp_path: Path) -> None:
    """If the broker fails when a message is to be recorded, the store gets none; the second step is left."""
    server = start_redis(tmp_path, "--databases", "2000")
    house = OneRedis(tmp_path, server, "redis")
    try:
        assert house.publisher.fuses
        submission = house.submission("later", "return")
        with pytest.MonkeyPatch.context() as patch:

            def broken(*_args: Any, **_options: Any) -> Any:
                raise OperationalError("away")

            patch.setattr(Broker, "producer", broken)
            assert house.publisher.message_of(replace(submission, priority_rank=-3)) is None
            assert not house.publisher.fuses
    finally:
        house.close()
        server.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RedisServer]:
    """Return a Redis in cluster mode that has all slots."""
    server = start_redis(tmp_path, "--cluster-enabled", "yes", "--databases", "1")
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        await_(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"))
    yield server
    server.stop()


@pytest.mark.parametrize(("prefix", "pushes"), [("{celery}:", False), ("{onejob}:", True)])
def test_a_cluster_gets_messages_of_any_slot(cluster: RedisServer, prefix: str, *, pushes: bool) -> None:
    """In cluster mode the store pushes messages to lists in its own slot, and Celery sends all others."""
    options = {"global_keyprefix": prefix}
    app = build({
        "broker_url": cluster.url, "onejob_store": cluster.url, "broker_transport_options": options, "test_stage": "",
        "onejob_heartbeat": 0.5,
    })  # fmt: skip
    add: Any = app.tasks["add"]
    results = [add.delay(number) for number in range(3)]
    assert [result.outcome for result in results] == [Outcome.ADMITTED] * 3
    with redis.Redis.from_url(cluster.url) as client:
        assert client.llen(f"{prefix}celery") == 3
    new = prepare_submission(add, {"a": 9}, source="test")
    assert (app_state_of(app).publisher.message_of(new) is not None) == pushes
    app_state_of(app).ledger.close()
    app_state_of(app).publisher.close()
    app.close()


def test_one_reset_connection_does_not_stop_pushing(one: OneRedis) -> None:
    """After the broker has closed the connections of a submitter, its next messages are pushed by the store."""
    one.play.delay("first", ["return"])
    for client in one.broker.client_list():
        if client["db"] == str(one.databases[0]):
            one.broker.client_kill_filter(_id=client["id"], skipme=True)
    results = one.play.submit_many([(f"key-{number}", ["return"]) for number in range(3)], queue="other")
    assert one.publisher.fuses
    assert len(one.ids("other")) == len(results)
