"""celery-redis-prometheus: metrics of runs from events."""

import httpx2
import pytest

from tests.services import eventually, free_port
from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery-redis-prometheus==2.0.0",),
    ran="`celery prometheus` beside a worker, with jobs that complete, fail, wait and are duplicates; Redis, "
    "`onejob://`",
    holds="Runs and their ends are counted once; a duplicate is none.",
    do="`worker -E`. What waits in the ledger, duplicates and dead letters: "
    "[metrics](../operations/observability.md#metrics).",
    fails="",
)
APP = """
from kit import *

app = make_app(task_send_sent_event=True)

@app.task(base=onejob.Task)
def work(number):
    if number < 0:
        raise ValueError(number)
"""


@pytest.mark.parametrize("direct", [False, True])
def test_runs_are_counted_once(program: MakeProgram, direct: bool) -> None:
    """Three submissions of two jobs are two runs in its metrics: a success and a failure."""
    shop, port = program(APP, direct=direct), free_port()
    metrics = ("-m", "celery", "-A", "shop", "prometheus", "--host", "127.0.0.1", "--port", str(port))

    def counted(state: str) -> float:
        lines = httpx2.get(f"http://127.0.0.1:{port}/metrics", timeout=30).text.splitlines()
        found = [line for line in lines if line.startswith("celery_tasks_total") and f'state="{state}"' in line]
        return sum(float(line.split()[-1]) for line in found)

    with shop.start(*metrics, ready="Connected to" if direct else "Listening on"):
        shop.run("work.delay(1), work.delay(1), work.delay(-1)")
        with shop.worker("-E"):
            shop.await_states("completed", "failed")
            eventually(lambda: counted("succeeded") + counted("failed") >= 2)
            assert [counted(state) for state in ("started", "succeeded", "failed")] == [2, 1, 1]
