"""Whatever messages the broker loses, delays or repeats, each job runs once."""

from __future__ import annotations

import json
import os
import signal
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest
import redis

from onejob import Outcome, State
from onejob.celery.publisher import Publisher
from onejob.errors import BrokerUnavailableError
from onejob.jobs.lifecycle import Transition
from tests.celery.harness import (
    DATABASES,
    LEASE,
    LONG_LEASE,
    PATIENCE,
    ROOT,
    House,
    await_,
    is_running,
    program_environment,
)
from tests.forks import CELERY, run
from tests.quiet import provokes
from tests.services import start_redis

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


PUBLISH_TIMEOUT = 1.0
pytestmark = provokes(
    Transition.PUBLISH, logs=["Cannot connect to redis", "onejob-sweeper failed"], because="the broker loses messages"
)


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


def test_a_job_waits_for_its_broker(own: House) -> None:
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


def test_running_and_waiting_jobs_outlive_the_broker(own: House) -> None:
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


def test_an_interrupted_submission_is_not_lost(shared: House) -> None:
    """Whatever interrupts a submission between the ledger and the broker, the job is stored, and runs once."""
    interrupts: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit, GeneratorExit, BrokerUnavailableError)
    for error in interrupts:

        def publish(*_args: object, error: type[BaseException] = error, **_options: object) -> None:
            raise error

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Publisher, "publish_all", publish)
            with nullcontext() if issubclass(error, Exception) else pytest.raises(error):
                shared.play_brief.delay(error.__name__, ["return"])
    for error, job in zip(interrupts, reversed(shared.jobs()[: len(interrupts)]), strict=True):
        assert_ran_once(shared, job.id, error.__name__)


def assert_ran_once(house: House, job_id: str, key: str) -> None:
    """Assert that a job of a key runs once."""
    result = house.play_brief.AsyncResult(job_id)
    assert result.get(PATIENCE) == key
    assert house.runs(key) == 1


KILLED = """
import json, os, signal, sys
from onejob.celery.publisher import Publisher
from tests.celery.app import build
Publisher.publish_all = lambda *args, **options: os.kill(os.getpid(), signal.SIGKILL)
build(json.loads(sys.argv[1])).tasks["play_brief"].delay("submitter", ["return"])
"""


def test_a_killed_submitter_loses_nothing(shared: House) -> None:
    """A process that dies between the ledger and the broker has submitted its job."""
    ended = run(["-c", KILLED, json.dumps(shared.config)], environment=program_environment(), cwd=ROOT, modules=CELERY)
    assert ended.returncode == -signal.SIGKILL, ended
    assert_ran_once(shared, shared.jobs()[0].id, "submitter")


@provokes(logs=["Received unregistered task"], because="one worker lacks the task")
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


def test_a_cut_connection_starts_no_second_run(own: House) -> None:
    """When the worker's connections to the broker are cut, a job that is acknowledged late continues in its one run."""
    own.use_lease(LONG_LEASE)
    own.redeliver_after(1)
    worker = own.worker("-c", "3")
    result = own.play_late.delay("cut", ["hold"])
    own.await_mark("cut")
    cut_connections(own)
    worker.await_text("Restoring 1 unacknowledged message(s)")
    worker.await_text(f"play_late[{result.id}] received", times=2)
    worker.await_text(f"job {result.id}: not claimed")
    own.open("cut")
    assert result.get(PATIENCE) == "cut"
    own.assert_ran(result, State.COMPLETED, "cut", 1)
    own.assert_quiet()


@provokes(Transition.RELEASE, because="the worker cancels its runs")
def test_a_run_that_celery_cancels_is_no_crash(own: House) -> None:
    """If Celery is configured to cancel late-acknowledged runs on a lost connection, the job runs again."""
    own.use_lease(LONG_LEASE)
    worker = own.worker("-c", "3", worker_cancel_long_running_tasks_on_connection_loss=True)
    result = own.play_late.delay("canceled", ["hold:never", "hold"])
    first = own.await_mark("canceled")[0]
    cut_connections(own)
    worker.await_text("Connected to redis", times=2)
    own.await_mark("canceled", times=2)
    assert not is_running(first["pid"])
    own.open("canceled")
    assert result.get(PATIENCE) == "canceled"
    assert own.assert_ran(result, State.COMPLETED, "canceled", 2).crashes == 0
    own.assert_quiet()
