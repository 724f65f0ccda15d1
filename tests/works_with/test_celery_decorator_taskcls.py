"""Packages that make tasks of classes: celery-decorator-taskcls and celery-task-class."""

import pytest

from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery-decorator-taskcls==0.1.4", "celery-task-class==0.1.0"),
    ran="`@app.taskcls(base=onejob.Task)`, and a `Task` of celery-task-class with `onejob.Task` as a second base; "
    "`onejob://`",
    holds="Both make a job of each call, and duplicates run once.",
    do="Write `class Job(onejob.Task, celery_task_class.Task)`.",
    fails="",
)
APP = """
from celery_decorator_taskcls import patch_celery
from kit import *
import celery_task_class

patch_celery()
app = make_app()
app.set_default()

@app.taskcls(base=onejob.Task, name="decorated")
class Decorated:
    @classmethod
    def task(cls, number):
        mark("decorated", number)
        return number

class Job(onejob.Task, celery_task_class.Task):
    name = "classy"

    def run(self, number):
        mark("classy", number)
        return number

classy = Job.as_task()
"""


def test_classes_are_jobs(program: MakeProgram) -> None:
    """A task that is made of a class is a job: two equal calls are one run with one result."""
    shop = program(APP, direct=True)
    shop.run("for task in (Decorated.task, classy): task.delay(7), task.delay(7)")
    with shop.worker():
        shop.await_states("completed", "completed")
        assert sorted(shop.marks) == [["classy", 7], ["decorated", 7]]
