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
