"""Health checks of workers: celery-healthcheck, celery-live, celery-pulse, celery-uptime."""

import httpx2
import pytest

from tests.services import eventually, free_port
from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery-healthcheck==0.3.0", "celery-live==0.1.1", "celery-pulse==0.0.4"),
    ran="all three in one worker, beside a job that runs; Redis, `onejob://`",
    holds="The page answers and the files are touched while jobs run; their steps of the worker go with those of the "
    "ledger.",
    do="",
    fails="",
)
APP = """
import celery_healthcheck
import celery_pulse
from celery_live.worker_liveness import enable_worker_liveness_checks
from kit import *

app = make_app(
    healthcheck_port=int(os.environ["PORT"]), pulse_heartbeat_interval=1, pulse_healthcheck_file="pulse.txt"
)
celery_healthcheck.register(app)
celery_pulse.init_celery_pulse(app)
enable_worker_liveness_checks(app)

@app.task(base=onejob.Task)
def work(number):
    while not Path("go").exists():
        time.sleep(0.05)
    return number
"""


@pytest.mark.parametrize("direct", [False, True])
def test_checks_answer_while_jobs_run(program: MakeProgram, direct: bool) -> None:
    """The page answers 200 and both files are touched while a job runs, and the job completes."""
    shop = program(APP, direct=direct, PORT=str(free_port()), WORKER_LIVENESS_FILE="live.txt")
    page, files = f"http://127.0.0.1:{shop.variables['PORT']}/", [shop.folder / "pulse.txt", shop.folder / "live.txt"]
    with shop.worker("--concurrency", "1"):
        shop.run("work.delay(1)")
        shop.await_states("running")
        assert httpx2.get(page, timeout=30).json()["status"] == "ok"
        eventually(lambda: all(file.exists() for file in files))
        before = [file.stat().st_mtime for file in files]
        eventually(lambda: all(file.stat().st_mtime > time for file, time in zip(files, before, strict=True)))
        (shop.folder / "go").touch()
        shop.await_states("completed")
