"""The app: the ledger in one of Django's databases, and its migrations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onejob.stores.schema import HEAD
from tests.django.project import FOLDER, SETUP, Project, on_both, sqlite

NEWEST = f"schema version {HEAD}, newest {HEAD}: nothing to do"
TEST_RUN = """
from django.db import connection, transaction
from django.test.utils import get_runner
from django.conf import settings
from onejob.django.conf import app_state
from onejob.jobs.query import Query
from shop.tasks import count, greet
def submitted():
    greet.apply_async(("ann",), ignore_result=True)
    return [job.state for job in app_state().ledger.find(Query(limit=10))]
before = connection.settings_dict["NAME"]
runner = get_runner(settings)(verbosity=0, interactive=False)
found = [len(app_state().ledger.find(Query(limit=10)))]
for run in range(2):
    old = runner.setup_databases()
    assert connection.settings_dict["NAME"] != before
    found.append(len(app_state().ledger.find(Query(limit=10))))
    submitted()
    with transaction.atomic():
        result = count.enqueue(run)
        assert count.get_result(result.id) == result
        transaction.set_rollback(True)
    found.append(len(app_state().ledger.find(Query(limit=10))))
    runner.teardown_databases(old)
found.append(len(app_state().ledger.find(Query(limit=10))))
print(json.dumps(found))
"""
WRAPPED = """
import functools
from django.db.backends.base.creation import BaseDatabaseCreation
destroy = BaseDatabaseCreation.destroy_test_db
BaseDatabaseCreation.destroy_test_db = functools.wraps(destroy)(lambda *args, **options: destroy(*args, **options))
"""
OUTSIDE = """
from django.conf import settings
from django.db import connection, transaction
from django.test.utils import get_runner
from onejob.errors import StoreUnavailableError
from shop.tasks import greet
runner = get_runner(settings)(verbosity=0, interactive=False)
old = runner.setup_databases()
found = []
with transaction.atomic():
    result = greet.submit("ann", session=connection)
    for call in (lambda: greet.delay("bob"), lambda: result.state):
        try:
            call()
        except StoreUnavailableError as error:
            found.append(str(error))
    transaction.set_rollback(True)
runner.teardown_databases(old)
print(json.dumps(found))
"""
MIGRATIONS = """
from django.core.management import call_command
from django.db import connection
from onejob.django.conf import app_state
from shop.tasks import greet
call_command("makemigrations", check_changes=True, dry_run=True, verbosity=0)
job = greet.apply_async(("ann",), ignore_result=True)
found = []
for target in ("zero", "onejob"):
    call_command("migrate", "onejob", *([target] if target == "zero" else []), verbosity=0)
    found.append(int(app_state().ledger.get_or_none(job.id) is None))
app_state().ledger.remove(app_state().ledger.cancel(job.id))
print(json.dumps(found))
"""
TABLES = """
from django.core.management import call_command
from django.db import connections
from onejob.django.conf import app_state
for alias in connections:
    call_command("migrate", database=alias, verbosity=0)
found = {alias: "jobs" in connections[alias].introspection.table_names() for alias in connections}
print(json.dumps([found, app_state().ledger.store.path.name]))
"""


@on_both
def test_migrate_makes_and_keeps_the_ledger(project: Project) -> None:
    """`manage.py migrate` makes a ledger of the newest version, keeps one that exists, and no migration is missing."""
    assert NEWEST in project.onejob("migrate", "status")
    assert project.script(MIGRATIONS) == [0, 0]
    assert NEWEST in project.onejob("migrate", "up")


@on_both
def test_the_ledger_follows_django_to_the_test_database(project: Project) -> None:
    """A run of tests has an empty, migrated ledger of its own, and can drop its database, whoever wraps that, too."""
    assert project.script(TEST_RUN) == [0, 0, 1, 0, 1, 0]
    assert "[0, 0, 1, 0, 1, 0]" in project.run("-c", WRAPPED + SETUP + TEST_RUN)  # by another app
    assert list(FOLDER.glob("*memory*")) == []


def test_another_connection_to_a_database_in_memory_is_told_what_to_do(files: dict[str, Any], broker_url: str) -> None:
    """Outside of the open transaction a database in memory is locked, and the error says how to submit in a test."""
    found = Project({"DATABASES": files, "CELERY_BROKER_URL": broker_url}).script(OUTSIDE)
    assert ["session=" in error and "JobsMixin" in error for error in found] == [True, True]


def test_only_the_database_of_the_ledger_has_its_tables(files: dict[str, Any]) -> None:
    """The migrations create tables in the database that the store names, whichever others are migrated."""
    project = Project({"DATABASES": files, "CELERY_ONEJOB_STORE": "django://jobs"})
    assert project.script(TABLES) == [{"default": False, "jobs": True}, "jobs.db"]


def test_a_database_that_a_uri_names_has_the_ledger(tmp_path: Path) -> None:
    """The ledger is in the file that Django opens, which takes every name that begins with `file:` for a URI."""
    databases = {"default": sqlite(f"file:{tmp_path}/shop.db")}
    found, _ = Project({"DATABASES": databases, "CELERY_ONEJOB_STORE": "django://default"}).script(TABLES)
    assert found == {"default": True}
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"shop.db"}


EXAMINED = """
from django.core.management import call_command
from onejob.django.conf import app_state
from onejob.health import sqlite
from onejob.health.finding import Installation
call_command("migrate", verbosity=0)
found = sqlite.examine(Installation(settings=app_state().settings, ledger=app_state().ledger))
print(json.dumps([each.problem for each in found]))
"""


BARE = """
import sys
sys.modules.update({"django.tasks": None, "django_tasks": None})
from onejob.django.conf import celery_app
celery_app().autodiscover_tasks(["onejob.django"], force=True)
print(json.dumps([name for name in sys.modules if name.startswith("onejob.django.")]))
"""


def test_the_app_needs_no_framework_for_tasks(files: dict[str, Any]) -> None:
    """Celery looks for tasks in the app of onejob, too, and needs no `django.tasks` for that."""
    imported = Project({"DATABASES": files, "CELERY_ONEJOB_STORE": "django://default"}).script(BARE)
    assert "onejob.django.framework" not in imported


def test_the_file_of_a_database_is_examined(files: dict[str, Any]) -> None:
    """`onejob doctor` examines the file of a ledger whose store is a database of Django."""
    (found,) = Project({"DATABASES": files, "CELERY_ONEJOB_STORE": "django://default"}).script(EXAMINED)
    assert "is local, its journal mode is" in found or "the mode of" in found
