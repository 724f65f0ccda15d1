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
def examine(step):
    if step == "backend":
        import shop.tasks
        return task_backends["default"].check()
    return [*check_settings(), *check_urls()] if step == "settings" else run_checks(databases=["default", "jobs"])
(steps,) = map(json.loads, sys.argv[1:])
found = {}
for step in steps:
    if step == "migrate":
        call_command("migrate", verbosity=0)
    else:
        found[step] = {each.id: each.msg for each in examine(step)}
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
wrong = {"lese": 5}, {"unique": False, "unique_for": 60}, {"raise_on_duplicate": True}, {"priority": 9}
found = [refused(**options) for options in wrong]
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
    """Return what some steps find in a project with these settings: the messages by their ids."""
    found: dict[str, Any] = Project({"DATABASES": databases, **settings}).script(CHECKS, steps)
    return found


HOOKS = ("shop.nowhere.redact", "shop.privacy.hide", "shop.settings.SECRET_KEY")


BACKEND = {"onejob.W001", "onejob.W002"}
"""What is found in the step `backend`."""


@for_each("step, name, value, found", [
    ("checks", "CELERY_ONEJOB_STORE", None, {"onejob.E001": "has no store"}),
    ("checks", "CELERY_ONEJOB_LEASE", 0, {"onejob.E001": "lease"}),
    ("checks", "CELERY_ONEJOB_HEARTBEAT", 5, {"onejob.E001": "CELERY_ONEJOB_HEARTBEAT: a worker renews a lease"}),
    ("checks", "ONEJOB_HEARTBEAT", 5,
     {"onejob.E003": "no setting ONEJOB_HEARTBEAT: a worker renews a lease", "onejob.W007": ""}),
    ("checks", "CELERY_ONEJOB_STORE", "django://", {"onejob.E002": "write django://default"}),
    ("checks", "CELERY_ONEJOB_STORE", "django://other", {"onejob.E002": "DATABASES has default"}),
    ("checks", "CELERY_ONEJOB_STORE", "django://odd", {"onejob.E002": "the engine of this database is django.db.back"}),
    ("checks", "CELERY_ONEJOB_STORE", "mysql://here", {"onejob.E002": "mysql"}),
    ("checks", "ONEJOB_STORE", "django://default", {"onejob.E003": "ONEJOB_STORE is not read", "onejob.W007": ""}),
    ("backend", "CELERY_ONEJOB_STORE", "redis://localhost:1/0", {"onejob.W001": ""}),
    *(("backend", "CELERY_ONEJOB_STORE", store, {"onejob.W002": ""}) for store in ("django://jobs", "django://nope")),
    *(("settings", "ONEJOB_REDACT", hook, {"onejob.E004": hook}) for hook in HOOKS),
    ("settings", "ONEJOB_REDACT", "shop.privacy.redact", {}),
    ("settings", "CELERY_ONEJOB_STORE", "django://requests", {"onejob.W008": "waits for its own transaction"}),
])  # fmt: skip
def test_a_setting_is_found(files: dict[str, Any], step: str, name: str, value: Any, found: dict[str, str]) -> None:
    """A store that is unusable, or where no enqueue is in a transaction, a wrong setting and a wrong hook are found."""
    requests = files["default"] | {"ATOMIC_REQUESTS": True}
    databases = files | {"odd": {"ENGINE": "django.db.backends.dummy"}, "requests": requests}
    messages = found_in(step, databases=databases, **{name: value})[step]
    if step == "checks":  # Django 6 checks the backend of its tasks here, too
        messages = {each: text for each, text in messages.items() if each in found or each not in BACKEND}
    assert {each: found.get(each, "?") in text for each, text in messages.items()} == dict.fromkeys(found, True)


def test_the_databases_are_examined(files: dict[str, Any]) -> None:
    """A project as in the guide needs its migration; databases that block or commit by themselves are warnings."""
    found = found_in("before", "migrate", "after", "backend", databases=files)
    assert [[*found[step]] for step in ("before", "after", "backend")] == [["onejob.W007"], [], []]
    files["default"] |= {"AUTOCOMMIT": False, "OPTIONS": {"init_command": "pragma journal_mode = delete"}}
    found = found_in("checks", "backend", databases=files)
    assert [*found["backend"]] == ["onejob.W003"]  # which Django 6 has among its own checks
    assert {*found["checks"]} - {"onejob.W003"} == {"onejob.W004", "onejob.W005"}


def test_the_check_of_the_database_fails(files: dict[str, Any]) -> None:
    """`check --database` fails without the store's database or schema, and asks for a migration; `migrate` does not."""
    postgres = {"ENGINE": "django.db.backends.postgresql", "NAME": "nowhere"}
    unusable: list[dict[str, Any]] = [
        {"DATABASES": files, "CELERY_ONEJOB_STORE": "django://nope"},
        {"DATABASES": {"default": postgres}, "CELERY_ONEJOB_NAMESPACE": "my-shop"},
    ]
    for settings in unusable:
        assert "onejob.E002" in Project(settings).manage("check", "--database", "default", code=1)
    project = Project({"DATABASES": files})
    assert "onejob.W007" in project.manage("check", "--database", "default")
    assert "onejob.W007" not in project.manage("migrate")


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
    (misspelt, contradicting, foreign, own), checked = Project({"DATABASES": files}).script(DEFINITIONS)
    assert misspelt == "job_options has no option lese: did you mean lease?"
    assert "unique=False and unique_for" in contradicting
    assert "another library's" in foreign
    assert "has 'priority', which the backend sets itself" in own
    assert "'customer'" in checked["onejob.E006"]
    assert "shop.models.unknown" in checked["onejob.W006"]
