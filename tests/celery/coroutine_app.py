"""An app whose bodies are coroutines: each does what its name says, and returns what a test looks at."""

import asyncio
import json
import os
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any

import celery

import onejob
from tests.celery.app import CONFIG, Checkpoints
from tests.intervals import read_intervals

VARIABLE: ContextVar[str] = ContextVar("variable", default="")
BODIES: dict[str, Callable[[Checkpoints, str], Coroutine[Any, Any, Any]]] = {}


@dataclass
class Line:
    sku: str
    amount: int = 1


def body(function: Callable[[Checkpoints, str], Coroutine[Any, Any, Any]]) -> Any:
    """Register a body, which tests call by its name."""
    BODIES[function.__name__] = function
    return function


@body
async def knows_its_job(_: Checkpoints, _key: str) -> list[str]:
    """Return the job's id as the body, its tasks, their threads and nested tasks know it."""

    async def nested() -> list[str]:
        return [onejob.current_job().id, await asyncio.create_task(job_id())]

    async def job_id() -> str:
        await asyncio.sleep(0)
        return onejob.current_job().id

    found = await asyncio.gather(job_id(), asyncio.create_task(job_id()), asyncio.to_thread(asyncio.run, job_id()))
    return [onejob.current_job().id, *found, *await nested()]


@body
async def meets_others(checkpoints: Checkpoints, key: str) -> str:
    """Wait until a number of bodies have begun: the number before the first dash of the key."""
    checkpoints.mark("meeting", "run")
    while len(checkpoints.marks("meeting")) < int(key.partition("-")[0]):  # noqa: ASYNC110 - a file tells
        await asyncio.sleep(0.005)
    return onejob.current_job().id


@body
async def steps(checkpoints: Checkpoints, key: str) -> list[Any]:
    """Compute two steps at once, and fail in the first attempt."""
    job, both = onejob.current_job(), asyncio.Barrier(2)

    async def take(name: str) -> str:
        checkpoints.mark(key, f"step {name}")
        await both.wait()
        return f"{name} {job.attempt}"

    found = await asyncio.gather(job.astep("one", take, "one"), job.astep("two", take, "two"))
    async with asyncio.TaskGroup() as group:
        plain = group.create_task(job.astep("plain", lambda: 3))
        line = group.create_task(job.astep("line", make_line, key))
    if job.attempt == 1:
        raise LookupError(key)
    assert isinstance(line.result(), Line)
    return [*found, plain.result(), line.result().sku]


async def make_line(sku: str) -> Line:
    return Line(sku)


@body
async def same_step_at_once(_: Checkpoints, key: str) -> list[str]:
    job, gate = onejob.current_job(), asyncio.Event()

    async def take() -> str:
        await gate.wait()
        return key

    first = asyncio.create_task(job.astep("same", take))
    await asyncio.sleep(0)
    (refused,) = await asyncio.gather(job.astep("same", take), return_exceptions=True)
    gate.set()
    return [await first, await job.astep("same", take), str(refused)]


@body
async def spends(_: Checkpoints, _key: str) -> None:
    job = onejob.current_job()
    await asyncio.gather(*(job.acost(usd="0.001", tokens=1) for _ in range(60)))


@body
async def reports(checkpoints: Checkpoints, key: str) -> None:
    """Report progress until the job is canceled."""
    job = onejob.current_job()
    await job.aprogress(1, 4, "begun")
    checkpoints.mark(key, "run")
    while not await job.acanceled():  # noqa: ASYNC110 - the ledger tells
        await asyncio.sleep(0.005)
    checkpoints.mark(key, "canceled")
    await job.aprogress(2, 4)


@body
async def submits(_: Checkpoints, key: str) -> list[str]:
    """Submit in each way, and return the ids of the jobs."""
    task: Any = celery.current_app.tasks["coroutine"]

    async def submit_as(number: int) -> Any:
        with onejob.submitter(f"user:{number}"):
            return await task.asubmit(f"{key}-{number}", "tells_parents")

    found = await asyncio.gather(*(submit_as(number) for number in range(3)))
    found += await task.asubmit_many([(f"{key}-many", "tells_parents")])
    found += [await task.aapply_async((f"{key}-named", "tells_parents"), task_id=f"{key}-named")]
    found += [await asyncio.to_thread(task.delay, f"{key}-thread", "tells_parents")]
    return [each.id for each in found]


@body
async def tells_parents(_: Checkpoints, _key: str) -> list[str]:
    request: Any = await asyncio.create_task(asyncio.to_thread(lambda: celery.current_task.request))
    return [request.parent_id, request.root_id]


@body
async def returns(_: Checkpoints, key: str) -> str:
    return key


@body
async def fails_first(_: Checkpoints, key: str) -> str:
    await asyncio.sleep(0)
    if onejob.current_job().attempt == 1:
        raise LookupError(key)
    return f"second {key}"


def build(config: dict[str, Any]) -> celery.Celery:
    """Return the app."""
    app = celery.Celery("coroutines", changes=config)
    read_intervals(app, config)
    checkpoints = Checkpoints(config["test_directory"])

    async def run(key: str, how: str) -> Any:
        return await BODIES[how](checkpoints, key)

    options: dict[str, Any] = {"shared": False, "unique_on": ["key"]}
    onejob.task(app, name="coroutine", **options)(run)

    @wraps(run)
    def decorated(*args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        return run(*args, **kwargs)

    onejob.task(app, name="decorated", **options)(decorated)
    onejob.task(app, name="retrying", autoretry_for=(LookupError,), default_retry_delay=0, **options)(run)

    async def plain(key: str) -> str:
        await asyncio.sleep(0)
        checkpoints.mark(key, "run")
        if len(checkpoints.marks(key)) == 1:
            raise LookupError(key)
        return key

    define: Any = app.task  # the published types know no task that is a coroutine
    define(plain, name="plain", shared=False, autoretry_for=(LookupError,), default_retry_delay=0)

    async def order(key: str, lines: list[Line]) -> Line:
        await asyncio.sleep(0)
        return Line(key, sum(each.amount for each in lines))

    onejob.task(app, name="order", **options)(order)
    return app


if CONFIG in os.environ:
    app = build(json.loads(os.environ[CONFIG]))
