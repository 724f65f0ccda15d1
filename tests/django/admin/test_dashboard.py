"""The dashboard in a Django project: as a URL under WSGI and ASGI, and beside Django in `asgi.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.django.admin.conftest import Shop
from tests.django.admin.staff import CREATE_STAFF, PATIENCE, SETTINGS, person, serving_project
from tests.django.project import Project, sqlite
from tests.pages.browser import SAME_ORIGIN
from tests.services import eventually

BASE, BESIDE = "/ops/jobs", "/live-jobs"
WITHOUT = """
import importlib.util, sys
sys.modules["fastapi"] = None
import django
django.setup()
from django.conf import settings
from django.core import checks
from django.contrib import admin
from django.urls import path
from onejob.django.models import Job
plain = sys.modules["plain_urls"] = type(sys)("plain_urls")
plain.urlpatterns = [path("admin/", admin.site.urls)]
settings.ROOT_URLCONF = "plain_urls"
hints = [each.id for each in checks.run_checks() if each.id == "onejob.I001"]
print(json.dumps([admin.site.is_registered(Job), hints]))
"""

HIDDEN = """
from django.contrib.auth.models import User
from django.test import Client
from django.test.utils import override_settings
client = Client(headers={"host": "127.0.0.1"})
client.force_login(User.objects.get(username="root"))
with override_settings(ONEJOB_REDACT="shop.privacy.redact"):
    found = [client.get(path) for path in json.loads(sys.argv[1])]
print(json.dumps([[each.status_code, each.content.decode()] for each in found]))
"""
ATOMIC = """
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
import shop.tasks
job = shop.tasks.greet.apply_async(("ann",), countdown=600)
client = Client(headers={"host": "127.0.0.1"})
client.force_login(User.objects.get(username="root"))
atomic = []
def note(execute, *call):
    atomic.append(connection.in_atomic_block)
    return execute(*call)
with connection.execute_wrapper(note):
    client.post(f"/admin/onejob/job/{job.id}/operate/", {"operation": "cancel"})
    seen = [client.get(path).status_code for path in ("/admin/onejob/job/", "/ops/jobs/jobs")]
print(json.dumps([any(atomic), job.job.state, seen]))
"""
LOGIN = """
from django.test.utils import override_settings
from onejob.django.dashboard import _login_url
found = [_login_url()]
with override_settings(ROOT_URLCONF="onejob.django.urls", LOGIN_URL="/enter/"):
    found.append(_login_url())
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def asgi(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving_project(shop.project, tmp_path_factory.mktemp("asgi"), "serve_asgi.py") as url:
        eventually(lambda: answers(url), PATIENCE)
        yield url


def answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/admin/login/", timeout=PATIENCE).status_code == 200
    except httpx2.TransportError:
        return False


def check_pages(shop: Shop, url: str, base: str) -> None:
    """Check that the dashboard works below a path for users with and without permissions."""
    with person(url, "olga") as olga:
        for path in ("/", "/jobs", "/audit"):
            assert olga.get(base + path).status_code == 200, path
        job_id = shop.job("mounted")
        page = olga.page(f"{base}/jobs/{job_id}")
        assert "olga" in page.text
        form = page.form(f"{base}/operate/{job_id}")
        sent = olga.client.post(form.action, data=dict(form.fields) | {"operation": "cancel"}, headers=SAME_ORIGIN)
        assert (sent.status_code, sent.headers["location"]) == (303, f"{base}/jobs/{job_id}")
        assert "canceled now" in olga.page(f"{base}/jobs/{job_id}").text
        assert "canceled now" not in olga.page(f"{base}/jobs/{job_id}").text
        assert shop.sample.ledger.get(job_id).reason == "canceled on the dashboard by olga"
        assert olga.client.post(form.action, data={"operation": "cancel"}, headers=SAME_ORIGIN).status_code == 403
        assert olga.get(f"{base}/edit/{shop.sample.named['failed']}").status_code == 403
    with person(url, "rita") as rita:
        page = rita.page(f"{base}/jobs/{shop.sample.named['queued']}")
        assert 'value="cancel"' not in page.source
        style = next(word for word in page.source.split('"') if word.endswith("style.css"))
        assert rita.get(style).headers["content-type"] == "text/css; charset=utf-8"
    with person(url, "eve") as eve:
        assert eve.get(f"{base}/edit/{shop.sample.named['failed']}").status_code == 200
    with person(url, "ned") as ned:
        assert ned.get(f"{base}/jobs").status_code == 403
    with httpx2.Client(base_url=url, timeout=60) as nobody:
        location = nobody.get(f"{base}/jobs?state=failed").headers["location"]
        assert location.startswith(f"/admin/login/?next={base.replace('/', '%2F')}%2Fjobs")


def test_the_dashboard_is_a_url(shop: Shop, asgi: str) -> None:
    """Below a URL of the project the pages, forms and files work under WSGI and ASGI, by its users' permissions."""
    for url in (shop.url, asgi):
        check_pages(shop, url, BASE)
    with shop.login("rita") as rita:
        live = rita.get(f"{BASE}/live")
        assert live.status_code == 200
        assert "retry: 2000" in live.text


def test_the_dashboard_stands_beside_django(shop: Shop, asgi: str) -> None:
    """In `asgi.py` the dashboard knows the users by Django's session, and open pages listen to a stream."""
    check_pages(shop, asgi, BESIDE)
    with person(asgi, "rita") as rita, rita.client.stream("GET", f"{BESIDE}/live") as response:
        lines = response.iter_lines()
        assert [next(lines), next(lines)] == ["event: change", "data: 1"]


def test_values_are_hidden_everywhere(shop: Shop) -> None:
    """With a function that hides values, neither the admin nor the dashboard shows or searches them."""
    job_id = shop.sample.named["double"]
    paths = [f"/admin/onejob/job/{job_id}/change/", f"{BASE}/jobs/{job_id}", "/admin/onejob/job/?argument=4711"]
    *pages, refused = shop.project.script(HIDDEN, paths)
    for status, text in pages:
        assert status == 200
        assert "hidden arguments" in text
        assert "4711" not in text.replace(job_id, "")
    assert refused[0] == 403
    assert "redacted" in refused[1]


def test_no_page_is_in_the_transaction_of_its_request(tmp_path: Path) -> None:
    """With `ATOMIC_REQUESTS` on the file of the ledger, the admin and the dashboard do not wait for themselves."""
    databases = {"default": sqlite(tmp_path / "shop.db") | {"ATOMIC_REQUESTS": True}}
    project = Project(SETTINGS | {"DATABASES": databases, "CELERY_BROKER_URL": "memory://"})
    project.script(CREATE_STAFF, {})
    assert project.script(ATOMIC) == [False, "canceled", [200, 200]]


def test_without_the_extra_the_admin_says_what_is_missing(shop: Shop) -> None:
    """Without the packages of the pages the project works, and a check says what to install."""
    program: Any = WITHOUT.strip()
    output = shop.project.run("-c", f"import json\n{program}")
    assert output.strip().splitlines()[-1] == '[false, ["onejob.I001"]]'


def test_people_log_in_at_the_admin_or_elsewhere(shop: Shop) -> None:
    """Who is not logged in is sent to the login of the admin, and where there is none to that of the settings."""
    assert shop.project.script(LOGIN) == ["/admin/login/", "/enter/"]
