"""The laws of the demo's server: what a foreign page cannot do, and what a wrong request gets."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from tests.services import Daemon, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a server without a worker."""
    folder = tmp_path_factory.mktemp("server")
    os.environ["ONEJOB_DEMO_FOLDER"] = str(folder)
    server = Daemon([sys.executable, "-m", "onejob.demo.server", "0"], log=folder / "log", cwd=folder)
    del os.environ["ONEJOB_DEMO_FOLDER"]
    port = folder / "port"
    eventually(port.exists, timeout=30)
    yield f"http://127.0.0.1:{port.read_text()}/"
    server.process.kill()
    server.process.wait()


def ask(address: str, body: object = None, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], Any]:
    """Return status, headers and content of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data=data, headers=headers or {})  # noqa: S310 - our own server
    try:
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
            return response.status, dict(response.headers), response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def submission(project: object) -> dict[str, Any]:
    """Return the body by which the page asks for a plan."""
    return {"task": "study_plan", "kwargs": {"project": project}}


def test_the_page_has_a_strict_policy(url: str) -> None:
    """The page forbids scripts and styles from elsewhere, framing and sniffing."""
    status, headers, content = ask(url)
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert b"Generate study plan" in content


@pytest.mark.parametrize("path", ["jobs", "callbacks"])
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_forms_are_refused(url: str, path: str, kind: str) -> None:
    """What a form on a foreign page can send starts nothing."""
    assert ask(f"{url}{path}", {"project": "x"}, {"content-type": kind})[0] == 415


@pytest.mark.parametrize("path", ["", "jobs", "meter", "static/app.js"])
def test_foreign_names_are_refused(url: str, path: str) -> None:
    """A request under another host name than the local ones is refused, so no foreign name can be pointed here."""
    assert ask(f"{url}{path}", headers={"host": "evil.example"})[0] == 403


def test_the_job_api_is_there(url: str) -> None:
    """The first submission for a project is admitted, an equal one attached to the same job, and a look finds it."""
    first, _, one = ask(f"{url}jobs", submission("twice"), JSON)
    second, _, two = ask(f"{url}jobs", submission("twice"), JSON)
    one, two = json.loads(one), json.loads(two)
    assert (first, one["outcome"]) == (202, "admitted")
    assert (second, two["outcome"]) == (200, "attached")
    assert one["job"]["id"] == two["job"]["id"]
    assert json.loads(ask(f"{url}jobs/{one['job']['id']}")[2])["duplicate_count"] == 1


def test_the_meter_counts_requests(url: str) -> None:
    """Every submission is one request of the bill, whether it was admitted or not; what nobody ran has cost nothing."""
    before = json.loads(ask(f"{url}meter")[2])["requests"]
    for _ in range(3):
        ask(f"{url}jobs", submission("metered"), JSON)
    meter = json.loads(ask(f"{url}meter")[2])
    assert meter == {"requests": before + 3, "provider_calls": 0, "provider_calls_without": 0}


@pytest.mark.parametrize("project", ["", "a/b", "x" * 65, "<script>", 7])
def test_bad_names_are_refused(url: str, project: object) -> None:
    """A project name with other characters than letters, digits, space and _.- is refused with 422."""
    assert ask(f"{url}jobs", submission(project), JSON)[0] == 422


def test_a_call_back_is_taken_twice(url: str) -> None:
    """The call at the end of a plan may come again, and is answered alike."""
    answers = [ask(f"{url}webhooks", {"job": "j", "project": "p", "cards": 1}, JSON) for _ in range(2)]
    assert [(status, json.loads(content)) for status, _, content in answers] == [(200, {"ok": True})] * 2
