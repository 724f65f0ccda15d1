"""Flask-CeleryExt: jobs in the application context of Flask."""

import pytest

from tests.services import eventually
from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("flask-celeryext==0.5.1",),
    ran="`FlaskCeleryExt(web)`, whose app makes `AppContextTask` the class of plain tasks; jobs with `onejob.Task`, "
    "with both bases in each order, and with a `__call__` of their own; Redis, `onejob://`",
    holds="The configuration of Flask reaches onejob. Plain tasks keep their context.",
    do="Write settings of onejob in small letters (`web.config.update(onejob_store=...)`), and a class of your own: "
    "`class Job(onejob.Task)` with `def __call__(self, *args, **kwargs): with self.app.flask_app.app_context(): "
    "return super().__call__(*args, **kwargs)`.",
    fails="`base=onejob.Task` has no context, and `AppContextTask` behind it is not called. Before it, it calls the "
    "body past the ledger: the run is never ended.",
)
APP = """
from flask import Flask, current_app, has_app_context
from flask_celeryext import AppContextTask, FlaskCeleryExt
from kit import *

web = Flask("web")
broker = os.environ["SHOP_BROKER"]
web.config.update({"BROKER_URL": broker, "onejob_store": os.environ["SHOP_LEDGER"], "GREETING": "hi"})
app = FlaskCeleryExt(web).celery

class Behind(onejob.Task, AppContextTask):
    abstract = True

class Before(AppContextTask, onejob.Task):
    abstract = True

class Job(onejob.Task):
    abstract = True

    def __call__(self, *args, **kwargs):
        with self.app.flask_app.app_context():
            return super().__call__(*args, **kwargs)

def body(number):
    mark(has_app_context())
    return current_app.config["GREETING"]

bare = app.task(base=onejob.Task, name="bare")(body)
behind = app.task(base=Behind, name="behind")(body)
before = app.task(base=Before, name="before")(body)
job = app.task(base=Job, name="job")(body)
plain = app.task(name="plain")(body)
"""


@pytest.mark.parametrize("direct", [False, True])
def test_a_class_with_a_call_of_its_own_has_the_context(program: MakeProgram, direct: bool) -> None:
    """A job whose class opens the context in `__call__` has it, and so has a plain task of the extension."""
    shop = program(APP, direct=direct)
    with shop.worker():
        assert shop.run("plain.delay(1); answer = job.delay(1).get(timeout=20)") == "hi"
        assert shop.await_marks(2) == [[True], [True]]


def test_the_classes_of_the_extension_do_not_fit(program: MakeProgram) -> None:
    """Without such a class a job has no context; with the extension's class first nobody ends its run."""
    shop = program(APP)
    with shop.worker():
        shop.run("bare.delay(1), behind.delay(1)")
        shop.await_states("failed", "failed")
        shop.run("before.delay(1)")
        assert sorted(shop.await_marks(3)) == [[False], [False], [True]]
        eventually(lambda: shop.jobs("before")[0].state == "running")
