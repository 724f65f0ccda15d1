"""celery-amqp-backend: results in queues of RabbitMQ, beside the ledger."""

import pytest

from tests.services import rabbitmq_url
from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery-amqp-backend==1.2.0",),
    ran="as the result backend, with a job, a duplicate, a plain task and a job that fails; RabbitMQ",
    holds="`get` of a job reads the ledger, as often as it is called and by each submitter; plain tasks read their "
    "queue.",
    do="Where nobody reads them there, `ignore_result=True` on jobs keeps their results out of queues.",
    fails="",
)
APP = """
from kit import *

app = make_app(
    result_backend="celery_amqp_backend.AMQPBackend://", task_default_queue=os.environ["QUEUE"], result_expires=60
)

@app.task(base=onejob.Task)
def work(number):
    if number < 0:
        raise ValueError(number)
    return number

@app.task
def plain(number):
    return number
"""
SUBMIT = """
first, again, failing = work.delay(1), work.delay(1), work.delay(-1)
answer = [result.get(timeout=20) for result in (first, again, first, plain.delay(2))]
try:
    failing.get(timeout=20)
except ValueError as error:
    answer.append(repr(error))
except onejob.errors.JobFailedError as error:
    answer.append(str(error))
"""


def test_jobs_beside_results_in_queues(program: MakeProgram, queue: str) -> None:
    """Each submitter gets the result of a job, twice if it likes, while a plain task has the one in its queue."""
    shop = program(APP, QUEUE=queue)
    shop.variables["SHOP_BROKER"] = rabbitmq_url()
    with shop.worker():
        *results, error = shop.run(SUBMIT)
        assert results == [1, 1, 1, 2]
        assert "ValueError" in error
