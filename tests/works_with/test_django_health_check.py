"""django-health-check: its check of Celery's workers."""

import pytest

from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("django-health-check==4.8.0",),
    needs=("dnspython==2.9.2",),
    ran="`health_check.contrib.celery.Ping` with a worker that runs a job, and without one; Redis, `onejob://`",
    holds="The check passes while a worker is there, busy or not, and fails without one.",
    do="Readiness of the ledger is [another question](../operations/observability.md).",
    fails="",
)
APP = """
import django
from django.conf import settings

settings.configure(SECRET_KEY="x")
django.setup()
import datetime
from health_check.contrib.celery import Ping
from health_check.exceptions import ServiceUnavailable
from kit import *

app = make_app()

@app.task(base=onejob.Task)
def work():
    while not Path("go").exists():
        time.sleep(0.05)

def check():
    try:
        Ping(app=app, timeout=datetime.timedelta(seconds=5), limit=1).run()
    except ServiceUnavailable as error:
        return str(error)
    return "ok"
"""


@pytest.mark.parametrize("direct", [False, True])
def test_the_check_sees_a_busy_worker(program: MakeProgram, direct: bool) -> None:
    """The check passes beside a worker that runs a job, and names the missing workers without one."""
    shop = program(APP, direct=direct)
    with shop.worker("--concurrency", "1"):
        shop.run("work.delay()")
        shop.await_states("running")
        assert shop.run("answer = check()") == "ok"
        (shop.folder / "go").touch()
        shop.await_states("completed")
    assert "workers unavailable" in shop.run("answer = check()")
