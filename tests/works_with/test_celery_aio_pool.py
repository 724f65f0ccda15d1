"""celery-aio-pool: coroutines and functions as bodies of jobs in its pool."""

import pytest

from tests.works_with.program import MakeProgram, on_both_brokers
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery-aio-pool==0.1.0rc8",),
    ran="`celery worker -P custom` with its pool: jobs, a plain task that is a coroutine; Redis, `onejob://`",
    holds="Jobs are functions and run in its pool, one at a time.",
    do="Call `asyncio.run(...)` in the body of a job.",
    fails="`async def` with `base=onejob.Task` is refused. A plain task that is a coroutine fails with an "
    "`EncodeError` where onejob is installed.",
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
    await asyncio.sleep(0.1)
"""
POOL = "celery_aio_pool.pool:AsyncIOPool"


COROUTINE = """
@app.task(base=onejob.Task)
async def job(number): pass

try:
    app.finalize()
except onejob.ConfigurationError as error:
    answer = str(error)
"""


@on_both_brokers
def test_a_function_is_a_job_in_its_pool(program: MakeProgram, direct: bool) -> None:
    """A job runs in its pool and may run an event loop; a plain coroutine fails where onejob is installed."""
    shop = program(APP, direct=direct, CELERY_CUSTOM_WORKER_POOL=POOL)
    with shop.worker("-P", "custom") as log:
        assert shop.run("answer = [double.delay(2).get(timeout=20), double.delay(3).get(timeout=20)]") == [4, 6]
        shop.run("plain.delay(1)")
        log.await_text("Object of type coroutine is not JSON serializable")
    assert [job.state for job in shop.jobs()] == ["completed"] * 2


def test_a_coroutine_is_refused_as_a_body(program: MakeProgram) -> None:
    """A job whose body is a coroutine function is refused."""
    assert "`async def`, and Celery's workers run functions" in program(APP).run(COROUTINE)
