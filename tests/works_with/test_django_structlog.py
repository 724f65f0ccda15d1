"""django-structlog: whether the context of a request is in the log lines of its jobs."""

import pytest

from tests.works_with.context import TASKS, all_ways, ways_with_context
from tests.works_with.program import MakeProgram, on_both_brokers
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("django-structlog==11.0.0",),
    needs=("django==5.2.19", "structlog==26.1.0", "django-ipware==8.0.0", "python-ipware==4.1.1"),
    ran="its boot step and its receivers: the `request_id` of a submitter on each way to a run; Redis, `onejob://`",
    holds="A run has the context of its submission, on each way.",
    do="Add `DjangoStructLogInitStep` to `app.steps`, as for Celery.",
    fails="",
)
APP = """
import django, structlog
from contextlib import contextmanager
from django.conf import settings
from kit import *

settings.configure(INSTALLED_APPS=["django_structlog"], DJANGO_STRUCTLOG_CELERY_ENABLED=True)
django.setup()
from django_structlog.celery.steps import DjangoStructLogInitStep

app = make_app()
app.steps["worker"].add(DjangoStructLogInitStep)

@contextmanager
def within():
    with structlog.contextvars.bound_contextvars(request_id="the request"):
        yield

def seen():
    return structlog.contextvars.get_contextvars().get("request_id") == "the request"
"""


@on_both_brokers
def test_a_run_has_the_context_of_its_submission(program: MakeProgram, direct: bool) -> None:
    """A run has the context of its submission, on each way."""
    shop = program(APP + TASKS, direct=direct)
    assert ways_with_context(shop, direct=direct) == all_ways(direct=direct)
