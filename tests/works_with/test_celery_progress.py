"""celery-progress: the state that its page polls, of a job."""

import pytest

from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery-progress==0.5",),
    ran="`ProgressRecorder(self).set_progress(...)` in a job, and its view with the job's id; the result backends "
    "Redis and `onejob://`, and none",
    holds="The recorder's state is the progress of the job, and the view of each submitter shows it, also to who "
    "attached.",
    do='`result_backend = "onejob://"`: the view reads it.',
    fails="Without a result backend the view raises `AttributeError`. With another one than `onejob://` a job that is "
    "canceled while it waits stays `PENDING` for the view.",
)
APP = """
import django
from django.conf import settings

settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="x")
django.setup()
from celery_progress.backend import ProgressRecorder
from celery_progress.views import get_progress
from django.test import RequestFactory
from kit import *

app = make_app(**({"result_backend": os.environ["BACKEND"]} if os.environ.get("BACKEND") else {}))
app.set_default()

@app.task(base=onejob.Task, bind=True)
def work(self, number, held=True):
    ProgressRecorder(self).set_progress(3, 12, "cards")
    mark(number)
    while held and not Path("go").exists():
        time.sleep(0.05)
    return number

def view(job):
    return json.loads(get_progress(RequestFactory().get("/"), job.id).content)
"""
POLL = """
first, again = work.delay(1), work.delay(1)
while view(first)["progress"]["total"] != 12:
    time.sleep(0.05)
shown = [view(job)["progress"] for job in (first, again)]
Path("go").touch()
first.get(timeout=20)
while not view(first)["complete"]:
    time.sleep(0.05)
waiting = work.apply_async((2,), countdown=3600)
waiting.revoke()
answer = [shown, view(again)["result"], waiting.state, view(waiting)["state"]]
"""


@pytest.mark.parametrize(("backend", "canceled"), [("redis", "PENDING"), ("onejob://", "REVOKED")])
def test_the_view_shows_a_job(program: MakeProgram, backend: str, canceled: str) -> None:
    """The view shows progress and result to both submitters, and a cancellation only if it reads the ledger."""
    shop = program(APP)
    shop.variables["BACKEND"] = shop.variables["SHOP_REDIS"] if backend == "redis" else backend
    with shop.worker():
        shown, result, *states = shop.run(POLL)
    progress = {"pending": False, "current": 3, "total": 12, "percent": 25.0, "description": "cards"}
    assert shown == [progress, progress]
    assert (result, states) == (1, ["REVOKED", canceled])


def test_the_view_needs_a_result_backend(program: MakeProgram) -> None:
    """Without a result backend the ledger has the progress, and the view raises."""
    shop = program(APP, direct=True)
    with shop.worker():
        shop.run("work.delay(1, False).get(timeout=20)")
    raised = "try: view(shop_job)\nexcept AttributeError as error: answer = str(error)"
    assert "DisabledBackend" in shop.run(f"shop_job = work.AsyncResult('{shop.jobs()[0].id}')\n{raised}")
