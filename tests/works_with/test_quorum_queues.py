"""Quorum queues of RabbitMQ, with Celery's native delayed delivery."""

import pytest

from tests.services import rabbitmq_url
from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery==5.7.0",),
    feature="quorum queues of RabbitMQ",
    ran='`task_default_queue_type = "quorum"`: duplicates, a countdown, a retry, a worker that is killed; the ledger '
    "in SQLite",
    holds="Jobs run once. A countdown waits in the ledger.",
    do="",
    fails="",
)
APP = """
from kit import *

app = make_app(task_default_queue=os.environ["QUEUE"], task_default_queue_type="quorum", onejob_lease=2.0)

@app.task(base=onejob.Task, bind=True, unique_for=600)  # the duplicate may arrive after the run
def work(self, number, held=False):
    mark(number, onejob.current_job().attempt)
    if number == 3 and self.request.retries == 0:
        raise self.retry(countdown=0)
    while held and not Path("go").exists():
        time.sleep(0.05)
    return number
"""


def test_jobs_on_a_quorum_queue(program: MakeProgram, queue: str) -> None:
    """Duplicates, a countdown and a retry run as often as they should, and the job of a killed worker runs again."""
    shop = program(APP, QUEUE=queue)
    shop.variables["SHOP_BROKER"] = rabbitmq_url()
    with shop.worker():
        shop.run("work.delay(1), work.delay(1), work.apply_async((2,), countdown=1), work.delay(3)")
        shop.await_states("completed", "completed", "completed")
        assert sorted(shop.marks) == [[1, 1], [2, 1], [3, 1], [3, 2]]
    with shop.worker() as log:
        shop.run("work.delay(4, True)")
        shop.await_marks(5)
        log.daemon.process.kill()
    (shop.folder / "go").touch()
    with shop.worker():
        shop.await_states(*["completed"] * 4)
        assert shop.marks[-1] == [4, 2]
