"""Celery's `pydantic=True`: models as arguments and results of jobs."""

import pytest

from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery==5.7.0", "pydantic==2.14.3"),
    feature="`pydantic=True`",
    ran='a task with a model as argument and as result, `unique_on=["order.id"]`, an argument that does not fit; '
    "`onejob://`",
    holds="The body gets the model; `unique_on` reaches into it, and a model and its dict are one job. What does not "
    "fit fails the job in its run, with pydantic's message.",
    do="Name what counts in `unique_on`: without it a dict without a default and the model with it are two jobs, and "
    'so are `1` and `"1"`. `typed=True` compares models.',
    fails="The result is a dict, as with Celery.",
)
APP = """
from kit import *
from pydantic import BaseModel

app = make_app()

class Order(BaseModel):
    id: int
    note: str = ""

class Invoice(BaseModel):
    text: str

@app.task(base=onejob.Task, pydantic=True)
def whole(order: Order) -> Invoice:
    return Invoice(text=f"{type(order).__name__} {order.id}")

@app.task(base=onejob.Task, pydantic=True, unique_on=["order.id"])
def by_id(order: Order) -> Invoice:
    return Invoice(text=f"{type(order).__name__} {order.id}")
"""
SUBMIT = """
calls = [Order(id=1), {"id": 1}, {"id": "1"}, {"id": 1, "note": ""}]
answer = [len({task.delay(call).id for call in calls}) for task in (whole, by_id)]
"""
FAIL = """
try:
    by_id.delay({"id": "x"}).get(timeout=20)
except onejob.errors.JobFailedError as error:
    answer = str(error)
"""


def test_models_are_arguments(program: MakeProgram) -> None:
    """A model and a dict of equal values are one job, `unique_on` reads its fields, and the body gets the model."""
    shop = program(APP, direct=True)
    assert shop.run(SUBMIT) == [3, 2]
    with shop.worker():
        assert shop.run("answer = by_id.delay(Order(id=7)).get(timeout=20)") == {"text": "Order 7"}
        assert "ValidationError" in shop.run(FAIL)
