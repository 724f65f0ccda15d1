"""The app: the ledger in one of Django's databases, and its migrations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.django.project import FOLDER, Project, sqlite

if TYPE_CHECKING:
    from pathlib import Path

NEWEST = "schema version 0005, newest 0005: nothing to do"
TEST_RUN = """
from django.db import connection, transaction
from django.test.utils import get_runner
from django.conf import settings
from onejob.django.conf import ledger
from onejob.jobs.records import Query
from shop.tasks import count, greet
def submitted():
    greet.apply_async(("ann",), ignore_result=True)
    return [job.state for job in ledger().find(Query(limit=10))]
before = connection.settings_dict["NAME"]
runner = get_runner(settings)(verbosity=0, interactive=False)
found = [len(ledger().find(Query(limit=10)))]
for run in range(2):
    old = runner.setup_databases()
    assert connection.settings_dict["NAME"] != before
    found.append(len(ledger().find(Query(limit=10))))
    submitted()
    with transaction.atomic():
        result = count.enqueue(run)
        assert count.get_result(result.id) == result
        transaction.set_rollback(True)
    found.append(len(ledger().find(Query(limit=10))))
    runner.teardown_databases(old)
found.append(len(ledger().find(Query(limit=10))))
print(json.dumps(found))
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
TABLES = """
from django.db import connections
print(json.dumps({alias: "jobs" in connections[alias].introspection.table_names() for alias in ("default", "jobs")}))
"""
PLACE = """
from onejob.django.conf import ledger
from onejob.errors import ConfigurationError
try:
    print(json.dumps(ledger().store.path.name))
except ConfigurationError as error:
    print(json.dumps(str(error)))
"""


def test_migrate_creates_the_ledger(project: Project) -> None:
    """`manage.py migrate` creates a ledger at its newest version, and Django finds no change without a migration."""
    assert NEWEST in project.onejob("migrate", "status")
    assert "No changes detected" in project.manage("makemigrations", "--check", "--dry-run")
    assert NEWEST in project.onejob("migrate", "up")


def test_a_migrated_ledger_is_kept(project: Project) -> None:
    """The tables stay when the migrations are unapplied, and applying them to a ledger that exists changes nothing."""
    project.manage("migrate", "onejob", "zero", "-v", "0")
    assert NEWEST in project.onejob("migrate", "status")
    project.manage("migrate", "onejob", "-v", "0")
    assert NEWEST in project.onejob("migrate", "status")


def test_the_ledger_follows_django_to_the_test_database(project: Project) -> None:
    """A run of tests has a ledger of its own, empty and migrated, and dropping its database finds no connection."""
    assert project.script(TEST_RUN) == [0, 0, 1, 0, 1, 0]


def test_the_ledger_follows_django_into_memory(files: dict[str, Any], broker_url: str) -> None:
    """SQLite's test database is in memory by default, and the ledger is in it."""
    project = Project({"DATABASES": files, "CELERY_BROKER_URL": broker_url})
    project.manage("migrate", "-v", "0")
    assert project.script(TEST_RUN) == [0, 0, 1, 0, 1, 0]
    assert list(FOLDER.glob("*memory*")) == []


def test_another_connection_to_a_database_in_memory_is_told_what_to_do(files: dict[str, Any], broker_url: str) -> None:
    """Outside of the open transaction a database in memory is locked, and the error says how to submit in a test."""
    found = Project({"DATABASES": files, "CELERY_BROKER_URL": broker_url}).script(OUTSIDE)
    assert ["session=" in error and "JobsMixin" in error for error in found] == [True, True]


def test_only_the_database_of_the_ledger_has_its_tables(files: dict[str, Any]) -> None:
    """The migrations create tables in the database that the store names, whichever others are migrated."""
    project = Project({"DATABASES": files, "CELERY_ONEJOB_STORE": "django://jobs"})
    for alias in files:
        project.manage("migrate", "-v", "0", "--database", alias)
    assert project.script(TABLES) == {"default": False, "jobs": True}
    assert project.script(PLACE) == "jobs.db"


@pytest.mark.parametrize(
    ("store", "error"),
    [
        ("django://", "write django://default"),
        ("django://other", "DATABASES has default"),
        ("django://odd", "the engine of this database is django.db.backends.dummy"),
    ],
)
def test_a_store_that_is_no_database_is_refused(tmp_path: Path, store: str, error: str) -> None:
    """An unknown alias, or an engine that no store supports, is refused with what to write instead."""
    databases = {"default": sqlite(tmp_path / "shop.db"), "odd": {"ENGINE": "django.db.backends.dummy"}}
    project = Project({"DATABASES": databases, "CELERY_ONEJOB_STORE": store})
    assert error in project.script(PLACE)
