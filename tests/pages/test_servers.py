"""The dashboard behind servers: in `onejob serve`, in WSGI applications, and without its packages."""

from __future__ import annotations

import multiprocessing
import os
import re
import secrets
from typing import Any

import celery
import flask
import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import RedirectResponse
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

import onejob
from onejob.api.api_keys import KeyFile, Role
from onejob.celery.app_state import app_state_of
from onejob.errors import StoreUnavailableError
from onejob.pages import live
from onejob.pages.app import create_app_with_dashboard
from onejob.pages.endpoints import DELETED, Endpoints
from tests.api.conftest import problem
from tests.api.serving import PATIENCE, serving_wsgi
from tests.cases import for_each
from tests.pages.browser import BASE, SAME_ORIGIN, Browser, HtmlPage
from tests.pages.sample import Sample

ELSEWHERE: tuple[dict[str, Any], ...] = ({"base_url": "http://evil.example"}, {"client": ("203.0.113.9", 1)})


def test_serve_has_the_dashboard_and_the_api(sample: Sample, keys: KeyFile) -> None:
    """The standalone app has the dashboard below /dashboard, to which / leads, and the API, with the same keys."""
    app = create_app_with_dashboard(sample.app)
    browser = Browser(app, base="/dashboard")
    for path in ("/", "/dashboard"):
        response = browser.client.get(path)
        assert (response.status_code, response.headers["location"]) == (307, "/dashboard/")
    for path in ("/", "/jobs", "/workers", f"/jobs/{sample.named['failed']}"):
        assert "/dashboard/jobs" in browser.page(path).links
    assert browser.client.get("/jobs").json()["jobs"]
    assert browser.client.get("/healthz").status_code == 200
    schema = browser.client.get("/openapi.json")
    assert schema.json()["paths"].keys() >= {"/jobs", "/jobs/{job_id}"}
    assert "/dashboard" not in schema.text
    problem(browser.client.get("/nowhere"), 404, "not-found")
    body = {"task": "shop.study_plan", "kwargs": {"project": "over HTTP"}}
    assert browser.client.post("/jobs", json=body).status_code == 202
    app.state.closing.set()  # which ends the streams of both
    assert browser.get("/live").text.startswith("event: change")
    assert browser.get("/live", job=sample.named["running"]).status_code == 200
    keyed = create_app_with_dashboard(sample.app, keys.path)
    browser = Browser(keyed, base="/dashboard", base_url="http://jobs.example.org", client=("203.0.113.9", 1))
    assert browser.get("/").headers["location"] == "/dashboard/login"
    assert browser.post("/login", key=keys.add("ann", Role.READ)).status_code == 303
    browser.page("/jobs")
    assert browser.client.get("/jobs").status_code == 401, "a session opens no route of the API"


def test_an_app_that_exposes_nothing_has_the_dashboard_alone(sample: Sample) -> None:
    """For an app without exposed tasks there are the dashboard and no API; both ways it is for this machine alone."""
    bare = celery.Celery("bare", broker="memory://", set_as_current=False)
    bare.conf.onejob_store = sample.app.conf.onejob_store
    app = create_app_with_dashboard(bare)
    browser = Browser(app, base="/dashboard")
    assert browser.client.get("/").headers["location"] == "/dashboard/"
    assert sample.named["failed"] in browser.page("/jobs", state="failed").source
    problem(browser.client.get("/jobs"), 404, "not-found")
    for path in ("/", "/jobs"):
        assert "frame-ancestors 'none'" in browser.client.get(path).headers["content-security-policy"]
    for served in (app, create_app_with_dashboard(sample.app)):
        for where in ELSEWHERE:
            stranger = Browser(served, base="", **where)
            for path in ("/", "/jobs", "/dashboard", "/dashboard/jobs", "/dashboard/static/x/style.css"):
                assert stranger.get(path).status_code == 403
    app_state_of(bare).ledger.close()


# --- WSGI -------------------------------------------------------------------------------------------------------------


def flask_app(sample: Sample) -> flask.Flask:
    """Return a Flask app that knows who is logged in, with the dashboard below `BASE`."""
    app = flask.Flask("shop")
    app.secret_key = secrets.token_hex()

    @app.get("/login/<name>")
    def login(name: str) -> str:
        flask.session["user"] = name
        return "welcome"

    def authorize(request: Request) -> Any:
        with app.request_context(request.scope["wsgi_environ"]):
            name = flask.session.get("user")
        return RedirectResponse("/login", 303) if name is None else (name, "edit" if name == "eve" else "read")

    pages = onejob.wsgi_dashboard(sample.app, authorize=authorize)
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {BASE: pages})  # type: ignore[method-assign]
    return app


@pytest.fixture
def mounted(sample: Sample) -> Client:
    return Client(DispatcherMiddleware(lambda environ, start: [], {BASE: onejob.wsgi_dashboard(sample.app)}))


def get(client: Client, path: str, *, address: str = "127.0.0.1", host: str = "localhost", **headers: str) -> Any:
    """Visit a page, from this machine unless it says otherwise."""
    environ = {"REMOTE_ADDR": address}
    return client.get(BASE + path, headers=headers, environ_base=environ, base_url=f"http://{host}")


def test_the_pages_work_below_a_prefix(sample: Sample) -> None:
    """Behind a WSGI server pages, links, files and forms work below a prefix, for whom the session of Flask names."""
    with serving_wsgi(flask_app(sample)) as url, httpx2.Client(base_url=url, timeout=PATIENCE) as client:
        assert client.get(f"{BASE}/jobs").headers["location"] == "/login"
        job_id = sample.named["queued"]
        assert client.get("/login/rita").text == "welcome"
        fields = {"operation": "cancel", "csrf_token": "of no page"}
        assert client.post(f"{BASE}/operate/{job_id}", data=fields, headers=SAME_ORIGIN).status_code == 403
        assert client.get("/login/eve").text == "welcome"
        for path in ("/", "/jobs", "/audit"):
            response = client.get(BASE + path)
            assert response.status_code == 200, (path, response.text)
            assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
        (file,) = re.findall(r'href="([^"]+\.css)"', client.get(f"{BASE}/jobs").text)
        assert file.startswith(f"{BASE}/static/")
        assert client.get(file).headers["content-type"] == "text/css; charset=utf-8"
        form = HtmlPage(client.get(f"{BASE}/jobs/{job_id}").text).form(f"{BASE}/operate/{job_id}")
        assert sample.ledger.get(job_id).state == "queued"
        sent = client.post(form.action, data=dict(form.fields) | {"operation": "cancel"}, headers=SAME_ORIGIN)
        assert (sent.status_code, sent.headers["location"]) == (303, f"{BASE}/jobs/{job_id}")
        assert sample.ledger.get(job_id).state == "canceled"
        assert sample.audited("actor", "address") == [("eve", "127.0.0.1")]


@for_each("status, request_", [
    (200, {}), (403, {"address": "192.0.2.7"}), (403, {"address": ""}), (403, {"host": "rebound.example"}),
    (403, {"X-Forwarded-For": "203.0.113.9"}),
])  # fmt: skip
def test_without_a_hook_only_this_machine_is_served(mounted: Client, status: int, request_: dict[str, str]) -> None:
    """Without `authorize` and keys a request from another address, through a proxy, or to another host, is refused."""
    assert get(mounted, "/jobs", **request_).status_code == status
    for odd in ({"PATH_INFO": f"{BASE}/jobs/\xff"}, {"QUERY_STRING": "task=\xe9"}):  # neither UTF-8 nor ASCII
        assert mounted.get(f"{BASE}/jobs", environ_overrides=odd).status_code == 400


def test_an_open_page_asks_again(mounted: Client, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """The live stream ends at once: with a change, or without one since what the browser has seen."""
    monkeypatch.setattr(live, "QUIET_SECONDS", 1e12)

    def ask(query: str, seen: str = "") -> tuple[str, str]:
        response = get(mounted, f"/live{query}", **({"Last-Event-ID": seen} if seen else {}))
        assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        fields = dict(line.split(": ", 1) for line in response.text.splitlines() if line)
        assert fields["retry"] == "2000"
        return fields["event"], fields["id"]

    job_id = sample.named["queued"]
    for query in ("", f"?job={job_id}"):
        event, seen = ask(query)
        assert (event, ask(query, seen)) == ("change", ("current", seen))
    assert ask("", "another")[0] == "change"
    sample.ledger.cancel(job_id)
    event, seen = ask(query, seen)
    assert event == "change"
    sample.ledger.delete(job_id)
    assert ask(query, seen) == ("change", DELETED)
    assert get(mounted, f"/live{query}", **{"Last-Event-ID": DELETED}).status_code == 410

    def fail() -> dict[str, float]:
        raise StoreUnavailableError("it is away")

    monkeypatch.setattr(Endpoints, "_read_version", lambda *_: fail())
    assert get(mounted, "/live").text == "retry: 2000\n\n", "no event, so that the browser goes on asking"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_server_may_fork_after_the_app_was_made(mounted: Client) -> None:
    """A server that has served a request, and then forks, serves in its children as well."""
    assert get(mounted, "/jobs").status_code == 200
    context = multiprocessing.get_context("fork")
    reading, writing = context.Pipe(duplex=False)

    def serve() -> None:
        writing.send(get(mounted, "/jobs").status_code)
        writing.close()
        os._exit(0)

    child = context.Process(target=serve)
    child.start()
    try:
        assert reading.poll(PATIENCE)
        assert reading.recv() == 200
    finally:
        child.kill()
        child.join(PATIENCE)
