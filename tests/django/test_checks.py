"""The system checks: each finds what it is for, and nothing in a project that is set up as the guide says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.django.project import Project, sqlite

if TYPE_CHECKING:
    from pathlib import Path

FOUND = """
from django.core.checks import run_checks
print(json.dumps(sorted({each.id for each in run_checks(databases=["default", "jobs"])})))
"""
SETTINGS = """
from onejob.django.checks import check_settings, check_urls
print(json.dumps([[each.id, each.msg] for each in [*check_settings(), *check_urls()]]))
"""
WITHOUT_A2WSGI = """
sys.modules.pop("a2wsgi", None)
from importlib import util
from onejob.django import checks
checks.find_spec = lambda name: None if name == "a2wsgi" else util.find_spec(name)
print(json.dumps([each.id for each in checks.check_urls()]))
"""
DEFINITIONS = """
from onejob.django import job_options
from onejob.django.framework import task_backends
from onejob.errors import ConfigurationError
import shop.tasks
from shop.tasks import task
def refused(**options):
    try:
        job_options(**options)
    except ConfigurationError as error:
        return str(error)
found = [refused(lese=5), refused(unique=False, unique_for=60), refused(raise_on_duplicate=True)]
@job_options(unique_on=["customer"])
def remind(name: str) -> None: ...
remind.__module__ = "shop.tasks"
shop.tasks.remind = remind
task(remind)
print(json.dumps([found, [each.msg for each in task_backends["default"].check() if each.id == "onejob.E006"]]))
"""
BACKEND = """
from onejob.django.framework import task_backends
import shop.tasks
print(json.dumps(sorted(each.id for each in task_backends["default"].check())))
"""


@pytest.fixture
def databases(tmp_path: Path) -> dict[str, Any]:
    """Return the settings of two databases."""
    return {"default": sqlite(tmp_path / "shop.db"), "jobs": sqlite(tmp_path / "jobs.db")}


def test_a_project_as_in_the_guide_passes(databases: dict[str, Any]) -> None:
    """A project that is set up as the guide says has no messages after its migration."""
    project = Project({"DATABASES": databases})
    assert project.script(FOUND) == ["onejob.W007"]
    project.manage("migrate", "-v", "0")
    assert project.script(FOUND) == []
    assert project.script(BACKEND) == []


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"CELERY_ONEJOB_STORE": None}, ["onejob.E001"]),
        ({"CELERY_ONEJOB_LEASE": 1}, ["onejob.E001"]),
        ({"CELERY_ONEJOB_STORE": "django://other"}, ["onejob.E001", "onejob.E002"]),
        ({"CELERY_ONEJOB_STORE": "mysql://here"}, ["onejob.E002"]),
        ({"ONEJOB_STORE": "django://default"}, ["onejob.E003", "onejob.W007"]),
    ],
)
def test_wrong_settings_are_found(databases: dict[str, Any], settings: dict[str, Any], found: list[str]) -> None:
    """A store that is missing or unusable is an error, and so are a setting out of range and one that is not read."""
    project = Project({"DATABASES": databases, **settings})
    assert set(project.script(FOUND)) & set(found)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"CELERY_ONEJOB_STORE": "redis://localhost:1/0"}, ["onejob.W001"]),
        ({"CELERY_ONEJOB_STORE": "django://jobs"}, ["onejob.W002"]),
    ],
)
def test_a_ledger_elsewhere_is_a_warning(databases: dict[str, Any], settings: dict[str, Any], found: list[str]) -> None:
    """Django's tasks with a ledger outside the default database are a warning, as enqueues are in no transaction."""
    assert Project({"DATABASES": databases, **settings}).script(BACKEND) == found


def test_manual_transactions_are_a_warning(databases: dict[str, Any]) -> None:
    """Without autocommit an enqueue outside `atomic()` commits by itself, which is a warning."""
    databases["default"]["AUTOCOMMIT"] = False
    assert Project({"DATABASES": databases}).script(BACKEND) == ["onejob.W003"]


def test_a_sqlite_file_without_a_write_ahead_log_is_a_warning(databases: dict[str, Any]) -> None:
    """A SQLite file whose writers block its readers, or without immediate transactions, is a warning."""
    project = Project({"DATABASES": databases})
    project.manage("migrate", "-v", "0")
    databases["default"]["OPTIONS"] = {"init_command": "pragma journal_mode = delete"}
    assert project.script(FOUND) == ["onejob.W004", "onejob.W005"]


def test_a_database_that_does_not_exist_is_an_error(databases: dict[str, Any]) -> None:
    """A store in a database that Django does not have is an error, and the backend's own check does not fail by it."""
    project = Project({"DATABASES": databases, "CELERY_ONEJOB_STORE": "django://nope"})
    assert "onejob.E002" in project.manage("check", "--database", "default", code=1)
    assert project.script(BACKEND) == ["onejob.W002"]


def test_a_hook_that_does_not_exist_is_an_error(databases: dict[str, Any]) -> None:
    """A hook that hides values is a function at a path that exists."""
    for hook in ("shop.nowhere.redact", "shop.privacy.hide", "shop.settings.SECRET_KEY"):
        ((found, message),) = Project({"DATABASES": databases, "ONEJOB_REDACT": hook}).script(SETTINGS)
        assert (found, hook in message) == ("onejob.E004", True)
    assert Project({"DATABASES": databases, "ONEJOB_REDACT": "shop.privacy.redact"}).script(SETTINGS) == []


def test_a_dashboard_without_its_package_is_an_error(databases: dict[str, Any]) -> None:
    """The URL of the dashboard needs a package, which is looked for before the first request."""
    apps = ["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages"]
    given = {"DATABASES": databases, "INSTALLED_APPS": [*apps, "django.contrib.sessions", "onejob.django", "shop"]}
    assert Project({**given, "ROOT_URLCONF": "shop.urls"}).script(WITHOUT_A2WSGI) == ["onejob.E005"]
    assert Project(given).script(WITHOUT_A2WSGI) == []


def test_options_that_do_nothing_are_refused(databases: dict[str, Any]) -> None:
    """Misspelt, contradicting and foreign options are refused where they are written, absent arguments by the check."""
    (misspelt, contradicting, foreign), checked = Project({"DATABASES": databases}).script(DEFINITIONS)
    assert misspelt == "job_options has no option lese: did you mean lease?"
    assert "unique=False and unique_for" in contradicting
    assert "another library's" in foreign
    assert "'customer'" in checked[0]


def test_a_migration_does_not_ask_for_itself(databases: dict[str, Any]) -> None:
    """`migrate` prints no warning that asks for it, and `check` prints it."""
    project = Project({"DATABASES": databases})
    assert "onejob.W007" in project.manage("check", "--database", "default")
    assert "onejob.W007" not in project.manage("migrate")
