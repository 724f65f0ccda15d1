"""edx-celeryutils: its task classes as second bases of jobs."""

import pytest

from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("edx-celeryutils==2.0.0",),
    needs=("django-model-utils==5.0.0", "jsonfield==3.2.0"),
    ran="`class Job(LoggedPersistOnFailureTask, onejob.Task)`, with jobs that complete, fail and are duplicates; "
    "`onejob://`",
    holds="A failed job has one row of `FailedTask`, with its id; a submission of `LoggedTask` is logged.",
    do="Put `onejob.Task` last: its `apply_async` calls no other.",
    fails="",
)
APP = """
import logging
import django
from django.conf import settings

settings.configure(
    SECRET_KEY="x", INSTALLED_APPS=["celery_utils"], DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "django.db"}},
)
django.setup()
from celery_utils.models import FailedTask
from celery_utils.persist_on_failure import LoggedPersistOnFailureTask
from kit import *

app = make_app()

class Job(LoggedPersistOnFailureTask, onejob.Task):
    abstract = True

@app.task(base=Job)
def work(number):
    mark(number)
    if number < 0:
        raise ValueError(number)
    return number
"""
SUBMIT = """
logging.basicConfig(level=logging.INFO, filename="submitter.txt")
ids = [work.delay(number).id for number in (1, 1, -1, -1)]
answer = [len(set(ids)), ids[2]]
"""


def test_a_failed_job_has_one_row(program: MakeProgram) -> None:
    """Of two equal submissions that fail there is one row, with the job's id, and each submission is logged."""
    shop = program(APP, direct=True)
    shop.run("from django.core.management import call_command\ncall_command('migrate', verbosity=0)")
    number, failing = shop.run(SUBMIT)
    assert number == 2
    with shop.worker():
        shop.await_states("completed", "failed")
    assert shop.run("answer = list(FailedTask.objects.values_list('task_id', flat=True))") == [failing]
    assert (shop.folder / "submitter.txt").read_text().count("submitted with arguments") == 4
