"""Flask-CeleryExt: jobs in the application context of Flask."""

import pytest

from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("flask-celeryext==0.5.1",),
    ran="`FlaskCeleryExt(web)`, whose app makes `AppContextTask` the class of plain tasks; jobs with `onejob.Task`, "
    "with both bases in each order, and with a `__call__` of their own; Redis, `onejob://`",
    holds="The configuration of Flask reaches onejob. Plain tasks keep their context.",
    do="Write settings of onejob in small letters (`web.config.update(onejob_store=...)`), and `class "
    "Job(onejob.Task, AppContextTask)`.",
    fails="`base=onejob.Task` alone has no context.",
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
def test_the_context_of_the_extension(program: MakeProgram, direct: bool) -> None:
    """A job whose class has the extension's as a base, in any order, or opens the context itself, has the context."""
    shop = program(APP, direct=direct)
    with shop.worker():
        shop.run("plain.delay(1)")
        assert shop.run("answer = [t.delay(1).get(timeout=20) for t in (behind, before, job)]") == ["hi"] * 3
        assert shop.await_marks(4) == [[True]] * 4


def test_without_that_class_a_job_has_no_context(program: MakeProgram) -> None:
    """`base=onejob.Task` alone takes the class of the app's plain tasks away."""
    shop = program(APP)
    with shop.worker():
        shop.run("bare.delay(1)")
        shop.await_states("failed")
        assert shop.marks == [[False]]
