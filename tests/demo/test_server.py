"""The demo's server: protection against other origins, and the responses to invalid requests."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import onejob
from tests.cases import for_each
from tests.limited import define
from tests.services import Daemon, eventually

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    os.environ["ONEJOB_DEMO_FOLDER"] = str(folder)
    with Daemon([sys.executable, "-m", "onejob.demo.server", "0"], log=folder / "log", cwd=folder):
        del os.environ["ONEJOB_DEMO_FOLDER"]
        port = folder / "port"
        eventually(port.exists, timeout=100)
        yield f"http://127.0.0.1:{port.read_text()}/"


def fetch(address: str, body: object = None, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], Any]:
    data = None if body is None else json.dumps(body).encode()
    http_request = urllib.request.Request(address, data=data, headers=headers or {})  # noqa: S310 - the server of this test
    try:
        with urllib.request.urlopen(http_request, timeout=30) as response:  # noqa: S310
            return response.status, dict(response.headers), response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def submission(project: object) -> dict[str, Any]:
    return {"task": "study_plan", "kwargs": {"project": project}}


def test_the_page_has_a_strict_policy(url: str) -> None:
    """The page's headers forbid external scripts and styles, framing and MIME sniffing."""
    status, headers, content = fetch(url)
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert b"Generate study plan" in content


@for_each("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_forms_are_refused(url: str, kind: str) -> None:
    """A webhook with a content type of HTML forms is refused, as it is by the routes of the API."""
    assert fetch(f"{url}webhooks", {"project": "x"}, {"content-type": kind})[0] == 415


@for_each("path", ["", "jobs", "meter", "static/app.js"])
def test_other_host_names_are_refused(url: str, path: str) -> None:
    """A request with a host name that is not local is refused, which prevents DNS rebinding."""
    assert fetch(f"{url}{path}", headers={"host": "evil.example"})[0] == 403


def test_the_meter_counts_requests(url: str) -> None:
    """Every submission, equal or not, is counted as one request, and a job that has not run has cost nothing."""
    before = json.loads(fetch(f"{url}meter")[2])["requests"]
    assert [fetch(f"{url}jobs", submission("metered"), JSON)[0] for _ in range(3)] == [202, 200, 200]
    meter = json.loads(fetch(f"{url}meter")[2])
    assert meter == {"requests": before + 3, "provider_calls": 0, "provider_calls_without": 0, "waiting": {}}


def test_the_meter_says_what_copies_wait_for(url: str, folder: Path) -> None:
    """Of two copies to print for a customer one has room, and the meter says what the other one waits for."""
    with onejob.Client(f"sqlite:///{folder}/ledger.db") as client:
        define(client._ledger, [onejob.Limit("customer", running=1)])
    for number in (1, 2):
        copy = {"task": "print_copy", "kwargs": {"customer": "metered", "copy": number}}
        assert fetch(f"{url}jobs", copy, JSON)[0] == 202
    assert json.loads(fetch(f"{url}meter")[2])["waiting"] == {"waits for customer=metered": 1}


@for_each("project", ["", "a/b", "x" * 65, "<script>", 7])
def test_bad_names_are_refused(url: str, project: object) -> None:
    """A project name with other characters than letters, digits, space and _.- is refused with 422."""
    assert fetch(f"{url}jobs", submission(project), JSON)[0] == 422
