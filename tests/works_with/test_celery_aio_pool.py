"""celery-aio-pool: coroutines and functions as bodies of jobs in its pool."""

import pytest

from tests.works_with.program import MakeProgram, on_both_brokers
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery-aio-pool==0.1.0rc8",),
    ran="`celery worker -P custom` with its pool: jobs, a plain task that is a coroutine; Redis, `onejob://`",
    holds="Jobs run in its pool, one at a time; they and plain tasks may be coroutines.",
    do="For many jobs at once use `-P onejob`.",
    fails="",
)
APP = """
import asyncio
from kit import *

app = make_app(result_backend=os.environ["SHOP_REDIS"])

@app.task(base=onejob.Task)
def double(number):
    return asyncio.run(twice(number))

async def twice(number):
    await asyncio.sleep(0.1)
    return 2 * number

@app.task
async def plain(number):
    return await twice(number)

@app.task(base=onejob.Task)
async def job(number):
    return await twice(number)
"""
POOL = "celery_aio_pool.pool:AsyncIOPool"


@on_both_brokers
def test_its_pool_runs_jobs_and_plain_coroutines(program: MakeProgram, direct: bool) -> None:
    """Jobs, functions and coroutines, run in its pool, one after the other, beside a plain coroutine."""
    shop = program(APP, direct=direct, CELERY_CUSTOM_WORKER_POOL=POOL)
    with shop.worker("-P", "custom"):
        assert shop.run("answer = plain.delay(1).get(timeout=20)") == 2
        assert shop.run("answer = [double.delay(number).get(timeout=20) for number in (1, 2, 3)]") == [2, 4, 6]
        assert shop.run("answer = [job.delay(number).get(timeout=20) for number in (1, 2)]") == [2, 4]
