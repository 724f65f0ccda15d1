"""celery-longterm-scheduler: far-off tasks that it keeps in Redis."""

import pytest

from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery-longterm-scheduler==1.3.1",),
    needs=("pendulum==3.3.0",),
    ran="its `Task` for plain tasks beside jobs with an `eta`, and as a second base of jobs, in each order; Redis",
    holds="Plain tasks wait in its storage, jobs in the ledger.",
    do="Nothing of it is needed for jobs: [an ETA is kept in the ledger](celery.md#the-features), however far off.",
    fails="As a base after `onejob.Task` it is refused. Before it, it keeps the job, unknown to the ledger until it is "
    "due: duplicates are not noticed.",
)
APP = """
import datetime
import celery_longterm_scheduler
from kit import *

app = make_app(longterm_scheduler_backend=os.environ["SHOP_REDIS"])

class Kept(celery_longterm_scheduler.Task, onejob.Task):
    abstract = True

def body(number):
    mark(number)

job = app.task(base=onejob.Task, name="job")(body)
kept = app.task(base=Kept, name="kept")(body)
plain = app.task(base=celery_longterm_scheduler.Task, name="plain")(body)
DAY = {"eta": datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)}
"""
SUBMIT = """
ids = {name: [app.tasks[name].apply_async((1,), **DAY).id for _ in range(2)] for name in ("job", "kept", "plain")}
answer = {name: len(set(each)) for name, each in ids.items()}
"""
REFUSED = """
class Behind(onejob.Task, celery_longterm_scheduler.Task):
    abstract = True

try:
    app.task(base=Behind, name="behind")(body).delay(1)
except onejob.errors.ConfigurationError as error:
    answer = str(error)
"""


def test_an_eta_of_a_job_is_kept_by_the_ledger(program: MakeProgram) -> None:
    """An `eta` of a job waits in the ledger, where a duplicate attaches; the scheduler keeps each call of its tasks."""
    shop = program(APP)
    assert shop.run(SUBMIT) == {"job": 1, "kept": 2, "plain": 2}
    assert [(job.task, job.state) for job in shop.jobs()] == [("job", "queued")]


def test_its_class_behind_ours_is_refused(program: MakeProgram) -> None:
    """A class whose `apply_async` would never be called is refused."""
    assert "apply_async is never called" in program(APP).run(REFUSED)
