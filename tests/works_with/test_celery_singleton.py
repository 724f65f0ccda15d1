"""celery-singleton: its tasks beside jobs in one app; jobs as tasks of both classes."""

import pytest

from tests.works_with.program import MakeProgram, on_both_brokers
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery-singleton==0.3.1",),
    ran="tasks of `Singleton` and jobs in one app, worker and chain; one class with both bases; Redis, `onejob://`",
    holds="Each kind is unique in its own way, on each broker.",
    do="Set `singleton_backend_url` where neither broker nor result backend is a Redis. To replace it: "
    "[Migrating from celery-singleton](../guides/migrating-from-celery-singleton.md).",
    fails="One class with both bases is refused when Celery finalizes the app.",
)
APP = """
from celery_singleton import Singleton
from kit import *

app = make_app(singleton_backend_url=os.environ["SHOP_REDIS"], result_backend=os.environ["SHOP_REDIS"])

@app.task(base=Singleton)
def locked(number):
    mark("locked", number)
    while not Path("go").exists():
        time.sleep(0.05)

@app.task(base=onejob.Task)
def job(number):
    mark("job", number)
    while not Path("go").exists():
        time.sleep(0.05)

class Both(onejob.Task, Singleton):
    abstract = True
"""
REFUSED = """
@app.task(base=Both, unique_on=['number'])
def both(number): pass

try:
    app.finalize()
except onejob.errors.ConfigurationError as error:
    answer = str(error)
"""


@on_both_brokers
def test_both_kinds_of_tasks_run_in_one_app(program: MakeProgram, direct: bool) -> None:
    """Tasks of Singleton and jobs are unique, each in its own way, in one worker."""
    shop = program(APP, direct=direct)
    with shop.worker("-c", "3"):
        assert shop.run("answer = [task.delay(1).id == task.delay(1).id for task in (locked, job)]") == [True] * 2
        shop.await_marks(2)
        (shop.folder / "go").touch()
        shop.await_states("completed")
        shop.run("celery.chain(locked.si(2), job.si(2), locked.si(3)).delay().get(timeout=20)")
        assert sorted(shop.marks) == [["job", 1], ["job", 2], ["locked", 1], ["locked", 2], ["locked", 3]]


def test_one_class_with_both_bases_is_refused(program: MakeProgram) -> None:
    """A task of both classes is refused, by the name of an attribute that Singleton has."""
    assert "no option raise_on_duplicate, which is another library's" in program(APP).run(REFUSED)
