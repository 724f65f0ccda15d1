"""tenant-schemas-celery with django-tenants: in which schema of PostgreSQL a body runs."""

import pytest

from tests.works_with.context import TASKS, all_ways, ways_with_context
from tests.works_with.program import MakeProgram, on_both_brokers
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("tenant-schemas-celery==5.0.0", "django-tenants==4.0.1"),
    needs=("django==5.2.19",),
    ran="`class Job(onejob.Task, TenantTask)`: the schema in which a body runs, on each way from a submission; "
    "equal calls of two tenants; Redis, `onejob://`",
    holds="A body runs in the schema of its submitter, on each way.",
    do="Derive the task class from both, `onejob.Task` first. Name the header in `unique_on`, or submit within "
    "`onejob.submitter(schema, own_jobs=True)`: otherwise equal calls of two tenants are one job.",
    fails="",
)
APP = """
import django
from contextlib import contextmanager
from django.conf import settings
from kit import *

APPS = ["django_tenants", "django.contrib.contenttypes", "shop"]
settings.configure(
    INSTALLED_APPS=APPS, SHARED_APPS=APPS, TENANT_APPS=["shop"],
    TENANT_MODEL="shop.Client", TENANT_DOMAIN_MODEL="shop.Domain",
    DATABASE_ROUTERS=["django_tenants.routers.TenantSyncRouter"],
    DATABASES={"default": {"ENGINE": "django_tenants.postgresql_backend", "NAME": "shop", "HOST": "127.0.0.1",
        "PORT": os.environ["SHOP_PORT"], "USER": "postgres"}},
)
django.setup()
from django.db import connection
from django_tenants.models import DomainMixin, TenantMixin
from django_tenants.utils import schema_context

class Client(TenantMixin):
    auto_create_schema = False

class Domain(DomainMixin):
    pass

from tenant_schemas_celery.app import CeleryApp
from tenant_schemas_celery.task import TenantTask
app = make_app(CeleryApp)

class Job(onejob.Task, TenantTask):
    abstract = True

def within(tenant="acme"):
    return schema_context(tenant)

def seen():
    return connection.schema_name == "acme"
"""
TENANTS = """
with connection.schema_editor() as editor:
    editor.create_model(Client)
for name in ("acme", "globex"):
    Client.objects.create(schema_name=name)
    connection.cursor().execute(f"create schema {name}")
"""
EQUAL = """
@app.task(base=Job, unique_on=["way", 'headers["_schema_name"]'])
def own(way): pass

for tenant in ("acme", "globex"):
    with within(tenant):
        own.delay("equal")
        plain.delay("equal")
        with onejob.submitter(tenant, own_jobs=True):
            plain.delay("equal")
"""


@on_both_brokers
def test_a_run_is_in_the_schema_of_its_submission(program: MakeProgram, database_port: str, direct: bool) -> None:
    """A run is in the schema of its submission, on each way."""
    shop = program(APP + TASKS.replace("onejob.Task", "Job"), direct=direct, SHOP_PORT=database_port)
    shop.run(TENANTS)
    assert ways_with_context(shop, direct=direct) == all_ways(direct=direct)


def test_equal_calls_of_tenants_are_jobs_of_their_own(program: MakeProgram, database_port: str) -> None:
    """Equal calls of two tenants are one job; two with the header in `unique_on`, or submitters with own jobs."""
    shop = program(APP + TASKS.replace("onejob.Task", "Job"), SHOP_PORT=database_port)
    shop.run(TENANTS)
    shop.run(EQUAL)
    assert [job.submitter for job in shop.jobs("shop.plain")] == ["", "acme", "globex"]
    assert len(shop.jobs("shop.own")) == 2
