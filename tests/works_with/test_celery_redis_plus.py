"""celery-redis-plus: its transport in front of jobs, also where the ledger is in the same Redis."""

import pytest

from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery-redis-plus==0.4.1",),
    needs=("redis==7.4.0",),
    pythons=("3.13", "3.14"),
    ran="its transport for Redis in front of jobs, with the ledger in SQLite and in the same Redis: priorities, "
    "`countdown`, a retry, a chord; Python 3.13",
    holds="All of it; the larger priority first, as its documentation says.",
    do="Install a redis-py below 8, which it requires: onejob takes 5.2 and later.",
    fails="",
)
APP = """
import celery_redis_plus
from kit import *

app = make_app(broker_transport="celery_redis_plus.transport:Transport", result_backend=os.environ["SHOP_REDIS"])
if os.environ.get("SAME"):
    app.conf.onejob_store = app.conf.broker_url

@app.task(base=onejob.Task, bind=True)
def job(self, number):
    mark(number)
    if number == 3 and not self.request.retries:
        raise self.retry(countdown=0.5)
    return number
"""


SUBMIT = """
results = [job.delay(1), job.apply_async((2,), countdown=1), job.delay(3)]
answer = [each.get(timeout=20) for each in results]
answer.append(celery.chord([job.s(5), job.s(6), job.s(6)])(job.si(7)).get(timeout=30))
"""


@pytest.mark.parametrize("same", ["", "1"])
def test_jobs_run_by_their_priority(program: MakeProgram, same: str) -> None:
    """Its transport delivers jobs, the larger priority first, now and later, in a chord, and also beside the ledger."""
    shop = program(APP, SAME=same)
    if same:
        shop.variables["SHOP_LEDGER"] = shop.variables["SHOP_BROKER"]
    shop.run("for number in (0, 9): job.apply_async((number,), priority=number)")
    assert [job.priority_rank for job in shop.jobs()] == [0, 9]
    with shop.worker("-c", "1"):
        assert shop.await_marks(2) == [[9], [0]]
        assert shop.run(SUBMIT) == [1, 2, 3, 7]
        assert {(job.state, job.crashes) for job in shop.jobs()} == {("completed", 0)}
