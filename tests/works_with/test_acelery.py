"""acelery: coroutines as bodies of jobs, and its results."""

import pytest

from tests.works_with.program import MakeProgram, on_both_brokers
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("acelery==0.1.1",),
    needs=("tenacity==9.2.1",),
    ran="coroutines as bodies by `async_task`, with a step; `AIOResult` of two equal calls; prefork, threads; Redis, `onejob://`",
    holds="Bodies are coroutines, equal calls one job, and both callers get its result.",
    do="Put `@async_task()` below `@app.task(base=onejob.Task)`. `AIOResult` needs a Redis as result backend; "
    "`await result.aget()` of onejob needs none.",
    fails="",
)
APP = """
import asyncio
from acelery import AIOResult, async_task
from kit import *

app = make_app(result_backend=os.environ["SHOP_REDIS"])

@app.task(base=onejob.Task, unique_on=["number"])
@async_task()
async def double(number: int, note: str = "") -> int:
    await asyncio.sleep(0.2)
    onejob.current_job().step("kept", lambda: mark(number))
    return 2 * number
"""
TWICE = """
async def twice():
    results = [double.delay(2, note) for note in ("", "again")]
    return await asyncio.gather(*(AIOResult(each, return_type=int).get(timeout=20) for each in results))

answer = asyncio.run(twice())
"""


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@on_both_brokers
def test_a_coroutine_is_a_body(program: MakeProgram, direct: bool, pool: str) -> None:
    """A coroutine is the body of a job, with both pools, and `AIOResult` waits for each of two equal calls."""
    shop = program(APP, direct=direct)
    with shop.worker("-P", pool):
        assert shop.run(TWICE) == [4, 4]
        assert shop.marks == [[2]]
