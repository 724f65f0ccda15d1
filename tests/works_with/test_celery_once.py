"""celery-once: its tasks beside jobs in one app."""

import pytest

from tests.works_with.program import MakeProgram, on_both_brokers
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery-once==3.0.1",),
    ran="tasks of `QueueOnce` and jobs in one app, worker and chain; one class with both bases; Redis, `onejob://`",
    holds="Each kind is unique in its own way, on each broker.",
    do="To replace it: [Migrating from celery-once](../guides/migrating-from-celery-once.md).",
    fails="One class with both bases is refused when Celery finalizes the app.",
)
APP = """
from celery_once import AlreadyQueued, QueueOnce
from kit import *

app = make_app(result_backend=os.environ["SHOP_REDIS"])
app.conf.ONCE = {
    "backend": "celery_once.backends.Redis", "settings": {"url": os.environ["SHOP_REDIS"], "default_timeout": 600},
}

@app.task(base=QueueOnce)
def locked(number):
    mark("locked", number)
    while not Path("go").exists():
        time.sleep(0.05)

@app.task(base=onejob.Task)
def job(number):
    mark("job", number)
    while not Path("go").exists():
        time.sleep(0.05)

class Both(onejob.Task, QueueOnce):
    abstract = True

def is_refused(number):
    try:
        locked.delay(number)
    except AlreadyQueued:
        return True
    return False
"""

REFUSED = """
@app.task(base=Both)
def both(number): pass

try:
    app.finalize()
except onejob.errors.ConfigurationError as error:
    answer = str(error)
"""


@on_both_brokers
def test_both_kinds_of_tasks_run_in_one_app(program: MakeProgram, direct: bool) -> None:
    """Tasks of QueueOnce and jobs are unique, each in its own way, in one worker."""
    shop = program(APP, direct=direct)
    with shop.worker("-c", "3"):
        assert shop.run("answer = [is_refused(1), is_refused(1)]") == [False, True]
        assert shop.run("answer = job.delay(1).id == job.delay(1).id")
        shop.await_marks(2)
        (shop.folder / "go").touch()
        shop.await_states("completed")
        shop.run("celery.chain(locked.si(2), job.si(2), locked.si(3)).delay().get(timeout=20)")
        assert sorted(shop.marks) == [["job", 1], ["job", 2], ["locked", 1], ["locked", 2], ["locked", 3]]


def test_one_class_with_both_bases_is_refused(program: MakeProgram) -> None:
    """A task of both classes is refused, by the name of an attribute that QueueOnce has."""
    assert "no option once, which is another library's" in program(APP).run(REFUSED)
