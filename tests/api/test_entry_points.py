"""Security of every route: authentication, cross-origin requests, and responses that are only data.

The routes are read from the app, so that each new route is tested, and must be added to the table of roles.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from fastapi.routing import APIRoute

from onejob.api import create_app
from onejob.api.api_keys import Role
from tests.api.conftest import Shop, bearer, problem
from tests.api.shop import build
from tests.cases import for_each

Route = tuple[str, str]
ROLES: dict[Route, Role | None] = {
    **dict.fromkeys([("GET", "/healthz"), ("GET", "/readyz")]),
    **dict.fromkeys(
        [("GET", "/jobs"), ("GET", "/jobs/{job_id}"), ("GET", "/jobs/{job_id}/events"), ("GET", "/activity"),
         ("GET", "/jobs/{job_id}/duplicates"), ("GET", "/jobs/{job_id}/history"), ("GET", "/duplicates/summary"),
         ("GET", "/costs"),
         ("POST", "/duplicates/check"), ("GET", "/metrics"), ("GET", "/queues"), ("GET", "/openapi.json"),
          ("GET", "/schedules"), ("GET", "/pauses"), ("GET", "/strikes"),
         ("GET", "/limits"), ("GET", "/limits/{key}")],
        Role.READ),
    ("POST", "/jobs"): Role.SUBMIT,
    **dict.fromkeys(
        [("GET", "/jobs/{job_id}/logs"), ("GET", "/jobs/{job_id}/explanation"),
         ("GET", "/audit"), ("GET", "/dead"), ("GET", "/dead/groups"),
         *((method, path) for kind in ("pauses", "strikes")
           for method, path in (("POST", f"/{kind}"), ("DELETE", f"/{kind}/{{block_id}}"))),
         ("PUT", "/limits/{key}"), ("DELETE", "/limits/{key}"),
         ("POST", "/jobs/bulk"), ("POST", "/jobs/{job_id}/run-now"), ("POST", "/jobs/{job_id}/cancel"),
         ("POST", "/jobs/{job_id}/redrive"), ("DELETE", "/jobs/{job_id}"), ("POST", "/dead/redrive"),
         *(("POST", f"/schedules/{{entry}}/{operation}") for operation in ("pause", "resume", "run"))],
        Role.OPERATE),
    ("POST", "/jobs/{job_id}/edit"): Role.EDIT,
}  # fmt: skip
"""The lowest role that may call each route; None: no API key is required."""


def _routes() -> list[Route]:
    found: list[Route] = []
    for each in _all(create_app(build("sqlite:////nowhere/ledger.db")).routes):
        methods = sorted({*(each.methods or ())} - {"HEAD"}) if isinstance(each, APIRoute) else ["?"]
        found += [(method, getattr(each, "path_format", repr(each))) for method in methods]
    return found


def _all(routes: list[Any]) -> Iterator[Any]:
    for each in routes:
        inner = getattr(each, "original_router", None)
        yield from _all(inner.routes) if inner is not None else [each]


ROUTES = _routes()
BODIES = [(method, path) for method, path in ROUTES if method in {"POST", "PUT"}]
"""What a form of another site could send. For a DELETE, a browser asks the server before."""


def path_of(path: str, job_id: str = "x") -> str:
    return path.format(job_id=job_id, entry="an/entry", block_id="p-1", key="customer")


def call_route(shop: Shop, route: Route, headers: Any = None, **more: Any) -> Any:
    method, path = route
    if method in {"POST", "PUT"} and not more:
        more = {"json": {}}
    return shop.request(method, path_of(path), headers=headers, **more)


# --- authentication and roles -----------------------------------------------------------------------------------------


def test_every_route_has_a_role() -> None:
    """Each route of the app is in the table of roles, and the app has no other routes."""
    assert sorted(ROUTES) == sorted(ROLES)


@for_each("route", ROUTES)
def test_a_role_may_do_what_it_includes(keyed: Shop, route: Route) -> None:
    """On every route a lower role is 403, the required role and higher ones are accepted, and probes need no key."""
    needed = ROLES[route]
    if needed is None:
        assert call_route(keyed, route).status_code == 200
    for role in Role:
        response = call_route(keyed.named(role), route)
        if needed is None or role.includes(needed):
            assert response.status_code in {200, 404, 422}, response.text
        else:
            problem(response, 403, "forbidden")


UNKNOWN_KEY = "onejob_" + "x" * 43
STRANGERS: list[Any] = [
    [], [("authorization", "")], [("authorization", "Bearer ")], [("authorization", f"Bearer {UNKNOWN_KEY}")],
    [("authorization", "bearer onejob_")], [("authorization", "Basic eDp4")], [("authorization", b"Bearer \xe4")],
    [("x-api-key", "KEY"), ("proxy-authorization", "Bearer KEY")],
    [("x-forwarded-for", "127.0.0.1"), ("x-original-url", "/healthz"), ("x-rewrite-url", "/healthz")],
    *([("authorization", f"Bearer {key}") for key in keys]
      for keys in itertools.product(("KEY", UNKNOWN_KEY), repeat=2)),
]  # fmt: skip
"""Headers without the one valid key, KEY; of two keys a proxy may have checked the other one."""


@for_each("route", [route for route in ROUTES if ROLES.get(route, Role.OPERATE) is not None])
def test_nobody_gets_in_without_a_key(keyed: Shop, route: Route) -> None:
    """On every route a request without one valid key in its header is 401 with a challenge, also with it in the URL."""
    text = keyed.texts["operate"]
    sent = [[(name, value if isinstance(value, bytes) else value.replace("KEY", text)) for name, value in each]
            for each in STRANGERS]  # fmt: skip
    responses = [call_route(keyed, route, headers) for headers in sent]
    responses.append(call_route(keyed, route, params=dict.fromkeys(("access_token", "api_key", "key"), text), json={}))
    for response in responses:
        problem(response, 401, "unauthorized")
        assert response.headers["www-authenticate"].startswith("Bearer")


def test_unauthorized_responses_reveal_nothing(keyed: Shop) -> None:
    """A 401 is the same whether or not the job exists, the task is exposed or the body is valid, which is not read."""
    job_id = keyed.named("submit").job_id()
    responses = [keyed.get(f"/jobs/{each}") for each in (job_id, "x")]
    responses += [keyed.get("/jobs?stat=failed"), keyed.submit(), keyed.submit(task="hidden")]
    responses += [keyed.post("/jobs", content=each) for each in (b"{", b"x" * 1_000_000)]
    assert {(response.status_code, response.text) for response in responses} == {(401, responses[0].text)}


# --- cross-origin requests --------------------------------------------------------------------------------------------


FORMS: tuple[list[str], ...] = (
    [], ["text/plain"], ["application/x-www-form-urlencoded"], ["multipart/form-data; boundary=x"], ["text/json"],
    ["application/json, text/plain"], ["text/plain; application/json"], ["application/json", "text/plain"],
    ["text/plain", "application/json"], ["text/plain;charset=application/json"], ["application/json-patch+json"],
)  # fmt: skip


@for_each("method, path", BODIES)
def test_what_a_form_could_send_is_refused(shop: Shop, method: str, path: str) -> None:
    """A body without a JSON content type is refused, so that an HTML form of another site cannot send one."""
    for kinds in FORMS:
        headers = [("content-type", kind) for kind in kinds]
        response = shop.request(method, path_of(path), content=b'{"task": "shop.anything"}', headers=headers)
        problem(response, 415, "wrong-content-type")


# --- responses --------------------------------------------------------------------------------------------------------


SECURE = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'", "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer", "cross-origin-resource-policy": "same-origin",
}  # fmt: skip


def assert_secure_headers(response: Any) -> None:
    """Assert that a response forbids scripts, framing, sniffing, referrers, caching, and calls by another origin."""
    assert {name: response.headers.get(name) for name in SECURE} == SECURE
    assert response.headers["cache-control"] in {"no-store", "private, no-cache"}
    assert not {"set-cookie", "server"} & {*response.headers}
    assert [name for name in response.headers if name.startswith("access-control")] == []


@for_each("method, path", [*ROUTES, ("GET", "/nowhere"), ("GET", "/"), ("POST", "/healthz")])
def test_every_answer_is_guarded(keyed: Shop, method: str, path: str) -> None:
    """Every response, also to another origin or its preflight, forbids scripts, framing, sniffing, caching and CORS."""
    job_id = keyed.named("submit").job_id(task="anything", kwargs={"value": path})
    keyed.ledger.cancel(job_id)
    for headers in (bearer(keyed.texts["operate"]), bearer(keyed.texts["read"]), {}):
        for each, kind in ((job_id, "application/json"), ("x", "application/json"), (job_id, "text/plain")):
            more = {"content": b"{}"} if method == "POST" else {}
            sent = {"content-type": kind, "origin": "https://evil.example", "access-control-request-method": method}
            for asked in (method, "OPTIONS"):
                assert_secure_headers(keyed.request(asked, path_of(path, each), headers=headers | sent, **more))


# --- unusual requests -------------------------------------------------------------------------------------------------


@for_each("path", sorted({path for _, path in ROUTES}))
def test_only_the_methods_of_a_route_do_something(shop: Shop, path: str) -> None:
    """An unsupported method is 405 with the supported ones, and no header and no parameter overrides a method."""
    job_id = shop.job_id(task="anything", kwargs={"value": path})
    own = {method for method, other in ROUTES if other == path}
    own |= {"HEAD"} if "GET" in own and not path.endswith("/events") else set()
    for method in ("HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "POST ", "X"):
        if method in own or (method in {"DELETE", "HEAD"} and path == "/jobs/bulk"):  # which may be an id, too
            continue
        response = shop.request(method, path_of(path, job_id), json={})
        assert (response.status_code, {*response.headers["allow"].split(", ")}) == (405, own)
    for name in ("x-http-method-override", "x-http-method", "x-method-override"):
        assert shop.get(f"/jobs/{job_id}/cancel", headers={name: "POST"}).status_code == 405
        for method in own - {"DELETE", "HEAD"}:
            call_route(shop, (method, path.replace("{job_id}/cancel", "x")), headers={name: "DELETE"})
    problem(shop.get("/jobs", params={"_method": "POST"}), 422, "invalid-request")
    assert shop.ledger.get(job_id).state == "queued"


@for_each("path", [path for method, path in ROUTES if method == "GET" and not path.endswith("/events")])
def test_a_head_is_a_get_without_its_content(keyed: Shop, path: str) -> None:
    """HEAD has the status and the headers of GET, and no content; it needs the same API key, and the same role."""
    job_id = keyed.named("submit").job_id()
    for shop in (keyed, keyed.named("read"), keyed.named("operate")):
        get, head = (shop.request(method, path_of(path, job_id)) for method in ("GET", "HEAD"))
        assert (head.status_code, head.content) == (get.status_code, b"")
        assert (head.headers.keys(), head.headers["content-type"]) == (get.headers.keys(), get.headers["content-type"])


@for_each("path", [
    "//dead", "/dead/", "/DEAD", "/Dead", "/./dead", "/jobs/../dead", "/healthz/../dead", "/healthz/..;/dead",
    "/healthz%2f..%2fdead", "/%2e%2e/dead", "/dead%00", "/dead%20", "/dead;a=b", "/dead%3f", "/dead.json", "/%64ead",
    "/dead%23", "/healthz/%2e%2e/dead", "/dead%0a", "\\dead", "/jobs%2f..%2fdead", "/d%65ad",
])  # fmt: skip
def test_no_spelling_of_a_path_goes_round_the_guard(keyed: Shop, path: str) -> None:
    """No spelling of a path bypasses authentication or the required role."""
    for shop, allowed in ((keyed.named("read"), {403, 404}), (keyed, {401, 404})):
        response = shop.get(path)
        assert response.status_code in allowed, response.text
        assert_secure_headers(response)
