"""Security of every route: authentication, cross-origin requests, and responses that are only data.

The routes are read from the app, so that each new route is tested, and must be added to the table of roles.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from onejob.api import create_app
from onejob.api.api_keys import KeyFile, Role
from onejob.api.problems import SECURITY_HEADERS
from onejob.celery.app_state import app_state_of
from onejob.jobs.lifecycle import FINAL
from onejob.jobs.records import Query
from tests.cases import for_each
from tests.http.conftest import LOCAL, Shop, problem
from tests.http.shop import build
from tests.http.test_api_keys import bearer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

ROLES: dict[tuple[str, str], Role | None] = {
    ("POST", "/jobs"): Role.SUBMIT,
    ("GET", "/jobs"): Role.READ,
    ("GET", "/jobs/{job_id}"): Role.READ,
    ("GET", "/jobs/{job_id}/events"): Role.READ,
    ("GET", "/jobs/{job_id}/duplicates"): Role.READ,
    ("GET", "/jobs/{job_id}/history"): Role.READ,
    ("GET", "/jobs/{job_id}/explanation"): Role.OPERATE,
    ("GET", "/duplicates/summary"): Role.READ,
    ("POST", "/duplicates/check"): Role.READ,
    ("GET", "/audit"): Role.OPERATE,
    ("GET", "/dead"): Role.OPERATE,
    ("GET", "/dead/groups"): Role.OPERATE,
    ("POST", "/jobs/bulk"): Role.OPERATE,
    ("POST", "/jobs/{job_id}/run-now"): Role.OPERATE,
    ("DELETE", "/jobs/{job_id}"): Role.OPERATE,
    ("POST", "/jobs/{job_id}/cancel"): Role.OPERATE,
    ("POST", "/jobs/{job_id}/redrive"): Role.OPERATE,
    ("POST", "/dead/redrive"): Role.OPERATE,
    ("GET", "/metrics"): Role.READ,
    ("GET", "/activity"): Role.READ,
    ("GET", "/openapi.json"): Role.READ,
    ("GET", "/healthz"): None,
    ("GET", "/readyz"): None,
}
"""The lowest role that may call each route; None: no API key is required."""


def _routes() -> list[tuple[str, str]]:
    """Return the method and path of every route of the app."""
    app = create_app(build("sqlite:////nowhere/ledger.db"))
    found: list[tuple[str, str]] = []
    for each in _all(app.routes):
        methods = sorted(each.methods or ()) if isinstance(each, APIRoute) else ["?"]
        found += [(method, getattr(each, "path", repr(each))) for method in methods]
    return found


def _all(routes: list[Any]) -> Iterator[Any]:
    for each in routes:
        inner = getattr(each, "original_router", None)
        yield from _all(inner.routes) if inner is not None else [each]


ROUTES = _routes()
GUARDED = [route for route in ROUTES if ROLES.get(route, Role.OPERATE) is not None]
POSTS = [path for method, path in ROUTES if method == "POST"]
"""What a form of another site could send. For a DELETE, a browser asks the server before."""
UNKNOWN_KEY = "onejob_" + "x" * 43
STRANGERS: dict[str, list[tuple[str, str | bytes]]] = {
    "nothing": [],
    "an empty header": [("authorization", "")],
    "no text": [("authorization", "Bearer")],
    "a blank": [("authorization", "Bearer ")],
    "a short text": [("authorization", "Bearer x")],
    "an unknown key": [("authorization", f"Bearer {UNKNOWN_KEY}")],
    "a prefix": [("authorization", "bearer onejob_")],
    "a password": [("authorization", "Basic eDp4")],
    "Latin-1": [("authorization", b"Bearer \xe4")],
    "NUL": [("authorization", b"Bearer \x00")],
    "very long": [("authorization", "Bearer " + "x" * 60_000)],
    "a cookie": [("cookie", f"authorization={UNKNOWN_KEY}; session={UNKNOWN_KEY}")],
    "another header": [("x-api-key", UNKNOWN_KEY), ("proxy-authorization", f"Bearer {UNKNOWN_KEY}")],
    "a local address in a header": [
        ("x-forwarded-for", "127.0.0.1"), ("forwarded", "for=127.0.0.1"), ("x-real-ip", "::1"),
    ],
    "a local name in a header": [("x-forwarded-host", "localhost"), ("x-original-url", "/healthz")],
    "an open path in a header": [("x-rewrite-url", "/healthz"), ("x-forwarded-prefix", "/healthz")],
}  # fmt: skip


def path_of(path: str, job_id: str = "x") -> str:
    """Return a route's path with an id in it."""
    return path.format(job_id=job_id)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> KeyFile:
    """Return a key file."""
    return KeyFile(tmp_path_factory.mktemp("api") / "keys.json")


@pytest.fixture(scope="module")
def celery_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Celery]:
    """Return the app of this module."""
    app = build(f"sqlite:///{tmp_path_factory.mktemp('api') / 'ledger.db'}")
    yield app
    app_state_of(app).ledger.close()


@pytest.fixture(scope="module")
def shop(celery_app: Celery) -> Iterator[Shop]:
    """Return the shop with an API without API keys."""
    with TestClient(create_app(celery_app), raise_server_exceptions=False, **LOCAL) as client:
        yield Shop(celery_app, client)


@pytest.fixture
def clean(celery_app: Celery) -> None:
    """Delete the jobs of other tests."""
    ledger = app_state_of(celery_app).ledger
    ids = [job.id for job in ledger.find(Query(limit=10_000))]
    for job_id in ids:
        ledger.cancel(job_id)
    ledger.store.delete(ids, sources=FINAL)


@pytest.fixture(scope="module")
def texts(file: KeyFile) -> dict[Role, str]:
    """Return a key of each role."""
    return {role: file.add(f"the {role} key", role) for role in Role}


@pytest.fixture(scope="module")
def client(celery_app: Celery, file: KeyFile, texts: dict[Role, str]) -> Iterator[TestClient]:
    """Return a remote client that sends no key by default."""
    with TestClient(create_app(celery_app, keys=file.path), raise_server_exceptions=False) as client:
        yield client


def call_route(client: TestClient, route: tuple[str, str], headers: Any = None, **more: Any) -> Any:
    """Send a request to a route."""
    method, path = route
    if method == "POST" and not more:
        more = {"json": {}}
    return client.request(method, path_of(path), headers=headers, **more)


# --- authentication and roles -----------------------------------------------------------------------------------------


def test_every_route_has_a_role() -> None:
    """Each route of the app is in the table of roles, and the app has no other routes."""
    assert sorted(ROUTES) == sorted(ROLES)


@for_each("route", ROUTES)
def test_a_role_may_do_what_it_includes(client: TestClient, texts: dict[Role, str], route: tuple[str, str]) -> None:
    """On every route a lower role is 403, and the required role and higher ones are accepted."""
    needed = ROLES[route]
    for role, text in texts.items():
        response = call_route(client, route, bearer(text))
        if needed is None or role.includes(needed):
            assert response.status_code in {200, 404, 422}, response.text
        else:
            problem(response, 403, "forbidden")


@for_each("route, who", itertools.product(GUARDED, STRANGERS))
def test_nobody_gets_in_without_a_key(client: TestClient, route: tuple[str, str], who: str) -> None:
    """On every route a request without a valid key is 401 with a challenge."""
    response = call_route(client, route, STRANGERS[who])
    problem(response, 401, "unauthorized")
    assert response.headers["www-authenticate"].startswith("Bearer")


@for_each("route, first", itertools.product(GUARDED, [True, False]))
def test_two_keys_are_none(client: TestClient, texts: dict[Role, str], route: tuple[str, str], first: bool) -> None:
    """A request with two keys is refused, since a proxy may have checked the other one."""
    keys = [("authorization", f"Bearer {text}") for text in (texts[Role.OPERATE], UNKNOWN_KEY)]
    problem(call_route(client, route, keys[:: 1 if first else -1]), 401, "unauthorized")
    problem(call_route(client, route, [keys[0], keys[0]]), 401, "unauthorized")


@for_each("route", GUARDED)
def test_a_key_in_the_address_is_none(client: TestClient, texts: dict[Role, str], route: tuple[str, str]) -> None:
    """A key in the query is not accepted, since URLs are logged."""
    for name in ("authorization", "access_token", "api_key", "key", "token"):
        problem(call_route(client, route, params={name: texts[Role.OPERATE]}, json={}), 401, "unauthorized")


@pytest.mark.usefixtures("clean")
def test_unauthorized_responses_reveal_nothing(client: TestClient, texts: dict[Role, str]) -> None:
    """A 401 is the same whether or not the job exists, the task is exposed or the body is valid."""
    body = {"task": "shop.invoice", "kwargs": {"order_id": 7}}
    job_id = client.post("/jobs", json=body, headers=bearer(texts[Role.SUBMIT])).json()["job"]["id"]
    responses = [client.get(f"/jobs/{each}") for each in (job_id, "x")]
    responses += [client.post("/jobs", json=each) for each in (body, {"task": "shop.hidden"})]
    responses += [client.post("/jobs", content=each) for each in (b"{", b"x" * 1_000_000)]
    assert {(response.status_code, response.text) for response in responses} == {(401, responses[0].text)}


def test_probes_need_no_key(client: TestClient) -> None:
    """Liveness and readiness probes require no key."""
    assert [client.get(path).status_code for (_, path), role in ROLES.items() if role is None] == [200, 200]


# --- cross-origin requests --------------------------------------------------------------------------------------------


@for_each("kinds, path", itertools.product(
    [[], ["text/plain"], ["application/x-www-form-urlencoded"], ["multipart/form-data; boundary=x"], ["text/json"],
     ["application/jsonp"], ["application/json, text/plain"], ["text/plain; application/json"],
     ["application/json", "text/plain"], ["text/plain", "application/json"], ["application/csp-report"],
     ["text/plain;charset=application/json"], ["application/json-patch+json"]], POSTS))  # fmt: skip
def test_what_a_form_could_send_is_refused(shop: Shop, path: str, kinds: list[str]) -> None:
    """A POST without a JSON content type is refused, so that an HTML form of another site cannot send one."""
    headers = [("content-type", kind) for kind in kinds]
    response = shop.client.post(path_of(path), content=b'{"task": "shop.anything"}', headers=headers)
    problem(response, 415, "wrong-content-type")


@for_each("route, origin", itertools.product(ROUTES, ["https://evil.example", "null", "http://localhost.evil.example"]))
def test_no_page_may_call_across_origins(shop: Shop, route: tuple[str, str], origin: str) -> None:
    """No response allows cross-origin access (CORS), preflight requests included."""
    method, path = route
    asks = {"origin": origin, "access-control-request-method": method, "access-control-request-headers": "content-type"}
    before = shop.client.options(path_of(path), headers=asks)
    assert before.status_code == 405
    responses = [before, call_route(shop.client, route, {"origin": origin, "sec-fetch-site": "cross-site"})]
    assert [name for each in responses for name in each.headers if name.startswith("access-control")] == []


@for_each(
    "host, address",
    [("evil.example", "127.0.0.1"), ("evil.example:8000", "::1"), ("localhost.evil.example", "127.0.0.1"),
     ("127.0.0.1.evil.example", "127.0.0.1"), ("127.0.0.2", "127.0.0.1"), ("", "127.0.0.1"),
     ("localhost", "203.0.113.9"), ("0", "127.0.0.1"), ("evil.example@localhost", "127.0.0.1"),
     ("localhost, evil.example", "127.0.0.1")],
)  # fmt: skip
def test_no_name_can_be_pointed_here(shop: Shop, host: str, address: str) -> None:
    """Without API keys every route refuses other clients and other host names, which prevents DNS rebinding."""
    client = TestClient(shop.client.app, **LOCAL | {"client": (address, 1)})
    for route in [*ROUTES, ("GET", "/nowhere")]:
        problem(call_route(client, route, {"host": host}), 403, "forbidden")
        both = [("host", "localhost"), ("host", "evil.example")]
        problem(call_route(client, route, both), 403, "forbidden")


# --- responses --------------------------------------------------------------------------------------------------------


def assert_secure_headers(response: Any) -> None:
    """Assert that a response has the security headers."""
    own = {name: value for name, value in SECURITY_HEADERS.items() if name != "cache-control"}
    assert {name: response.headers.get(name) for name in own} == own
    assert response.headers["cache-control"] in {"no-store", "no-cache"}
    assert "set-cookie" not in response.headers
    assert "server" not in response.headers


def test_responses_cannot_be_embedded_elsewhere() -> None:
    """The security headers forbid scripts, framing, sniffing, referrers, caching, and use by another origin."""
    assert SECURITY_HEADERS == {
        "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
        "cross-origin-resource-policy": "same-origin",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-store",
    }


@pytest.mark.usefixtures("clean")
@for_each("route", [*ROUTES, ("GET", "/nowhere"), ("GET", "/"), ("POST", "/healthz")])
def test_every_answer_is_guarded(client: TestClient, texts: dict[Role, str], route: tuple[str, str]) -> None:
    """Every response forbids scripts, framing, sniffing and caching, and sets no cookie."""
    job_id = client.post(
        "/jobs", json={"task": "shop.invoice", "kwargs": {"order_id": 7}}, headers=bearer(texts[Role.SUBMIT])
    ).json()["job"]["id"]
    client.post(f"/jobs/{job_id}/cancel", json={}, headers=bearer(texts[Role.OPERATE]))
    method, path = route
    for key in (bearer(texts[Role.OPERATE]), bearer(texts[Role.READ]), {}):
        for each in (job_id, "x"):
            for kind in ("application/json", "text/plain"):
                content = b"{}" if method == "POST" else None
                headers = {**key, "content-type": kind}
                assert_secure_headers(client.request(method, path_of(path, each), headers=headers, content=content))


XSS = [
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</script><svg/onload=alert(1)>",
    "javascript:alert(1)", "{{7*7}}", "${7*7}", "<!--", "]]>", "\u2028alert(1)//", "+ADw-script+AD4-",
    "<\x01script>", "%3Cscript%3E", "&lt;script&gt;", "'-alert(1)-'",
    "\r\nset-cookie: a=b\r\n\r\n<html>", "data: x\n\nevent: state\ndata: {}",
    '<?xml version="1.0"?><a/>',
    "\ufeff<html>", "`${alert(1)}`", "<a href='//evil.example'>",
]  # fmt: skip
"""Texts that are code somewhere."""


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("text", XSS)
def test_hostile_texts_are_returned_as_data(shop: Shop, text: str) -> None:
    """Every text of a client or a job (arguments, ids, filters, names, results) is returned as JSON, never as HTML."""
    client = shop.client
    jobs = [shop.post("anything", {"value": [text, number]}).json()["job"]["id"] for number in range(2)]
    job = shop.claimed(jobs[0])
    shop.ledger.report(job, json.dumps({text: text}))
    shop.ledger.complete(job, json.dumps(text))
    error = json.dumps({"type": text, "message": text, "traceback": text})
    shop.ledger.fail(shop.claimed(jobs[1]), error, text)
    responses = [client.get(f"/jobs/{job_id}{what}") for job_id in jobs for what in ("", "/history", "/duplicates")]
    responses += [client.get("/jobs"), client.get("/dead"), client.get("/duplicates/summary")]
    asked_for = {
        "task": text,
        "identity": text,
        "cursor": text,
        "state": text,
        "error": text,
        "by": text,
        "limit": text,
    }
    responses += [client.get(path, params=asked_for) for path in ("/jobs", "/dead", "/duplicates/summary")]
    responses += [client.get(f"/jobs/{_escaped(text)}{what}") for what in ("", "/events", "/history")]
    responses += [client.post("/jobs", json=body) for body in ({text: text}, {"task": text, "kwargs": {text: text}})]
    responses += [shop.post("invoice", {"order_id": 1}, idempotency_key=text), shop.post("invoice", {text: text})]
    responses.append(client.get(f"/{_escaped(text)}"))
    for response in responses:
        assert response.status_code < 500, response.text
        assert response.headers["content-type"] in {"application/json", "application/problem+json"}
        assert_secure_headers(response)
        response.json()
    assert (responses[0].json()["result"], responses[0].json()["progress"]) == (text, {text: text})
    stream = client.get(f"/jobs/{jobs[0]}/events")
    assert_secure_headers(stream)
    assert stream.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in stream.text.splitlines() if line]
    assert [line.partition(":")[0] for line in stream.text.split("\n") if line] == ["event", "data", "id"], lines
    assert [json.loads(line[6:])["result"] for line in stream.text.split("\n") if line.startswith("data: ")] == [text]


def _escaped(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


# --- unusual requests -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("clean")
@for_each(
    "method, path",
    [
        (method, path)
        for method in ("HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "POST ", "X")
        for path in sorted({path for _, path in ROUTES})
        if method != "DELETE" or path not in {"/jobs/{job_id}", "/jobs/bulk"}  # "bulk" may be the id of a job, too
    ],
)
def test_only_the_methods_of_a_route_do_something(shop: Shop, path: str, method: str) -> None:
    """An unsupported method is 405 with the supported ones, and has no effect."""
    job_id = shop.post("invoice", {"order_id": 1}).json()["job"]["id"]
    response = shop.client.request(method, path_of(path, job_id), json={})
    assert response.status_code == 405
    own = {each for each, other in ROUTES if other == path}
    assert set(response.headers["allow"].split(", ")) <= own
    assert shop.ledger.get(job_id).state == "queued"


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("name", ["x-http-method-override", "x-http-method", "x-method-override"])
def test_a_method_cannot_be_overridden(shop: Shop, name: str) -> None:
    """A header, a field or a parameter that overrides the method has no effect."""
    job_id = shop.post("invoice", {"order_id": 1}).json()["job"]["id"]
    for other in ("POST", "DELETE"):
        assert shop.client.get(f"/jobs/{job_id}", headers={name: other}).json()["state"] == "queued"
        assert shop.client.get(f"/jobs/{job_id}/cancel", headers={name: other}).status_code == 405
        problem(shop.client.get("/jobs", params={"_method": other}), 422, "invalid-request")
    problem(shop.client.post("/jobs", json={}, headers={name: "GET"}), 422, "invalid-request")
    assert len(shop.ledger.find(Query())) == 1


@for_each(
    "path",
    ["//dead", "/dead/", "/DEAD", "/Dead", "/./dead", "/jobs/../dead", "/healthz/../dead", "/healthz/..;/dead",
     "/healthz%2f..%2fdead", "/%2e%2e/dead", "/dead%00", "/dead%20", "/dead;a=b", "/dead%3f", "/dead.json", "/%64ead",
     "/dead%23", "/healthz/%2e%2e/dead", "/dead%0a", "\\dead", "/healthz#/../dead", "/jobs%2f..%2fdead", "/d%65ad"],
)  # fmt: skip
def test_no_spelling_of_a_path_goes_round_the_guard(client: TestClient, texts: dict[Role, str], path: str) -> None:
    """No spelling of a path bypasses authentication or the required role."""
    for headers, allowed in ((bearer(texts[Role.READ]), {403, 404}), ({}, {401, 404})):
        response = client.get(path, headers=headers)
        if path.startswith("/healthz#"):  # the client keeps a fragment to itself
            assert response.json() == {"status": "ok"}
        else:
            assert response.status_code in allowed, response.text
        assert_secure_headers(response)


@pytest.mark.usefixtures("clean")
@for_each("headers, path", itertools.product(
    [
        [("prefer", "wait=-1")], [("prefer", "wait=9" + "9" * 5000)], [("prefer", "wait=1e9")], [("prefer", ";,=wait")],
        [("if-none-match", "," * 5000)], [("if-none-match", b"\xff\xfe")], [("last-event-id", "x" * 5000)],
        [("accept", "text/html")], [("accept", "")], [("accept", "*/*;q=nan")], [("accept-encoding", "gzip;q=1, br")],
        [("range", "bytes=0-0," * 500)], [("range", "bytes=-1")], [("expect", "100-continue")], [("te", "trailers")],
        [("upgrade", "h2c"), ("connection", "upgrade")], [("transfer-encoding", "identity")],
        [("content-encoding", "gzip")],
        [("x-" + "y" * 200, "z" * 5000)], [("cookie", "a=" + "b" * 5000)], [("if-modified-since", "x")],
        [("if-match", '"x"')],
                [("prefer", "wait=0"), ("prefer", "wait=0")],
        [("if-none-match", '"a"'), ("if-none-match", '"b"')],
    ], ["/jobs/{job_id}", "/jobs/{job_id}/events", "/jobs", "/healthz"]))  # fmt: skip
def test_odd_headers_change_nothing(shop: Shop, path: str, headers: Any) -> None:
    """An unusual, long or repeated header neither fails nor changes the response."""
    job_id = shop.post("invoice", {"order_id": 1}).json()["job"]["id"]
    shop.ledger.cancel(job_id)
    plain = shop.client.get(path_of(path, job_id))
    response = shop.client.get(path_of(path, job_id), headers=headers)
    assert (response.status_code, response.text) == (200, plain.text)
    assert "content-encoding" not in response.headers
    assert_secure_headers(response)
