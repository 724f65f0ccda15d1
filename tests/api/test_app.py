"""Mounting the API in an app, serving it standalone, and the configurations that it refuses."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import celery
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

import onejob
from onejob.api import create_app, router
from onejob.api.server import check_host
from onejob.celery.app_state import app_state_of
from onejob.errors import ConfigurationError
from onejob.pages.app import create_app_with_dashboard
from tests.api.conftest import LOCAL, Shop, problem
from tests.api.serving import asgi_status
from tests.api.shop import build
from tests.celery.test_async import end
from tests.cli.command import call
from tests.webhooks.receiver import SECRET
from website.blocks import read

PACKAGES = "fastapi starlette jinja2 uvicorn pydantic prometheus_client httpcore2 h11 standardwebhooks".split()
NEEDS = (
    *((package, "onejob.dashboard", "server") for package in ("fastapi", "jinja2", "starlette")),
    ("fastapi", "__import__('onejob.api')", "server"),
    ("opentelemetry", "__import__('onejob.opentelemetry')", "opentelemetry"),
    ("a2wsgi", "onejob.wsgi_dashboard", "wsgi"), ("uvicorn", "run('serve', 'shop:app')", "server"),
    ("prometheus_client", "run('--store', 'sqlite:///none.db', 'metrics')", "metrics"),
)  # fmt: skip
"""A package that is missing, with others of the server; what needs it; and the extra to install."""
WITHOUT = f"""
import os, sys, celery, onejob, onejob.cli.commands
from click.testing import CliRunner
app = celery.Celery("light", broker="memory://", changes={{
    "onejob_store": "sqlite:///unused.db", "onejob_webhook_secrets": [{SECRET!r}]}})
@app.task(name="notify", base=onejob.Task, webhook_url="https://hooks.example/")
def notify(): ...
app.finalize()
assert notify.webhook_url
print([name for name in {PACKAGES!r} if name in sys.modules], flush=True)
def run(*command):
    sys.modules.update(dict.fromkeys({PACKAGES!r}))
    return CliRunner().invoke(onejob.cli.commands.main, command).output
for missing, use, _ in {NEEDS!r}:
    if not os.fork():
        sys.modules[missing] = None
        try:
            print(missing, repr(eval(use)), flush=True)
        except ImportError as error:
            print(error.name, error, flush=True)
        os._exit(0)
    os.wait()
"""
USE_GUIDE = f"""
import sys
from starlette.testclient import TestClient
from onejob.api import create_app
import shop, web

with TestClient(create_app(shop.app), **{LOCAL}) as client:
    for body in sys.argv[1:]:
        print(client.post("/jobs", content=body, headers={{"content-type": "application/json"}}).status_code)

client = TestClient(web.web)

def call(user, path, body=None):
    headers = {{"x-token": f"token-{{user}}"}}
    return client.get(path, headers=headers) if body is None else client.post(path, json=body, headers=headers)

mine, others = (call(user, "/orders/7/invoice", {{}}).json() for user in (1, 2))
body = {{"task": "shop.invoice", "kwargs": {{"order_id": 7}}}}
print(call(1, "/v1/jobs", body).json()["job"]["id"] == mine, mine == others)
print(*(call(user, f"/v1/jobs/{{mine}}").status_code for user in (1, 2, 3)))
print(call(1, f"/v1/jobs/{{mine}}/redrive", {{}}).status_code, call(9, "/v1/jobs").status_code)
"""
"""What the readers of the guide do, and the users of its second app."""


def test_one_line_mounts_the_api(celery_app: celery.Celery, tmp_path: Path) -> None:
    """Mounted in an app, also beside another, the API has its tasks under its prefix, and affects no other route."""

    def other(word: str) -> None: ...

    app = FastAPI()
    for prefix in ("", "/v1", "/v1/{tenant}"):
        app.include_router(router(celery_app, prefix=prefix))
    app.include_router(router(exposing(tmp_path, "other.task", other), prefix="/b"))
    app.get("/own")(lambda: {"mine": True})
    shop, body = Shop(celery_app, TestClient(app, **LOCAL)), {"task": "shop.invoice", "kwargs": {"order_id": 7}}
    for prefix in ("", "/v1"):
        response = shop.post(f"{prefix}/jobs", body)
        assert response.headers["location"] == f"{prefix}/jobs/{response.json()['job']['id']}"
        assert shop.get(response.headers["location"]).status_code == 200
        problem(shop.post(f"{prefix}/jobs", {"task": "shop.invoice"}), 422, "invalid-request")
    for tenant in ("a b", "日本", "50%"):
        location = shop.post(f"/v1/{quote(tenant)}/jobs", body).headers["location"]
        assert location.startswith(f"/v1/{quote(tenant)}/jobs/")
    assert [shop.get(path).json() for path in ("/own", "/nowhere")] == [{"mine": True}, {"detail": "Not Found"}]
    theirs = {"task": "other.task", "kwargs": {"word": "x"}}
    assert [shop.post(*sent).status_code for sent in (("/jobs", theirs), ("/b/jobs", body), ("/b/jobs", theirs))] == [
        422, 422, 202,
    ]  # fmt: skip


def exposing(tmp_path: Path, name: str, body: Any) -> celery.Celery:
    app = celery.Celery("other", broker="memory://", set_as_current=False)
    app.conf.onejob_store = f"sqlite:///{tmp_path / 'l.db'}"
    define: Any = app.task
    define(name=name, base=onejob.Task, shared=False, expose=bool(name))(body)
    return app


# --- configurations -------------------------------------------------------------------------------------------------


FORMATS = (
    ("accept_content", ["json", "pickle"]), ("accept_content", ["application/x-yaml"]),
    ("result_accept_content", ["pickle"]), ("task_serializer", "marshal"), ("result_serializer", "yaml"),
    ("event_serializer", "pickle"),
)  # fmt: skip


def test_an_app_that_cannot_be_exposed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other formats than JSON, no exposed task, hints that are not JSON, and other hosts without keys, are refused."""

    def odd(a: subprocess.Popen[bytes]) -> None: ...

    for name, value in FORMATS:
        given: Any = {name: value}
        app = build(f"sqlite:///{tmp_path / 'l.db'}", **given)
        for start in (router, create_app):
            with pytest.raises(ConfigurationError, match=f"{name} has .*: a message in another format"):
                start(app)
    assert router(build(f"sqlite:///{tmp_path / 'l.db'}", accept_content=["application/json"])).routes
    with pytest.raises(ConfigurationError, match="exposes no task"):
        router(exposing(tmp_path, "", odd))
    with pytest.raises(ConfigurationError, match="task odd is exposed, but its type hints cannot be validated as JSON"):
        router(exposing(tmp_path, "odd", odd))
    for host in ("0.0.0.0", "::", "10.1", "example.org", ""):  # noqa: S104 - that it is refused is the point
        with pytest.raises(ConfigurationError, match="onejob keys add"):
            check_host(host, None)
    (tmp_path / "elsewhere.py").write_text("import celery\napp = celery.Celery('x', broker='memory://')\n")
    monkeypatch.syspath_prepend(tmp_path)
    run = call("serve", "elsewhere:app")
    assert run.exit_code == 1
    assert "onejob has no store" in run.output
    assert "loopback only" in run.output


HERE = {"host": "127.0.0.1:8000"}
PROXIES = (
    "X-Forwarded-For", "X-Forwarded-Proto", "Forwarded", "X-Real-IP", "X-Scheme", "Via", "Client-IP", "CDN-Loop",
    "CF-Connecting-IP", "CF-Ray", "Tailscale-User-Login", "X-Envoy-External-Address", "X-Azure-ClientIP",
    "X-Amzn-Trace-Id", "X-Cloud-Trace-Context",
)  # fmt: skip
EVIL = (
    "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.2", "", "0",
    "evil.example@localhost", "localhost, evil.example",
)  # fmt: skip
NAVIGATION = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
SITES: list[tuple[dict[str, str], int]] = [
    *(({"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": dest}, 403)
      for site in ("cross-site", "same-site")
      for mode, dest in (("no-cors", "image"), ("cors", "empty"), ("navigate", "iframe"), ("navigate", "object"))),
    *(({"sec-fetch-site": site} | NAVIGATION, 200) for site in ("cross-site", "same-site")),
    ({"sec-fetch-site": "cross-site", "sec-purpose": "prefetch"} | NAVIGATION, 403),
    *(({"sec-fetch-site": site, "sec-fetch-mode": "cors"}, 200) for site in ("same-origin", "none")),
]  # fmt: skip
"""What browsers say of requests, which a page of another origin may only send by leading a person here."""
REQUESTS = [
    ("127.0.0.1", HERE, 200), ("::1", {"host": "[::1]:8000"}, 200), ("127.0.0.1", {"host": "LOCALHOST"}, 200),
    *(("127.0.0.1", {"host": host}, 403) for host in EVIL), ("::1", {"host": "evil.example:8000"}, 403),
    ("203.0.113.9", HERE, 403), ("203.0.113.9", {"host": "localhost"}, 403), ("testclient", HERE, 403),
    ("127.0.0.1", {}, 403), *(("127.0.0.1", HERE | {name: "127.0.0.1"}, 403) for name in PROXIES),
    *(("127.0.0.1", HERE | headers, status) for headers, status in SITES),
]  # fmt: skip


def test_where_nobody_authenticates_only_this_machine_is_answered(celery_app: celery.Celery) -> None:
    """An app, a router and a dashboard that know no users answer this machine alone, through no proxy, on each path."""
    mounted, opened, pages = FastAPI(), FastAPI(), FastAPI()
    mounted.include_router(router(celery_app))
    opened.include_router(router(celery_app, open=True))
    pages.mount("", onejob.dashboard(celery_app))
    own = ("/jobs", "/healthz", "/metrics", "/openapi.json")
    for app, paths in (
        (create_app(celery_app), own), (mounted, own[:3]), (opened, own[:3]),
        (pages, ("/jobs", "/palette")),
    ):  # fmt: skip
        for client, headers, status in REQUESTS:
            for path in paths:
                found = asgi_status(app, path, client, headers)
                assert found == (200 if app is opened else status), (path, client, headers)


def test_a_refused_browser_reads_why(celery_app: celery.Celery) -> None:
    """A request that is refused as foreign is told the reason and the ways to let others in; a browser, by a page."""
    pages, reasons = FastAPI(), {
        "its header host is 'shop.example'": {"host": "shop.example"},
        "it has the header x-forwarded-for, as a proxy adds it": {"host": "shop.example", "x-forwarded-for": "1.2.3.4"},
        "its header host is '<b>'": {"host": "<b>"},
        "a page of another origin has sent it (sec-fetch-site: same-site)": {"sec-fetch-site": "same-site"},
    }  # fmt: skip
    pages.mount("/onejob", onejob.dashboard(celery_app))
    for app in (pages, create_app(celery_app), create_app_with_dashboard(celery_app)):
        client = TestClient(app, base_url="http://localhost", client=("127.0.0.1", 5000))
        for reason, headers in reasons.items():
            page = client.get("/onejob/", headers=headers | {"accept": "text/html,*/*;q=0.8"})
            assert (page.status_code, page.headers["content-type"]) == (403, "text/html; charset=utf-8")
            assert reason in html.unescape(page.text)
            assert "<b>" not in page.text
            assert page.headers["x-content-type-options"] == "nosniff"
            data = client.get("/onejob/", headers=headers | {"accept": "application/json"}).json()
            assert reason in data["detail"]
            assert all(word in data["detail"] for word in ("authorize=", "keys=", "caller="))


# --- the command and the guide --------------------------------------------------------------------------------------


def test_the_server_is_an_optional_dependency() -> None:
    """The library imports no package of the server or of webhooks; what needs a missing one names it and its extra."""
    run = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    imported, *said = run.stdout.splitlines()
    assert imported == "[]"
    for (missing, _, extra), line in zip(NEEDS, said, strict=True):
        assert (line.split()[0], re.findall(r"onejob\[(\w+)\]", line)) == (missing, [extra])


def test_the_guides_apps_work(tmp_path: Path) -> None:
    """The task of docs/guides/api.md accepts the requests of that page; the app of api-access.md keeps users apart."""
    guides = Path(__file__).parents[2] / "docs" / "guides"
    page = "".join((guides / name).read_text(encoding="utf-8") for name in ("api.md", "api-access.md"))
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    settings = f"\napp.conf.onejob_store = 'sqlite:///{tmp_path / 'l.db'}'\n\n@app.task"
    shop = blocks[0].replace("redis://localhost:6379/0", "memory://").replace("\n@app.task", settings)
    (tmp_path / "shop.py").write_text(shop)
    (web,) = [block for block in blocks if block.startswith("# web.py")]
    (tmp_path / "web.py").write_text(web)
    bodies = re.findall(r"localhost:8000/jobs -H 'content-type: application/json' -d '(.*?)'", page)
    command = [sys.executable, "-c", USE_GUIDE, *bodies]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["202", "200", "True", "False", "200", "404", "200", "403", "401"], run.stderr


# --- the guide about types and async --------------------------------------------------------------------------------


PLACE = "docs/guides/types-and-async.md"
GUIDE = Path(__file__).parents[2] / PLACE


@pytest.fixture
def guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """Return the Celery app and the web app of the guide, on an SQLite ledger."""
    here = f'"memory://", changes={{"onejob_store": "sqlite:///{tmp_path / "ledger.db"}"}}'
    for name, text in read(PLACE, GUIDE.read_text(encoding="utf-8")).files(only_run=False).items():
        own = text.replace('"redis://localhost:6379/0"', here).replace("task(app,", "task(app, shared=False,")
        (tmp_path / f"{name}.py").write_text(own, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import shop  # type: ignore[import-not-found]
    import web  # type: ignore[import-not-found]

    yield shop.app, web.web
    app_state_of(shop.app).ledger.close()
    for name in ("shop", "web"):
        del sys.modules[name]


def test_the_endpoints_of_the_guide_work(guide: tuple[Any, Any]) -> None:
    """Two clicks are one job, whose result the other endpoint waits for; it is 404 for an id that nobody submitted."""
    app, web = guide
    with TestClient(web) as client:
        first, second = (client.post("/invoices/7", params={"user": "ann"}).json() for _ in range(2))
        assert (first["outcome"], second["outcome"], second["job"]) == ("admitted", "attached", first["job"])
        assert app_state_of(app).ledger.get(first["job"]).submitter == "user:ann"
        end(app, first["job"])
        assert client.get(f"/invoices/{first['job']}").json() == {"state": "completed", "invoice": "done"}
        assert client.get("/invoices/nope").status_code == 404
