"""celery-types: what type checkers know of jobs beside its stubs."""

import pytest

from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery-types==0.26.0",),
    ran="`mypy --strict` on an app with jobs of both forms, a plain task, a chain and results",
    holds="With `@onejob.task(app)` arguments and results are checked beside its stubs.",
    do="Define jobs by `@onejob.task(app)` where types matter.",
    fails="A job of `@app.task(base=onejob.Task)` is `Task[Any, Any]`: its arguments are not checked.",
)
APP = """
import celery
import onejob

app = celery.Celery("shop")

@onejob.task(app)
def ours(number: int) -> int:
    return 2 * number

@app.task(base=onejob.Task, unique_on=["number"])
def job(number: int) -> int:
    return 2 * number

@app.task
def plain(number: int) -> int:
    return 2 * number

result: int = ours.delay(1).get()
results: list[int] = [each.get() for each in ours.submit_many([(1,), (2,)])]
celery.chain(ours.si(1), job.si(2), plain.si(3)).delay()
ours.delay("one")  # type: ignore[arg-type]
job.delay("one")
reveal_type(ours)
reveal_type(job)
"""


def test_jobs_are_typed_beside_the_stubs(program: MakeProgram) -> None:
    """Beside the stubs `@onejob.task` knows arguments and results; the form of Celery knows the class of a job."""
    found = program(APP).command("-m", "mypy", "--strict", "--cache-dir", "mypy", "shop.py")
    assert 'Revealed type is "onejob.celery.task.Task[[number: int], int]"' in found
    assert 'Revealed type is "onejob.celery.task.Task[Any, Any]"' in found
    assert "Success: no issues found" in found
