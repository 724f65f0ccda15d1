"""Celery's `worker_pool_start_method = "spawn"`."""

import pytest

from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery==5.7.0",),
    feature='`worker_pool_start_method = "spawn"`',
    ran="duplicates, a child killed by SIGKILL, `revoke(terminate=True)`; Redis, `onejob://`",
    holds="As with fork: a killed child's job runs again at once, and a terminated one is canceled.",
    do="",
    fails="",
)
APP = """
from kit import *

app = make_app(worker_pool_start_method="spawn", worker_proc_alive_timeout=60)

@app.task(base=onejob.Task)
def work(number):
    mark(number, os.getpid(), onejob.current_job().attempt)
    while not Path(f"go-{number}").exists():
        time.sleep(0.05)
    return number
"""


@pytest.mark.parametrize("direct", [False, True])
def test_jobs_survive_spawned_children(program: MakeProgram, direct: bool) -> None:
    """A duplicate attaches, the job of a killed child runs again, and a terminated job is canceled."""
    shop = program(APP, direct=direct)
    with shop.worker():
        shop.run("work.delay(1), work.delay(1)")
        ((_, child, _),) = shop.await_marks(1)
        shop.run(f"os.kill({child}, 9)")
        assert [(number, attempt) for number, _, attempt in shop.await_marks(2)] == [(1, 1), (1, 2)]
        (shop.folder / "go-1").touch()
        shop.await_states("completed")
        shop.run("work.delay(2)")
        shop.await_marks(3)
        shop.run("work.AsyncResult(work.delay(2).id).revoke(terminate=True)")
        shop.await_states("completed", "canceled")
