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


def test_the_page_has_a_strict_policy(url: str) -> None:
    """The page forbids scripts and styles from elsewhere, framing and sniffing."""
    status, headers, content = ask(url)
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert b"Generate study plan" in content


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_forms_are_refused(url: str, kind: str) -> None:
    """What a form on a foreign page can send starts nothing."""
    assert ask(f"{url}api/plans", {"project": "x"}, {"content-type": kind})[0] == 415


def test_foreign_names_are_refused(url: str) -> None:
    """A request under another host name than the local ones is refused, so no foreign name can be pointed here."""
    assert ask(url, headers={"host": "evil.example"})[0] == 400


def test_a_second_request_is_attached(url: str) -> None:
    """The first request for a project is answered 202 and admitted, an equal one 200 and attached to the same job."""
    first, _, one = ask(f"{url}api/plans", {"project": "twice"}, JSON)
    second, _, two = ask(f"{url}api/plans", {"project": "twice"}, JSON)
    one, two = json.loads(one), json.loads(two)
    assert (first, one["outcome"]) == (202, "admitted")
    assert (second, two["outcome"]) == (200, "attached")
    assert one["job"]["id"] == two["job"]["id"]


def test_cancel_frees_the_project(url: str) -> None:
    """After a cancel, a request for the same project is admitted again."""
    job = json.loads(ask(f"{url}api/plans", {"project": "cancel"}, JSON)[2])["job"]
    canceled = json.loads(ask(f"{url}api/jobs/{job['id']}/cancel", {}, JSON)[2])
    assert canceled["state"] == "canceled"
    assert ask(f"{url}api/plans", {"project": "cancel"}, JSON)[0] == 202


@pytest.mark.parametrize("project", ["", "a/b", "x" * 65, "<script>", 7])
def test_bad_names_are_refused(url: str, project: object) -> None:
    """A project name with other characters than letters, digits, space and _.- is refused with 422."""
    assert ask(f"{url}api/plans", {"project": project}, JSON)[0] == 422


def test_an_unknown_job_is_404(url: str) -> None:
    """A job that the ledger does not know is answered with 404 and a sentence."""
    status, _, content = ask(f"{url}api/jobs/nothing")
    assert status == 404
    assert "no job has the id" in json.loads(content)["detail"]
