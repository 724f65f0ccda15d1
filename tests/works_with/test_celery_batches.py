"""celery-batches: a plain batch task in front of jobs; both bases in one class."""

import pytest

from tests.works_with.program import MakeProgram, on_both_brokers
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery-batches==0.11",),
    ran="a plain `Batches` task that submits one job for each flush; `class Batch(Batches, onejob.Task)`; Redis, `onejob://`",
    holds="Plain batch tasks run in the workers that run jobs, on each broker.",
    do="Let the body of the batch task submit a job with what it has collected.",
    fails="One class with both bases is refused when Celery finalizes the app.",
)
APP = """
from celery_batches import Batches
from kit import *

app = make_app()

@app.task(base=onejob.Task)
def store(items):
    mark("stored", items)

@app.task(base=Batches, flush_every=3, flush_interval=60)
def collect(requests):
    store.delay(sorted(request.args[0] for request in requests))
"""
REFUSED = """
class Batch(Batches, onejob.Task):
    abstract = True

@app.task(base=Batch, flush_every=2, flush_interval=60)
def batch(requests): pass

try:
    app.finalize()
except onejob.errors.ConfigurationError as error:
    answer = str(error)
"""


@on_both_brokers
def test_a_plain_batch_submits_a_job(program: MakeProgram, direct: bool) -> None:
    """The messages of a plain batch task are collected, and its body submits one job that completes."""
    shop = program(APP, direct=direct)
    with shop.worker():
        shop.run("for item in (3, 1, 2): collect.delay(item)")
        assert shop.await_marks(1) == [["stored", [1, 2, 3]]]
        shop.await_states("completed")


def test_one_class_with_both_bases_is_refused(program: MakeProgram) -> None:
    """A class with both bases is refused: its strategy would hand over what nobody has claimed."""
    assert "has the Strategy of Batches" in program(APP).run(REFUSED)
