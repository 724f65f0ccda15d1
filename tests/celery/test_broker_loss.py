"""Whatever messages the broker loses, delays or repeats, each job runs once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
import redis

from onejob import Outcome, State
from onejob.celery.app_state import app_state_of
from onejob.celery.publisher import Publisher
from onejob.errors import BrokerUnavailableError
from tests.celery.harness import DATABASES, LEASE, PATIENCE, ROOT, House, await_, is_running, on_every_store
from tests.services import start_redis

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import RedisServer

PUBLISH_TIMEOUT = 1.0


@pytest.fixture
def own(tmp_path: Path) -> Iterator[House]:
    """Return a house with a broker of its own, which the test may stop, freeze and empty."""
    server = start_redis(tmp_path, "--databases", str(DATABASES))
    house = House(tmp_path, server, "sqlite", {"onejob_publish_timeout": PUBLISH_TIMEOUT, "result_backend": None})
    house.use_lease(LEASE)
    house.app.set_current()
    yield house
    house.close()
    server.stop()


@pytest.fixture(autouse=True)
def thawed(request: pytest.FixtureRequest) -> Iterator[list[RedisServer]]:
    """Return a list of servers to resume after the test."""
    frozen: list[RedisServer] = []
    yield frozen
    for server in frozen:
        os.kill(server.pid, signal.SIGCONT)


def test_a_job_waits_for_a_dead_broker(own: House) -> None:
    """While the broker is down, `delay` returns an id within its deadline; the job runs when the broker is back."""
    own.server.stop()
    began = time.monotonic()
    result = own.play.delay("dead", ["return"])
    again = own.play.delay("dead", ["return"])
    took = time.monotonic() - began
    assert (result.outcome, again.outcome) == (Outcome.ADMITTED, Outcome.ATTACHED)
    assert own.job(result).state is State.QUEUED
    assert took < PATIENCE / 2
    own.server.start()
    own.worker()
    assert result.get(PATIENCE) == "dead"
    own.assert_ran(result, State.COMPLETED, "dead", 1)
    own.assert_quiet()


def test_a_job_waits_for_a_broker_that_hangs(own: House, thawed: list[RedisServer]) -> None:
    """While the broker accepts connections without replying, `delay` returns within its deadline; the job runs."""
    own.play.delay("before", ["return"])  # a connection that is open already must not be waited on either
    os.kill(own.server.pid, signal.SIGSTOP)
    thawed.append(own.server)
    began = time.monotonic()
    result = own.play.delay("hanging", ["return"])
    took = time.monotonic() - began
    assert own.job(result).state is State.QUEUED
    assert took < PATIENCE / 2
    os.kill(own.server.pid, signal.SIGCONT)
    own.worker()
    assert result.get(PATIENCE) == "hanging"
    own.assert_ran(result, State.COMPLETED, "hanging", 1)
    own.assert_quiet()


def test_a_retry_waits_for_a_dead_broker(own: House) -> None:
    """A run that retries while the broker is down loses nothing: the job runs again when it is back."""
    own.worker("-c", "1")
    result = own.play.delay("retries", ["hold>retry", "return"])
    own.await_mark("retries")
    own.server.stop()
    own.open("retries")
    own.await_state(result, State.RETRYING)
    own.server.start()
    assert result.get(PATIENCE) == "retries"
    own.assert_ran(result, State.COMPLETED, "retries", 2)
    own.assert_quiet()


def test_a_running_job_outlives_the_broker(own: House) -> None:
    """A job that runs while the broker is restarted without its data completes in that run."""
    worker = own.worker("-c", "2")
    result = own.play.delay("outlives", ["hold"])
    own.await_mark("outlives")
    own.server.kill()
    own.server.start()
    worker.await_text("Connected to redis", times=2)
    own.open("outlives")
    assert result.get(PATIENCE) == "outlives"
    own.assert_ran(result, State.COMPLETED, "outlives", 1)
    own.assert_quiet()


def test_queued_jobs_outlive_the_broker(own: House) -> None:
    """Jobs whose messages were lost with the broker run once each when it is back."""
    results = [own.play.delay(f"queued-{number}", ["return"]) for number in range(5)]
    own.server.kill()
    own.server.start()
    own.worker()
    assert [result.get(PATIENCE) for result in results] == [f"queued-{number}" for number in range(5)]
    for number, result in enumerate(results):
        own.assert_ran(result, State.COMPLETED, f"queued-{number}", 1)
    own.assert_quiet()


@on_every_store("house")
@pytest.mark.parametrize("loss", ["purge", "FLUSHDB"])
def test_lost_messages_are_sent_again(house: House, loss: str) -> None:
    """A job whose message was purged with its queue, or with the whole broker, runs once, a lease later."""
    house.use_lease(LEASE)
    result = house.play.delay("lost", ["return"])
    assert house.queued_messages() == 1
    if loss == "purge":
        assert house.app.control.purge() == 1
    else:
        house.broker.flushdb()
    again = house.play.delay("lost", ["return"])
    assert (again.id, again.outcome) == (result.id, Outcome.ATTACHED)
    house.worker()
    assert result.get(PATIENCE) == "lost"
    house.assert_ran(result, State.COMPLETED, "lost", 1)
    house.assert_quiet()


def test_a_message_lost_under_a_worker_is_sent_again(house: House) -> None:
    """Jobs that wait behind a busy worker survive a flush of the broker."""
    house.worker("-c", "1")
    first = house.play.delay("busy", ["hold"])
    house.await_mark("busy")
    results = [house.play_brief.delay(f"behind-{number}", ["return"]) for number in range(4)]
    house.broker.flushdb()
    house.open("busy")
    assert [result.get(PATIENCE) for result in [first, *results]] == ["busy", *(f"behind-{n}" for n in range(4))]
    assert [house.runs(f"behind-{number}") for number in range(4)] == [1] * 4
    house.assert_quiet()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, BrokerUnavailableError])
def test_an_interrupted_submission_is_not_lost(
    shared: House, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Whatever interrupts a submission between the ledger and the broker, the job is stored, and runs once."""

    def publish(*_args: object, **_options: object) -> None:
        raise error

    key = f"interrupted-{error.__name__}"
    with monkeypatch.context() as patch:
        patch.setattr(Publisher, "publish_all", publish)
        if issubclass(error, Exception):
            shared.play_brief.delay(key, ["return"])
        else:
            with pytest.raises(error):
                shared.play_brief.delay(key, ["return"])
    again = shared.play_brief.delay(key, ["return"])
    assert again.outcome is Outcome.ATTACHED
    assert again.get(PATIENCE) == key
    shared.assert_ran(again, State.COMPLETED, key, 1)


KILLED = """
import json, os, signal, sys
from onejob.celery.publisher import Publisher
from tests.celery.app import build
Publisher.publish_all = lambda *args, **options: os.kill(os.getpid(), signal.SIGKILL)
build(json.loads(sys.argv[1])).tasks["play_brief"].delay("submitter", ["return"])
"""


def test_a_killed_submitter_loses_nothing(shared: House) -> None:
    """A process that dies between the ledger and the broker has submitted its job."""
    command = [sys.executable, "-c", KILLED, json.dumps(shared.config)]
    ended = subprocess.run(command, cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    again = shared.play_brief.delay("submitter", ["return"])
    assert again.outcome is Outcome.ATTACHED
    assert again.get(PATIENCE) == "submitter"
    shared.assert_ran(again, State.COMPLETED, "submitter", 1)


def test_repeated_messages_start_one_run(shared: House) -> None:
    """A message that was sent many times starts one run."""
    result = shared.play.delay("repeated", ["hold"])
    for _ in range(10):
        app_state_of(shared.app).publisher.publish(shared.job(result))
    shared.await_mark("repeated")
    await_(lambda: not shared.queued_messages())
    shared.open("repeated")
    assert result.get(PATIENCE) == "repeated"
    shared.assert_ran(result, State.COMPLETED, "repeated", 1)


def test_an_unregistered_task_waits_for_a_worker_that_has_it(house: House) -> None:
    """A job whose message was discarded by a worker without its task is run by a worker that has it."""
    house.use_lease(LEASE)
    ignorant = house.worker("-c", "1", without="play")
    result = house.play.delay("unknown", ["return"])
    ignorant.await_text("Received unregistered task of type 'play'")
    assert house.job(result).state is State.QUEUED
    assert house.play.delay("unknown", ["return"]).outcome is Outcome.ATTACHED
    await_(lambda: not house.queued_messages())  # the message is acknowledged after the worker has logged it
    ignorant.sigkill()
    house.worker()
    assert result.get(PATIENCE) == "unknown"
    house.assert_ran(result, State.COMPLETED, "unknown", 1)
    house.await_rest()


def cut_connections(house: House) -> None:
    """Cut every connection to the broker."""
    with redis.Redis.from_url(house.config["broker_url"]) as client:
        client.client_kill_filter(_type="normal", skipme=True)
        client.client_kill_filter(_type="pubsub")


def test_a_cut_connection_starts_no_second_run(house: House) -> None:
    """When the worker's connections to the broker are cut, a job that is acknowledged late continues in its one run."""
    house.redeliver_after(1)
    worker = house.worker("-c", "3")
    result = house.play_late.delay("cut", ["hold"])
    house.await_mark("cut")
    cut_connections(house)
    worker.await_text("Restoring 1 unacknowledged message(s)")
    worker.await_text(f"play_late[{result.id}] received", times=2)
    worker.await_text(f"play_late[{result.id}] ignored")
    house.open("cut")
    assert result.get(PATIENCE) == "cut"
    house.assert_ran(result, State.COMPLETED, "cut", 1)
    house.assert_quiet()


def test_a_run_that_celery_cancels_is_no_crash(house: House) -> None:
    """If Celery is configured to cancel late-acknowledged runs on a lost connection, the job runs again."""
    worker = house.worker("-c", "3", worker_cancel_long_running_tasks_on_connection_loss=True)
    result = house.play_late.delay("canceled", ["hold:never", "hold"])
    first = house.await_mark("canceled")[0]
    cut_connections(house)
    worker.await_text("Connected to redis", times=2)
    house.await_mark("canceled", times=2)
    assert not is_running(first["pid"])
    house.open("canceled")
    assert result.get(PATIENCE) == "canceled"
    assert house.assert_ran(result, State.COMPLETED, "canceled", 2).crashes == 0
    house.assert_quiet()
