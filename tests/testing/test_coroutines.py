"""Coroutines in tests: the kit, a direct call and eager mode run an `async def` body to its end."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

import onejob
from onejob.testing import Jobs, run_job

app: Any = Celery("coroutines", broker="memory://", set_as_current=False)


@onejob.task(app, shared=False, autoretry_for=(ValueError,), default_retry_delay=60)
async def summarise(text: str, fails: int = 0) -> str:
    job = onejob.current_job()
    first, second = await asyncio.gather(job.astep("first", shout, text), job.astep("second", shout, "!"))
    await job.aprogress(1, 2)
    if job.attempt <= fails:
        raise ValueError(text)
    return first + second


async def shout(text: str) -> str:
    await asyncio.sleep(0)
    return text.upper()


@onejob.task(app, shared=False)
async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


@pytest.fixture
def onejob_app() -> Any:
    return app


def test_a_body_is_awaited(jobs: Jobs) -> None:
    """`run_job`, `run_all` and a retry after some time run a coroutine, with its steps and its progress."""
    assert run_job(summarise, "one").result == "ONE!"
    result, retried = summarise.delay("two"), summarise.delay("three", fails=1)
    jobs.run_all()
    assert result.get() == "TWO!"
    jobs.travel(61)
    jobs.run_all()
    assert retried.get() == "THREE!"


def test_a_direct_call_returns_the_coroutine() -> None:
    """A task with a coroutine is called like a coroutine function."""
    assert asyncio.run(double(2)) == 4


@pytest.fixture
def eager() -> Iterator[None]:
    app.conf.task_always_eager = True
    yield
    app.conf.task_always_eager = False


@pytest.mark.usefixtures("eager")
def test_an_eager_call_runs_the_coroutine() -> None:
    """In eager mode a submission returns the result, also from a coroutine, whose loop cannot run another one."""

    async def submit() -> list[int]:
        return [double.delay(4).get(), (await double.asubmit(5)).get()]

    assert double.delay(3).get() == 6
    assert asyncio.run(submit()) == [8, 10]
