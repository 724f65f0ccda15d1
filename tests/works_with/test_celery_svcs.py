"""celery-svcs: a container of services for each run."""

import pytest

from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery-svcs==25.10.0", "svcs==26.2.0"),
    ran="`svcs_from(self)` in a job that is retried, in a duplicate of it, and in a plain task; `onejob://`",
    holds="Each run has a container of its own.",
    do="Close it in the body: `with svcs_from(self) as container`.",
    fails="It closes no container by itself, neither of jobs nor of plain tasks.",
)
APP = """
import celery_svcs
import svcs
from kit import *

class Session:
    def close(self):
        mark("closed")

def open_session():
    session = Session()
    mark("opened")
    yield session
    session.close()

registry = svcs.Registry()
registry.register_factory(Session, open_session)
app = make_app()
celery_svcs.init(app, registry=registry)

@app.task(base=onejob.Task, bind=True)
def work(self, number):
    with celery_svcs.svcs_from(self) as container:
        container.get(Session)
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    return number

@app.task(base=onejob.Task, bind=True)
def leaky(self):
    celery_svcs.svcs_from(self).get(Session)

@app.task(bind=True)
def plain(self):
    celery_svcs.svcs_from(self).get(Session)
"""


def test_each_run_has_a_container(program: MakeProgram) -> None:
    """A run opens a service in a container of its own, before and after a retry; a duplicate opens none."""
    shop = program(APP, direct=True)
    shop.run("work.delay(1), work.delay(1)")
    with shop.worker():
        shop.await_states("completed")
        assert shop.marks == [["opened"], ["closed"]] * 2


def test_no_container_is_closed_by_itself(program: MakeProgram) -> None:
    """What a body does not close stays open after a job as after a plain task."""
    shop = program(APP, direct=True)
    with shop.worker("--concurrency", "1") as log:
        shop.run("leaky.delay(), plain.delay()")
        log.await_text("Task shop.plain")
        log.await_text("succeeded")
        shop.await_states("completed")
        assert shop.await_marks(2) == [["opened"]] * 2
