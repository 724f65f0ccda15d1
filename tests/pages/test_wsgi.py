"""The dashboard in WSGI applications: below a prefix, behind real servers, with the users of Flask."""

from __future__ import annotations

import multiprocessing
import os
import re
import secrets
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import flask
import httpx2
import pytest
from starlette.responses import RedirectResponse
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

import onejob
from onejob.errors import ConfigurationError, StoreUnavailableError
from onejob.pages import live
from onejob.pages.endpoints import DELETED
from tests.pages.html_page import HtmlPage
from tests.pages.wsgi_server import PATIENCE, SERVERS, serving_wsgi

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

    from tests.pages.sample import Sample

BASE = "/ops"
SAME_ORIGIN = {"sec-fetch-site": "same-origin"}


def flask_app(sample: Sample) -> flask.Flask:
    """Return a Flask app that knows who is logged in, with the dashboard below `BASE`."""
    app = flask.Flask("shop")
    app.secret_key = secrets.token_hex()

    @app.get("/hello")
    def hello() -> str:
        return "hello"

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


@contextmanager
def visitor(url: str, user: str | None = "eve") -> Iterator[httpx2.Client]:
    """Yield a client that keeps its cookies, logged in as a user."""
    with httpx2.Client(base_url=url, timeout=PATIENCE) as client:
        if user is not None:
            assert client.get(f"/login/{user}").text == "welcome"
        yield client


@pytest.fixture
def mounted(sample: Sample) -> Client:
    """Return a client of the dashboard alone, below `BASE`, from this machine."""
    return Client(DispatcherMiddleware(lambda environ, start: [], {BASE: onejob.wsgi_dashboard(sample.app)}))


def get(client: Client, path: str, **headers: str) -> Any:
    """Visit a page from this machine."""
    return client.get(
        BASE + path, headers=headers, environ_base={"REMOTE_ADDR": "127.0.0.1"}, base_url="http://localhost"
    )


@pytest.mark.parametrize("server", SERVERS)
def test_the_pages_work_below_a_prefix(sample: Sample, server: str) -> None:
    """Behind a WSGI server each page, its links, its files and its forms work below the prefix of the dispatcher."""
    with serving_wsgi(flask_app(sample), server) as url, visitor(url) as client:
        assert client.get("/hello").text == "hello"
        for path in ("/", "/jobs", "/duplicates", "/dead", "/tasks", "/workers", "/audit"):
            response = client.get(BASE + path)
            assert response.status_code == 200, (path, response.text)
            assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
        files = re.findall(r'href="([^"]+\.css)"', client.get(f"{BASE}/jobs").text)
        assert [file.startswith(f"{BASE}/static/") for file in files] == [True]
        assert client.get(files[0]).headers["content-type"] == "text/css; charset=utf-8"
        job_id = sample.named["queued"]
        page = HtmlPage(client.get(f"{BASE}/jobs/{job_id}").text)
        form = page.form(f"{BASE}/operate/{job_id}")
        sent = client.post(form.action, data=dict(form.fields) | {"operation": "cancel"}, headers=SAME_ORIGIN)
        assert (sent.status_code, sent.headers["location"]) == (303, f"{BASE}/jobs/{job_id}")
        assert sample.ledger.get(job_id).state == "canceled"
        assert sample.ledger.audit(limit=1)[0].actor == "eve"
        assert sample.ledger.audit(limit=1)[0].address == "127.0.0.1"


def test_the_session_of_flask_decides(sample: Sample) -> None:
    """`authorize` reads the session of Flask: nobody is redirected, and a reader cannot send a form."""
    with serving_wsgi(flask_app(sample)) as url:
        with visitor(url, None) as nobody:
            assert nobody.get(f"{BASE}/jobs").headers["location"] == "/login"
        with visitor(url, "rita") as reader:
            assert reader.get(f"{BASE}/jobs").status_code == 200
            job_id = sample.named["queued"]
            fields = {"operation": "cancel", "csrf_token": reader.cookies["onejob_csrf"]}
            assert reader.post(f"{BASE}/operate/{job_id}", data=fields, headers=SAME_ORIGIN).status_code == 403
            assert sample.ledger.get(job_id).state == "queued"


def test_without_a_hook_only_this_machine_is_served(mounted: Client) -> None:
    """Without `authorize` and keys a request from another address, or to another host, is refused."""
    assert get(mounted, "/jobs").status_code == 200
    assert mounted.get(f"{BASE}/jobs", environ_base={"REMOTE_ADDR": "192.0.2.7"}).status_code == 403
    assert mounted.get(f"{BASE}/jobs", environ_base={"REMOTE_ADDR": ""}).status_code == 403
    local = {"REMOTE_ADDR": "127.0.0.1"}
    assert mounted.get(f"{BASE}/jobs", environ_base=local, base_url="http://rebound.example").status_code == 403


def test_an_open_page_asks_again(mounted: Client, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """The live stream ends at once: with a change, or without one since the version that the browser has seen."""
    monkeypatch.setattr(live, "QUIET_SECONDS", 1e12)

    def ask(query: str, seen: str = "") -> tuple[str, str]:
        response = get(mounted, f"/live{query}", **({"Last-Event-ID": seen} if seen else {}))
        assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        fields = dict(line.split(": ", 1) for line in response.text.splitlines() if line)
        assert fields["retry"] == "2000"
        return fields["event"], fields["id"]

    event, seen = ask("")
    assert (event, ask("", seen)) == ("change", ("current", seen))
    assert ask("", "another")[0] == "change"
    job_id = sample.named["queued"]
    event, seen = ask(f"?job={job_id}")
    assert (event, ask(f"?job={job_id}", seen)) == ("change", ("current", seen))
    sample.ledger.cancel(job_id)
    event, seen = ask(f"?job={job_id}", seen)
    assert event == "change"
    sample.ledger.delete(job_id)
    assert ask(f"?job={job_id}", seen) == ("change", DELETED)
    assert get(mounted, f"/live?job={job_id}", **{"Last-Event-ID": DELETED}).status_code == 410


def test_a_change_of_the_ledger_is_a_new_version(sample: Sample) -> None:
    """A submission, and the time after which pages reload anyway, give the ledger another version."""
    version = live.read_version(sample.ledger)
    assert live.read_version(sample.ledger) == version
    sample.submit("shop.study_plan", project="another")
    assert live.read_version(sample.ledger) != version


def test_while_the_store_is_away_pages_ask_again(
    mounted: Client, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the store does not respond the answer has no event, so that the browser goes on asking."""

    def fail() -> dict[str, float]:
        raise StoreUnavailableError("it is away")

    monkeypatch.setattr(sample.ledger.store, "totals", fail)
    response = get(mounted, "/live")
    assert (response.status_code, response.text) == (200, "retry: 2000\n\n")


def test_a_path_that_is_no_text_is_refused(mounted: Client) -> None:
    """A path that is not UTF-8, or a query with raw bytes, is a bad request and no error of the server."""
    assert mounted.get(BASE, environ_overrides={"PATH_INFO": f"{BASE}/jobs/\xff"}).status_code == 400
    assert mounted.get(f"{BASE}/jobs", environ_overrides={"QUERY_STRING": "task=\xe9"}).status_code == 400


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_server_may_fork_after_the_app_was_made(sample: Sample) -> None:
    """A server that has served a request, and then forks, serves in its children as well."""
    pages = onejob.wsgi_dashboard(sample.app)
    client = Client(DispatcherMiddleware(lambda environ, start: [], {BASE: pages}))
    assert get(client, "/jobs").status_code == 200
    context = multiprocessing.get_context("fork")
    reading, writing = context.Pipe(duplex=False)

    def serve() -> None:
        writing.send(get(client, "/jobs").status_code)
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


def test_a_wrong_call_is_refused(sample: Sample) -> None:
    """`authorize` and `keys` exclude each other, as for the ASGI app."""
    with pytest.raises(ConfigurationError):
        onejob.wsgi_dashboard(sample.app, authorize=lambda _request: None, keys="keys.json")


def test_without_the_extra_its_name_is_in_the_error() -> None:
    """Without a2wsgi the error names the extra, and the rest of the package works."""
    program = (
        "import sys; sys.modules['a2wsgi'] = None; import onejob\n"
        "try: onejob.wsgi_dashboard\n"
        "except ImportError as error: print(error)"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert 'pip install "onejob[wsgi]"' in printed
