"""django-celery-outbox: jobs of an app whose `send_task` writes rows for a relay."""

import pytest

from tests.services import eventually
from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("django-celery-outbox==0.4.3",),
    needs=("django==5.2.19", "structlog==26.1.0", "datadog==0.56.0", "sentry-sdk==2.75.0"),
    ran="`OutboxCelery` with jobs and plain tasks, a transaction that is rolled back, the relay; jobs among "
    "`CELERY_OUTBOX_EXCLUDE_TASKS`, and not",
    holds="Jobs run once. Those of excluded tasks need no relay, and rows of plain tasks go on as before.",
    do="Name the tasks of jobs in `CELERY_OUTBOX_EXCLUDE_TASKS`: the ledger is their outbox. "
    "`submit(session=...)` makes a job part of a transaction.",
    fails="A job that is not excluded has rows of its own at the relay. A transaction that is rolled back takes back "
    "the row, not the job.",
)
APP = """
import django
from django.conf import settings
from kit import *

settings.configure(
    INSTALLED_APPS=["django_celery_outbox"], USE_TZ=True, CELERY_OUTBOX_APP="shop.app",
    CELERY_OUTBOX_EXCLUDE_TASKS={"shop.job"} if os.environ.get("EXCLUDED") else set(),
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "shop", "HOST": "127.0.0.1",
        "PORT": os.environ["SHOP_PORT"], "USER": "postgres"}},
)
django.setup()
from django.core.management import call_command
from django.db import transaction
from django_celery_outbox import OutboxCelery
from django_celery_outbox.models import CeleryOutbox

app = make_app(OutboxCelery)

@app.task(base=onejob.Task)
def job(number):
    mark("job", number)

@app.task
def plain(number):
    mark("plain", number)

def rows():
    return sorted(CeleryOutbox.objects.values_list("task_name", flat=True))
"""
ROLLED_BACK = """
call_command("migrate", verbosity=0)
try:
    with transaction.atomic():
        job.delay(1), plain.delay(1)
        raise RuntimeError
except RuntimeError:
    answer = rows()
"""
RELAY = ("-c", "from shop import *; call_command('celery_outbox_relay', idle_time=0.1)")


def test_excluded_jobs_need_no_row(program: MakeProgram, database_port: str) -> None:
    """A job of a task that is excluded is published without the relay; rows of other tasks go on as before."""
    shop = program(APP, SHOP_PORT=database_port, EXCLUDED="1")
    assert shop.run(ROLLED_BACK) == []
    with shop.worker():
        assert shop.await_marks(1) == [["job", 1]]
        assert shop.run("plain.delay(2); answer = rows()") == ["shop.plain"]
        with shop.start(*RELAY, ready="relay"):
            assert shop.await_marks(2)[1:] == [["plain", 2]]


def test_a_job_that_is_not_excluded_has_rows(program: MakeProgram, database_port: str) -> None:
    """A job of a task that is not excluded has rows at the relay, too; equal calls of two processes run once."""
    shop = program(APP, SHOP_PORT=database_port)
    shop.run('call_command("migrate", verbosity=0); job.delay(1)')
    assert "shop.job" in shop.run("job.delay(1); answer = rows()")
    with shop.worker("-c", "1"), shop.start(*RELAY, ready="relay"):
        eventually(lambda: shop.run("answer = rows()") == [])
        shop.run("job.delay(2)")  # its message comes after all others
        assert [job.attempt for job in shop.await_states("completed", "completed")] == [1, 1]
        assert shop.marks == [["job", 1], ["job", 2]]
