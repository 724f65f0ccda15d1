"""Mounting the API in an app, serving it standalone, and the configurations that it refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import celery
import pytest
from click.testing import CliRunner
from fastapi import FastAPI
from starlette.testclient import TestClient

import onejob
from onejob.api import create_app, router
from onejob.api.server import check_host
from onejob.cli import main
from onejob.errors import ConfigurationError
from tests.cases import for_each
from tests.http.conftest import LOCAL, problem
from tests.http.shop import build

NO_SERVER = """
import sys
for name in ("fastapi", "pydantic", "starlette", "uvicorn"):
    sys.modules[name] = None
import onejob, onejob.cli
from click.testing import CliRunner
print(CliRunner().invoke(onejob.cli.main, ["serve", "shop:app"]).output)
"""

ASK = f"""
import sys
from starlette.testclient import TestClient
from onejob.api import create_app
import shop
with TestClient(create_app(shop.app), **{LOCAL}) as client:
    for body in sys.argv[1:]:
        print(client.post("/jobs", content=body, headers={{"content-type": "application/json"}}).status_code)
"""


USE_TENANTS = """
from starlette.testclient import TestClient
import web
client = TestClient(web.web)

def call(user, path, body=None):
    headers = {"x-token": f"token-{user}"}
    return client.get(path, headers=headers) if body is None else client.post(path, json=body, headers=headers)

mine, others = (call(user, "/orders/7/invoice", {}).json() for user in (1, 2))
body = {"task": "shop.invoice", "kwargs": {"order_id": 7}}
print(call(1, "/v1/jobs", body).json()["job"]["id"] == mine, mine == others)
print(*(call(user, f"/v1/jobs/{mine}").status_code for user in (1, 2, 3)))
print(call(1, f"/v1/jobs/{mine}/redrive", {}).status_code, call(9, "/v1/jobs").status_code)
"""
"""What the users of the guide's second app do."""


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_one_line_mounts_the_api(celery_app: celery.Celery, prefix: str) -> None:
    """Mounted in an app, the API responds under its prefix, errors included, and does not affect other routes."""
    app = FastAPI()
    app.include_router(router(celery_app, prefix=prefix))
    app.get("/own")(lambda: {"mine": True})
    with TestClient(app) as client:
        response = client.post(f"{prefix}/jobs", json={"task": "shop.invoice", "kwargs": {"order_id": 7}})
        assert response.headers["location"] == f"{prefix}/jobs/{response.json()['job']['id']}"
        assert client.get(response.headers["location"]).status_code == 200
        problem(client.post(f"{prefix}/jobs", json={"task": "shop.invoice"}), 422, "invalid-request")
        problem(client.get(f"{prefix}/jobs/x"), 404, "job-not-found")
        assert client.get("/own").json() == {"mine": True}
        assert client.get("/nowhere").json() == {"detail": "Not Found"}


def test_two_routers_are_independent(tmp_path: Path) -> None:
    """The routers of two Celery apps can be mounted in one app; each accepts only its own tasks."""
    first, second = (build(f"sqlite:///{tmp_path / name}.db") for name in "ab")

    def other(word: str) -> None: ...

    define: Any = second.task
    define(name="other.task", base=onejob.Task, shared=False, expose=True)(other)
    routers = router(first, prefix="/a"), router(second, prefix="/b")
    app = FastAPI()
    for each in routers:
        app.include_router(each)
    with TestClient(app) as client:
        body = {"task": "other.task", "kwargs": {"word": "x"}}
        assert client.post("/a/jobs", json=body).status_code == 422
        assert client.post("/b/jobs", json=body).status_code == 202


@for_each("name, value", [
    ("accept_content", ["json", "pickle"]), ("accept_content", ["application/x-python-serialize"]),
    ("accept_content", ["application/x-yaml"]), ("accept_content", ["json", "dill"]), ("accept_content", ["marshal"]),
    ("result_accept_content", ["pickle"]), ("task_serializer", "marshal"), ("result_serializer", "yaml"),
    ("event_serializer", "pickle"),
])  # fmt: skip
def test_formats_other_than_json_are_refused(tmp_path: Path, name: str, value: Any) -> None:
    """An app that reads or writes anything but JSON cannot be exposed over HTTP."""
    app = build(f"sqlite:///{tmp_path / 'l.db'}", **{name: value})
    for start in (router, create_app):
        with pytest.raises(ConfigurationError, match=f"{name} has .*: a message in another format"):
            start(app)


def test_the_media_type_of_json_is_accepted(tmp_path: Path) -> None:
    """An app that names JSON by its media type can be exposed over HTTP."""
    router(build(f"sqlite:///{tmp_path / 'l.db'}", accept_content=["application/json"], result_accept_content=["json"]))


def test_an_app_without_exposed_tasks_is_refused(tmp_path: Path) -> None:
    """A router for an app without exposed tasks is a `ConfigurationError`."""
    app = celery.Celery("closed", broker="memory://", set_as_current=False)
    app.conf.onejob_store = f"sqlite:///{tmp_path / 'l.db'}"
    with pytest.raises(ConfigurationError, match="exposes no task"):
        router(app)


def test_unsupported_type_hints_are_refused(tmp_path: Path) -> None:
    """A type hint that cannot be validated as JSON is a `ConfigurationError` when the router is created."""
    app = build(f"sqlite:///{tmp_path / 'l.db'}")

    def odd(a: subprocess.Popen[bytes]) -> None: ...

    define: Any = app.task
    define(name="odd", base=onejob.Task, shared=False, expose=True)(odd)
    with pytest.raises(ConfigurationError, match="task odd is exposed, but its type hints"):
        router(app)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1", "example.org", ""])  # noqa: S104 - that it is refused is the point
def test_without_keys_the_server_binds_to_loopback(host: str) -> None:
    """Without API keys the server refuses every other address, and the error says how to create keys."""
    with pytest.raises(ConfigurationError, match="onejob keys add"):
        check_host(host, None)


@pytest.mark.parametrize(
    ("client", "host", "status"),
    [
        ("127.0.0.1", "127.0.0.1:8000", 200), ("::1", "[::1]:8000", 200), ("127.0.0.1", "LOCALHOST", 200),
        ("127.0.0.1", "evil.example", 403), ("127.0.0.1", "localhost.evil.example", 403), ("127.0.0.1", "", 403),
        ("203.0.113.9", "localhost", 403), ("testclient", "localhost", 403),
    ],
)  # fmt: skip
def test_without_keys_only_local_requests_are_accepted(
    celery_app: celery.Celery, client: str, host: str, status: int
) -> None:
    """Without API keys the app accepts only requests from the same machine, to a local host name."""
    with TestClient(create_app(celery_app), **LOCAL | {"client": (client, 1)}) as test:
        assert test.get("/jobs", headers={"host": host}).status_code == status


def test_the_server_is_an_optional_dependency() -> None:
    """Without FastAPI, pydantic and uvicorn the library works, and `onejob serve` names what to install."""
    run = subprocess.run([sys.executable, "-c", NO_SERVER], capture_output=True, text=True, check=True)
    assert 'pip install "onejob[server]"' in run.stdout


def test_serve_reports_configuration_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`onejob serve` reports a configuration error in one sentence."""
    (tmp_path / "elsewhere.py").write_text("import celery\napp = celery.Celery('x', broker='memory://')\n")
    monkeypatch.syspath_prepend(tmp_path)
    run = CliRunner().invoke(main, ["serve", "elsewhere:app"])
    assert run.exit_code == 1
    assert "onejob has no store" in run.output
    assert "loopback only" in run.output


def _write_shop(directory: Path) -> tuple[str, list[str]]:
    """Write the app of docs/guides/api.md as `shop.py`; return that page and its blocks of Python."""
    page = (Path(__file__).parents[2] / "docs" / "guides" / "api.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    settings = f"\napp.conf.onejob_store = 'sqlite:///{directory / 'l.db'}'\n\n@app.task"
    shop = blocks[0].replace("redis://localhost:6379/0", "memory://").replace("\n@app.task", settings)
    (directory / "shop.py").write_text(shop)
    return page, blocks


def test_the_guides_tenants_are_separate(tmp_path: Path) -> None:
    """In the app with users of docs/guides/api.md, a user has the same job by both routes, and sees no other."""
    _, blocks = _write_shop(tmp_path)
    (web,) = [block for block in blocks if block.startswith("# web.py")]
    (tmp_path / "web.py").write_text(web)
    run = subprocess.run([sys.executable, "-c", USE_TENANTS], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "False", "200", "404", "200", "403", "401"], run.stderr


def test_the_guides_example_works(tmp_path: Path) -> None:
    """The task in docs/guides/api.md can be served, and accepts the requests of that page."""
    page, _ = _write_shop(tmp_path)
    bodies = re.findall(r"localhost:8000/jobs -H 'content-type: application/json' -d '(.*?)'", page)
    run = subprocess.run([sys.executable, "-c", ASK, *bodies], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["202", "200"], run.stderr
