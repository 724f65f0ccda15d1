"""celery-heimdall: its tasks beside jobs, its helper in the body of a job, and its options on one."""

import pytest

from tests.works_with.program import MakeProgram, on_both_brokers
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery-heimdall==1.0.1",),
    ran="`HeimdallTask` with `unique` and a rate beside jobs; `only_after` in a job of "
    "`class Both(HeimdallTask, onejob.Task)`; its options on a job; Redis, `onejob://`",
    holds="Its own tasks are unique beside jobs, and `only_after` works in jobs, on each broker.",
    do="Let `setup_redis` return a client where neither broker nor result backend is a Redis. Put `onejob.Task` last.",
    fails="`heimdall={...}` on a job is refused when Celery finalizes the app.",
)
APP = """
import redis
from celery_heimdall import HeimdallTask
from kit import *

app = make_app()

class Heimdall(HeimdallTask):
    abstract = True
    def setup_redis(self):
        return redis.Redis.from_url(os.environ["SHOP_REDIS"])

class Both(Heimdall, onejob.Task):
    abstract = True

@app.task(base=Heimdall, heimdall={"unique": True, "times": 10, "per": 60})
def limited(number):
    mark("limited", number)
    while not Path("go").exists():
        time.sleep(0.05)

@app.task(base=Both, bind=True)
def job(self, number):
    if self.only_after("hourly", 3600):
        mark("job", number)
"""
REFUSED = """
@app.task(base=Both, heimdall={"unique": True})
def both(number): pass

try:
    app.finalize()
except onejob.errors.ConfigurationError as error:
    answer = str(error)
"""


@on_both_brokers
def test_both_kinds_of_tasks_run_in_one_app(program: MakeProgram, direct: bool) -> None:
    """A task of Heimdall is unique beside jobs, and `only_after` works in the body of a job."""
    shop = program(APP, direct=direct)
    with shop.worker("-c", "3"):
        assert shop.run("answer = limited.delay(1).id == limited.delay(1).id")
        shop.await_marks(1)
        (shop.folder / "go").touch()
        shop.run("job.delay(1), job.delay(2)")
        shop.await_states("completed", "completed")
        assert [kind for kind, _ in shop.marks] == ["limited", "job"]


def test_its_options_on_a_job_are_refused(program: MakeProgram) -> None:
    """A job with the options of Heimdall is refused."""
    assert "no option heimdall, which is another library's" in program(APP).run(REFUSED)
