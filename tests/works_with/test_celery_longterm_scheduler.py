"""celery-longterm-scheduler: far-off tasks that it keeps in Redis."""

import pytest

from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery-longterm-scheduler==1.3.1",),
    needs=("pendulum==3.3.0",),
    ran="its `Task` for plain tasks beside jobs, and `class Job(onejob.Task, celery_longterm_scheduler.Task)` with an "
    "`eta`; Redis",
    holds="Plain tasks wait in its storage, jobs in the ledger: with `onejob.Task` first an `eta` of a day makes a "
    "job.",
    do="Nothing of it is needed for jobs: [an ETA is kept in the ledger](celery.md#the-features), however far off.",
    fails="With its class first the job is kept by it, unknown to the ledger until it is due: duplicates are not "
    "noticed.",
)
APP = """
import datetime
import celery_longterm_scheduler
from kit import *

app = make_app(longterm_scheduler_backend=os.environ["SHOP_REDIS"])

class Job(onejob.Task, celery_longterm_scheduler.Task):
    abstract = True

class Kept(celery_longterm_scheduler.Task, onejob.Task):
    abstract = True

def body(number):
    mark(number)

job = app.task(base=Job, name="job")(body)
kept = app.task(base=Kept, name="kept")(body)
plain = app.task(base=celery_longterm_scheduler.Task, name="plain")(body)
DAY = {"eta": datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)}
"""
SUBMIT = """
ids = {name: [app.tasks[name].apply_async((1,), **DAY).id for _ in range(2)] for name in ("job", "kept", "plain")}
answer = {name: len(set(each)) for name, each in ids.items()}
"""


def test_an_eta_of_a_job_is_kept_by_the_ledger(program: MakeProgram) -> None:
    """With `onejob.Task` first an `eta` makes a job, and a duplicate attaches; else the scheduler keeps each call."""
    shop = program(APP)
    assert shop.run(SUBMIT) == {"job": 1, "kept": 2, "plain": 2}
    assert [(job.task, job.state) for job in shop.jobs()] == [("job", "queued")]
