"""The asynchronous methods of a running job: the event loop goes on while the store does not answer."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

import onejob
from onejob.celery.app_state import app_state_of
from onejob.celery.current_job import RunningJob
from onejob.celery.run import Run
from onejob.concurrency.loop_carrier import LoopCarrier
from onejob.errors import InvalidArgumentsError, InvalidPayloadError, JobReleased
from onejob.stores.carrier import set_carrier
from tests.fundamentals.shop import claimed
from tests.services import RedisServer, start_redis

PATIENCE = 40.0
TICKS = 20
"""How many turns the event loop must make while the store does not answer."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """Return a Redis of the test's own, which it may stop."""
    server = start_redis(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def job(server: RedisServer) -> Iterator[RunningJob]:
    """Return a running job, whose ledger is in that Redis."""
    app: Any = Celery("paused", broker=server.url, set_as_current=False)

    @onejob.task(app, name="invoice", shared=False)
    def invoice() -> None: ...

    ledger, limits = app_state_of(app).ledger, app_state_of(app).settings.limits
    yield RunningJob(Run(claimed(ledger, invoice.delay().id), ledger, limits))
    app_state_of(app).publisher.close()
    app_state_of(app).close()


CALLS: dict[str, Callable[[RunningJob], Any]] = {
    "aprogress": lambda job: job.aprogress(1, 2),
    "acost": lambda job: job.acost(usd="0.5"),
    "acanceled": lambda job: job.acanceled(),
    "astep": lambda job: job.astep("step", asyncio.sleep, 0, 7),
}


@pytest.mark.parametrize("carries", [False, True])
def test_a_store_that_is_away_blocks_no_loop(job: RunningJob, server: RedisServer, carries: bool) -> None:
    """While Redis answers nothing, each call waits and the loop turns, in the pool onejob and elsewhere."""

    async def scenario() -> list[Any]:
        if carries:
            set_carrier(LoopCarrier(asyncio.get_running_loop()))
        await job.acanceled()
        os.kill(server.pid, signal.SIGSTOP)
        pending = [asyncio.create_task(call(job)) for call in CALLS.values()]
        try:
            for _ in range(TICKS):
                await asyncio.sleep(0.001)
                assert not any(each.done() for each in pending)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        return await asyncio.wait_for(asyncio.gather(*pending), PATIENCE)

    assert asyncio.run(scenario()) == [None, None, False, 7]


def test_a_step_of_a_function_computes_no_coroutine(job: RunningJob) -> None:
    """`step` with a coroutine function says that `astep` is right, and closes the coroutine."""
    function: Callable[[], Any] = partial(asyncio.sleep, 0)
    with pytest.raises(InvalidArgumentsError, match=r"await job\.astep"):
        job.step("wrong", function)


def test_what_a_step_raises_is_raised(job: RunningJob) -> None:
    """An exception, a value that cannot be stored, and a wrong name keep no step, and its name is free again."""

    async def fail() -> None:
        await asyncio.sleep(0)
        raise LookupError

    async def scenario() -> int:
        with pytest.raises(LookupError):
            await job.astep("step", fail)
        with pytest.raises(InvalidPayloadError):
            await job.astep("step", asyncio.sleep, 0, object())
        with pytest.raises(InvalidArgumentsError):
            await job.astep("", fail)
        return await job.astep("step", asyncio.sleep, 0, 1)

    assert asyncio.run(scenario()) == 1


def test_a_worker_that_shuts_down_begins_no_step(job: RunningJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signals that stop a run reach the coroutine, though they are no `Exception`."""
    monkeypatch.setattr("onejob.celery.run.draining.is_set", lambda: True)
    for call in (CALLS["aprogress"], CALLS["astep"]):
        with pytest.raises(JobReleased):
            asyncio.run(call(job))


def test_a_canceled_call_leaves_nothing_behind(job: RunningJob, server: RedisServer) -> None:
    """A coroutine that is canceled during a call waits for its end, so that no request follows."""

    async def scenario() -> None:
        await job.acanceled()
        os.kill(server.pid, signal.SIGSTOP)
        pending = asyncio.create_task(job.aprogress(1, 2))
        await asyncio.sleep(0)
        pending.cancel()
        for _ in range(TICKS):
            await asyncio.sleep(0.001)
        assert not pending.done()
        os.kill(server.pid, signal.SIGCONT)
        with pytest.raises(asyncio.CancelledError):
            await pending

    asyncio.run(scenario())
    assert (job._run._ledger.get(job.id).progress or "").startswith('{"done": 1')
