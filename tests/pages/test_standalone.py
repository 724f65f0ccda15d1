"""The dashboard in `onejob serve`, in another app, and without its packages."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import celery
import pytest
from starlette.testclient import TestClient

import onejob
from onejob.api.api_keys import KeyFile, Role
from onejob.celery.app_state import app_state_of
from onejob.pages.standalone import create_app_with_dashboard
from tests.http.conftest import problem
from tests.pages.browser import LOCAL, Browser

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pages.sample import Sample

PACKAGES = ("fastapi", "starlette", "jinja2", "uvicorn", "pydantic")


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    """Return a key file with one key."""
    file = KeyFile(tmp_path / "keys.json")
    file.add("other", Role.READ)
    return file


def test_serve_has_the_dashboard_and_the_api(sample: Sample) -> None:
    """The standalone app has the dashboard below /dashboard, to which / leads, and the API where it was."""
    browser = Browser(create_app_with_dashboard(sample.app), base="/dashboard")
    for path in ("/", "/dashboard"):
        response = browser.client.get(path)
        assert (response.status_code, response.headers["location"]) == (307, "/dashboard/")
    for path in ("/", "/jobs", "/workers", f"/jobs/{sample.named['failed']}"):
        assert "/dashboard/jobs" in browser.page(path).links
    assert browser.client.get("/jobs").json()["jobs"]
    assert browser.client.get("/healthz").status_code == 200
    assert browser.client.get("/openapi.json").json()["paths"].keys() >= {"/jobs", "/jobs/{job_id}"}
    assert "/dashboard" not in browser.client.get("/openapi.json").text
    problem(browser.client.get("/nowhere"), 404, "not-found")
    body = {"task": "shop.study_plan", "kwargs": {"project": "over HTTP"}}
    assert browser.client.post("/jobs", json=body).status_code == 202


def test_serve_asks_for_the_same_keys(sample: Sample, keys: KeyFile) -> None:
    """With keys people log in with the keys of the API, and the cookie of their session opens no API route."""
    app = create_app_with_dashboard(sample.app, keys.path)
    browser = Browser(app, base="/dashboard", base_url="http://jobs.example.org", client=("203.0.113.9", 1))
    assert browser.get("/").headers["location"] == "/dashboard/login"
    assert browser.post("/login", key=keys.add("ann", Role.READ)).status_code == 303
    browser.page("/jobs")
    assert browser.client.get("/jobs").status_code == 401


def test_serve_without_keys_is_for_this_machine(sample: Sample) -> None:
    """Without keys the dashboard of the standalone app is closed to other machines and other names."""
    app = create_app_with_dashboard(sample.app)
    for where in ({"base_url": "http://evil.example"}, {"client": ("203.0.113.9", 1)}):
        client = TestClient(app, **(LOCAL | where), follow_redirects=False)
        for path in ("/", "/dashboard", "/dashboard/", "/dashboard/jobs", "/dashboard/static/x/style.css"):
            assert client.get(path).status_code == 403


def test_an_app_that_exposes_nothing_has_the_dashboard_alone(sample: Sample) -> None:
    """For an app without exposed tasks there are the dashboard and no API, guarded in the same way."""
    bare = celery.Celery("bare", broker="memory://", set_as_current=False)
    bare.conf.onejob_store = sample.app.conf.onejob_store
    app = create_app_with_dashboard(bare)
    browser = Browser(app, base="/dashboard")
    assert browser.client.get("/").headers["location"] == "/dashboard/"
    assert sample.named["failed"] in browser.page("/jobs", state="failed").source
    problem(browser.client.get("/jobs"), 404, "not-found")
    for path in ("/", "/jobs"):
        assert "frame-ancestors 'none'" in browser.client.get(path).headers["content-security-policy"]
        assert Browser(app, base="", base_url="http://evil.example").get(path).status_code == 403
    app_state_of(bare).ledger.close()


def test_a_shutdown_closes_both(sample: Sample) -> None:
    """The event that ends the streams of the API ends those of the dashboard."""
    app = create_app_with_dashboard(sample.app)
    app.state.closing.set()
    browser = Browser(app, base="/dashboard")
    assert browser.get("/live").text.startswith("event: change")
    assert browser.get("/live", job=sample.named["running"]).status_code == 200


def test_the_library_does_not_import_the_dashboard() -> None:
    """`import onejob` imports none of the packages of the dashboard."""
    code = f"import sys, onejob; print([name for name in {PACKAGES!r} if name in sys.modules])"
    assert run(code) == "[]"


@pytest.mark.parametrize("package", ["fastapi", "jinja2", "starlette"])
def test_the_dashboard_names_what_it_needs(package: str) -> None:
    """Without one of its packages `onejob.dashboard` is an ImportError that says what to install."""
    code = f"""
import sys
sys.modules[{package!r}] = None
import onejob
try:
    onejob.dashboard
except ImportError as error:
    print(error.name, error)
"""
    said = run(code)
    assert said.startswith(package)
    assert 'pip install "onejob[server]"' in said


def test_the_dashboard_is_public(sample: Sample) -> None:
    """`onejob.dashboard` is the function of `onejob.pages`, among the public names, and other names do not exist."""
    from onejob import pages

    assert onejob.dashboard is pages.dashboard
    assert "dashboard" in dir(onejob)
    assert onejob.dashboard(sample.app).routes
    with pytest.raises(AttributeError, match="no attribute 'dashbord'"):
        _ = onejob.dashbord


def run(code: str) -> str:
    """Return what a program prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
