"""The system checks: each finds what it is for, and nothing in a project that is set up as the guide says."""

from __future__ import annotations

from typing import Any

from tests.cases import for_each
from tests.django.project import Project
from tests.forks import CELERY

CHECKS = """
from django.core.checks import run_checks
from django.core.management import call_command
from onejob.django.checks import check_settings, check_urls
from onejob.django.framework import task_backends
def ids():
    return sorted({each.id for each in run_checks(databases=["default", "jobs"])})
(steps,) = map(json.loads, sys.argv[1:])
found = {}
for step in steps:
    if step == "migrate":
        call_command("migrate", verbosity=0)
    elif step == "backend":
        import shop.tasks
        found[step] = sorted(each.id for each in task_backends["default"].check())
    elif step == "settings":
        found[step] = [[each.id, each.msg] for each in [*check_settings(), *check_urls()]]
    else:
        found[step] = ids()
print(json.dumps(found))
"""
WITHOUT_WSGI = """
from importlib import util
from django.core.management import CommandError, call_command
from onejob.django import checks
checks.find_spec = lambda name: None if name == "a2wsgi" else util.find_spec(name)
sys.modules.update(dict.fromkeys(("a2wsgi", "starlette", "fastapi", "uvicorn", "jinja2")))
try:
    call_command("check")
except CommandError as error:
    found = str(error)
else:
    found = ""
print(json.dumps([line for line in found.splitlines() if "E005" in line or "onejob[wsgi]" in line]))
"""
DEFINITIONS = """
from onejob.django import job_options
from onejob.django.framework import task_backends
from onejob.errors import ConfigurationError
import shop.models, shop.tasks
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
def unknown(): ...
unknown.__module__ = "shop.models"
shop.models.unknown = unknown
task(unknown)
print(json.dumps([found, {each.id: each.msg for each in task_backends["default"].check()}]))
"""


def found_in(*steps: str, databases: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Return the messages that some steps find in a project with these settings."""
    found: dict[str, Any] = Project({"DATABASES": databases, **settings}).script(CHECKS, steps)
    return found


def test_a_project_as_in_the_guide_passes(files: dict[str, Any]) -> None:
    """A project that is set up as the guide says has no messages after its migration."""
    found = found_in("before", "migrate", "after", "backend", databases=files)
    assert found == {"before": ["onejob.W007"], "after": [], "backend": []}


@for_each("settings, found", [
    ({"CELERY_ONEJOB_STORE": None}, ["onejob.E001"]), ({"CELERY_ONEJOB_LEASE": 1}, ["onejob.E001"]),
    ({"CELERY_ONEJOB_STORE": "django://other"}, ["onejob.E001", "onejob.E002"]),
    ({"CELERY_ONEJOB_STORE": "mysql://here"}, ["onejob.E002"]),
    ({"ONEJOB_STORE": "django://default"}, ["onejob.E003", "onejob.W007"]),
])  # fmt: skip
def test_wrong_settings_are_found(files: dict[str, Any], settings: dict[str, Any], found: list[str]) -> None:
    """A store that is missing or unusable is an error, and so are a setting out of range and one that is not read."""
    assert {*found_in("checks", databases=files, **settings)["checks"]} & {*found}


@for_each("store, found", [
    ("redis://localhost:1/0", ["onejob.W001"]), ("django://jobs", ["onejob.W002"]), ("django://nope", ["onejob.W002"]),
])  # fmt: skip
def test_a_ledger_elsewhere_is_a_warning(files: dict[str, Any], store: str, found: list[str]) -> None:
    """Django's tasks with a ledger outside the default database are a warning, as enqueues are in no transaction."""
    assert found_in("backend", databases=files, CELERY_ONEJOB_STORE=store)["backend"] == found


def test_databases_that_block_or_commit_by_themselves_are_a_warning(files: dict[str, Any]) -> None:
    """A SQLite file without a write-ahead log or immediate transactions, and one without autocommit, are warnings."""
    found_in("migrate", databases=files)
    files["default"] |= {"AUTOCOMMIT": False, "OPTIONS": {"init_command": "pragma journal_mode = delete"}}
    found = found_in("checks", "backend", databases=files)
    assert found["backend"] == ["onejob.W003"]  # which Django 6 has among its own checks
    assert [each for each in found["checks"] if each != "onejob.W003"] == ["onejob.W004", "onejob.W005"]


def test_the_check_of_the_database_fails(files: dict[str, Any]) -> None:
    """`check --database` fails without the database of the store, and asks for a migration, which does not itself."""
    project = Project({"DATABASES": files, "CELERY_ONEJOB_STORE": "django://nope"})
    assert "onejob.E002" in project.manage("check", "--database", "default", code=1)
    project = Project({"DATABASES": files})
    assert "onejob.W007" in project.manage("check", "--database", "default")
    assert "onejob.W007" not in project.manage("migrate")


@for_each("hook", ["shop.nowhere.redact", "shop.privacy.hide", "shop.settings.SECRET_KEY", "shop.privacy.redact"])
def test_a_hook_that_does_not_exist_is_an_error(files: dict[str, Any], hook: str) -> None:
    """A hook that hides values is a function at a path that exists."""
    found = found_in("settings", databases=files, ONEJOB_REDACT=hook)["settings"]
    errors = [] if hook == "shop.privacy.redact" else ["onejob.E004"]
    assert [each for each, _ in found] == errors
    assert all(hook in message for _, message in found)


def test_a_dashboard_without_its_package_is_an_error(files: dict[str, Any]) -> None:
    """The URL of the dashboard needs a package, which is looked for before the first request."""
    apps = ["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages"]
    given = {"DATABASES": files, "INSTALLED_APPS": [*apps, "django.contrib.sessions", "onejob.django", "shop"]}
    error, hint = Project({**given, "ROOT_URLCONF": "shop.urls"}, imported=CELERY).script(WITHOUT_WSGI)
    assert "(onejob.E005)" in error
    assert 'pip install "onejob[wsgi]"' in hint
    assert Project(given, imported=CELERY).script(WITHOUT_WSGI) == []


def test_options_that_do_nothing_are_refused(files: dict[str, Any]) -> None:
    """Wrong options are refused where they are written; absent arguments, and tasks no worker imports, by the check."""
    (misspelt, contradicting, foreign), checked = Project({"DATABASES": files}).script(DEFINITIONS)
    assert misspelt == "job_options has no option lese: did you mean lease?"
    assert "unique=False and unique_for" in contradicting
    assert "another library's" in foreign
    assert "'customer'" in checked["onejob.E006"]
    assert "shop.models.unknown" in checked["onejob.W006"]
