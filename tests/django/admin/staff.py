"""The staff of a shop at its admin: real browsers' requests to a real server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.django.project import Project, sqlite
from tests.pages.browser import HtmlPage
from tests.services import eventually, free_port
from tests.stores.support import StoreAddress
from tests.tiers import deep

PATIENCE = 40.0
on_every_store = pytest.mark.parametrize(
    "address", ["sqlite", pytest.param("postgresql", marks=deep), pytest.param("redis", marks=deep)],
    indirect=True, scope="session",
)  # fmt: skip
"""Run a test of the shop on SQLite, and in the deep tier on the other stores."""
STAFF = {"ned": (), "rita": ("view_job",), "olga": ("view_job", "operate_job"), "eve": ("edit_job",)}
"""The staff, with their permissions; `root` is a superuser, and `ann` is a customer."""
CONTRIB = "admin auth contenttypes messages sessions staticfiles".split()
SETTINGS: dict[str, Any] = {
    "INSTALLED_APPS": [*(f"django.contrib.{name}" for name in CONTRIB), "onejob.django", "shop"],
    "MIDDLEWARE": [
        "django.contrib.sessions.middleware.SessionMiddleware", "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware", "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    "TEMPLATES": [{
        "BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
        "OPTIONS": {"context_processors": [
            "django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
            "django.contrib.messages.context_processors.messages",
        ]},
    }],
    "ROOT_URLCONF": "shop.urls",
    "STATIC_URL": "/static/",
    "ALLOWED_HOSTS": ["127.0.0.1"],
    "PASSWORD_HASHERS": ["django.contrib.auth.hashers.MD5PasswordHasher"],
}  # fmt: skip
CREATE_STAFF = """
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django.contrib.auth.models import Permission, User
User.objects.create_superuser("root", password="root")
User.objects.create_user("ann", password="ann")
for name, permissions in json.loads(sys.argv[1]).items():
    user = User.objects.create_user(name, password=name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="onejob", codename__in=permissions))
print("null")
"""


def project_on(address: StoreAddress, folder: Path) -> Project:
    place = {"CELERY_ONEJOB_STORE": address.url, "CELERY_ONEJOB_NAMESPACE": address.namespace}
    database = {"DATABASES": {"default": sqlite(folder / "shop.db")}, "CELERY_BROKER_URL": "memory://"}
    project = Project(SETTINGS | place | database)
    project.script(CREATE_STAFF, STAFF)
    return project


@contextmanager
def serving_project(project: Project, folder: Path, *command: str) -> Iterator[str]:
    port, log = free_port(), folder / "server.log"
    log.touch()
    with project.start(*(command or ("serve.py",)), str(port), log=log) as server:
        eventually(lambda: "serving" in log.read_text() or not server.alive, PATIENCE)
        assert server.alive, log.read_text()
        yield f"http://127.0.0.1:{port}"


class Person:
    def __init__(self, client: httpx2.Client, name: str) -> None:
        self.client = client
        self.name = name
        response = self.post("/admin/login/", username=name, password=name, next="/admin/")
        assert response.status_code == (302 if name != "ann" else 200), response.text

    def get(self, path: str) -> httpx2.Response:
        return self.client.get(path)

    def page(self, path: str) -> HtmlPage:
        response = self.get(path)
        assert response.status_code == 200, response.text[:3000]
        return HtmlPage(response.text)

    def post(self, path: str, pairs: Sequence[tuple[str, str]] = (), *, token: str | None = None, **fields: str) -> Any:
        """Send a form, with the token of this browser unless another one is given."""
        if "csrftoken" not in self.client.cookies:
            self.client.get("/admin/login/")
        data: dict[str, list[str]] = {"csrfmiddlewaretoken": [token or self.client.cookies["csrftoken"]]}
        for name, value in [*pairs, *fields.items()]:
            data.setdefault(name, []).append(value)
        return self.client.post(path, data=data)

    def submit(self, page: HtmlPage, action: str, **fields: str) -> Any:
        return self.post(
            action, [field for field in page.form(action).fields if field[0] != "csrfmiddlewaretoken"], **fields
        )

    def notice(self, response: Any) -> str:
        """Return the message of the page that a response redirects to."""
        assert response.status_code == 302, response.text
        found = re.search(r'<ul class="messagelist">(.*?)</ul>', self.get(response.headers["location"]).text, re.DOTALL)
        return "" if found is None else HtmlPage(found[1]).text


@contextmanager
def person(url: str, name: str) -> Iterator[Person]:
    with httpx2.Client(base_url=url, timeout=PATIENCE) as client:
        yield Person(client, name)
