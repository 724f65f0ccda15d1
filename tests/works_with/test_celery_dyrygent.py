"""celery-dyrygent: a workflow of jobs, driven by a plain task and by a job."""

import pytest

from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery-dyrygent==0.8.0",),
    ran="a workflow made from a chord with two equal members, its processor a plain task and a `onejob.Task`; Redis",
    holds="Equal members are one run, and each ends for the workflow. As a job the processor is one job, with a run "
    "for each tick.",
    do="Set a result backend, which it reads. `register_workflow_processor(app, base=onejob.Task)` makes the "
    "processor a job.",
    fails="",
)
APP = """
from celery_dyrygent.tasks import register_workflow_processor
from celery_dyrygent.workflows import Workflow
from kit import *

app = make_app(result_backend=os.environ["SHOP_REDIS"])
register_workflow_processor(app, **({"base": onejob.Task} if os.environ.get("AS_JOB") else {}))

@app.task(base=onejob.Task, unique_for=600)  # the duplicate may arrive after the run
def add(a, b):
    mark(a, b)
    return a + b
"""
RUN = """
workflow = Workflow()
workflow.set_retry_policy("random", 1, 1)
workflow.add_celery_canvas(celery.chord([add.si(1, 1), add.si(1, 1), add.si(2, 2)], add.si(5, 5)))
workflow.apply_async().get(timeout=60)
answer = sorted(app.AsyncResult(node.id).get(timeout=10) for node in workflow.nodes.values())
"""


@pytest.mark.parametrize("as_job", ["", "1"])
def test_a_workflow_runs_equal_members_once(program: MakeProgram, as_job: str) -> None:
    """A workflow ends, the second of two equal members follows the first, and a processor that is a job runs once."""
    shop = program(APP, AS_JOB=as_job)
    with shop.worker():
        assert shop.run(RUN) == [2, 2, 4, 10]
    assert sorted(shop.marks) == [[1, 1], [2, 2], [5, 5]]
    processors = shop.jobs("workflow-processor")
    assert [job.state for job in processors] == (["completed"] if as_job else [])
    assert all(job.attempt > 1 for job in processors)
