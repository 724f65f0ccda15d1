"""django-celery-results: its rows of jobs."""

import pytest

from tests.works_with.program import MakeProgram, on_both_brokers
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("django-celery-results==2.6.0",),
    needs=("django==5.2.19",),
    ran='`result_backend = "django-db"` with `result_extended`: jobs that complete, fail, are revoked, a chord with '
    "equal members; Redis, `onejob://`",
    holds="Each job is one row, and each follower one of its own: a chord with equal members ends.",
    do="Nothing for results: `task.AsyncResult(id)` reads the ledger. A chord needs it, or another result backend.",
    fails="The row of a revoked job has no name of its task, as in Celery.",
)
APP = """
import django
from django.conf import settings
from kit import *

settings.configure(
    INSTALLED_APPS=["django_celery_results"], USE_TZ=True, DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "django.db",
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"}}},
)
django.setup()
from django.core.management import call_command
from django_celery_results.models import TaskResult

app = make_app(result_backend="django-db", result_extended=True)

@app.task(base=onejob.Task, name="job")
def job(number):
    if number < 0:
        raise onejob.PermanentError("negative")
    return 2 * number

@app.task(base=onejob.Task, name="total")
def total(numbers):
    return sum(numbers)

def rows():
    return sorted(f"{row.task_name} {row.status} {row.result}".partition(":")[0] for row in TaskResult.objects.all())
"""


@on_both_brokers
def test_each_job_is_a_row(program: MakeProgram, direct: bool) -> None:
    """A job that has ended is a row with its state and its result, a follower, too; another duplicate adds none."""
    shop = program(APP, direct=direct)
    shop.run('call_command("migrate", verbosity=0)')
    with shop.worker():
        shop.run("job.delay(1), job.delay(1), job.delay(-1), job.apply_async((5,), countdown=60).revoke()")
        shop.await_states("completed", "failed", "canceled")
        chord = "celery.chord([job.s(2), job.s(3), job.s(3)])(total.s())"
        assert shop.run(f"answer = {chord}.get(timeout=30)") == 16
    completed = ["job SUCCESS 2", "job SUCCESS 4", "job SUCCESS 6", "job SUCCESS 6", "total SUCCESS 16"]
    others = ['None REVOKED {"exc_type"', 'job FAILURE {"exc_type"']
    assert shop.run("answer = rows()") == [*others, *completed]
