"""The direct way to the hot routes of the standalone app: it answers as FastAPI's router does, after all middleware."""

from __future__ import annotations

import json
import re
from typing import Any
from unittest.mock import ANY

from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from onejob.api import create_app
from onejob.api.auth import TELEMETRY, DirectRoutes
from onejob.api.checked_request import BODY_LIMIT
from tests.api.conftest import LOCAL, Shop, Standing, bearer
from tests.api.test_refusals import INVALID, JSON, NO_JSON, NO_SUBMISSION
from tests.cases import for_each

INVOICE: dict[str, Any] = {"task": "shop.invoice", "kwargs": {"order_id": 7}}
STRICT: dict[str, Any] = {"task": "shop.strict", "kwargs": {"order_id": 7}}
WAIT = {"prefer": "wait=1", "if-none-match": "x"}
HALVES = [b'{"task": "shop.invoice", ', b'"kwargs": {"order_id": 8}}']
REQUESTS: dict[str, dict[str, Any]] = {
    "a new job": {"json": INVOICE},
    "a duplicate": {"json": INVOICE},
    "a body in parts": {"content": HALVES, "headers": JSON},
    "all options": {"json": INVOICE | {"kwargs": {"order_id": 9}, "countdown": 60, "priority": 3}},
    "a check": {"json": INVOICE | {"validate_only": True}},
    "a key in the body": {"json": INVOICE | {"idempotency_key": "a"}},
    "a key in a header": {"json": INVOICE, "headers": {"idempotency-key": '"a"'}},
    "a key used with other arguments": {"json": INVOICE | {"kwargs": {"order_id": 1}, "idempotency_key": "a"}},
    "two keys": {"json": INVOICE | {"idempotency_key": "a"}, "headers": {"idempotency-key": "b"}},
    "two headers of keys": {"json": INVOICE, "headers": [("idempotency-key", "a"), ("idempotency-key", "a")]},
    "no key where it is required": {"json": {"task": "shop.paid", "kwargs": {"order_id": 7}}},
    "a first strict job": {"json": STRICT},
    "a refused duplicate": {"json": STRICT},
    "a long key": {"json": INVOICE, "headers": {"idempotency-key": "k" * 300}},
    "wrong arguments": {"json": INVOICE | {"kwargs": {"order_id": "7", "more": 1}}},
    "an invalid date": {"json": {"task": "shop.typed", "kwargs": {"day": "x", "lines": [{"count": "a"}]}}},
    "a failing function": {"json": {"task": "shop.picky", "kwargs": {"user": {}}}},
    "a query": {"json": INVOICE, "params": {"dry": "1"}},
    "a large body": {"content": b" " * (BODY_LIMIT + 1), "headers": JSON},
    "a large body in parts": {"content": [b" " * BODY_LIMIT, b" "], "headers": JSON},
    "a huge length": {"content": b"{}", "headers": JSON | {"content-length": "9" * 30}},
    "two framings": {"json": INVOICE, "headers": {"transfer-encoding": "chunked"}},
    "no content type": {"content": b"{}"},
    "a form": {"data": {"task": "shop.invoice"}},
    "text": {"content": b"{}", "headers": {"content-type": "text/plain"}},
    "two content types": {"content": b"{}", "headers": [("content-type", "application/json"), ("content-type", "a/b")]},
    "a content type with parameters": {"content": b"{}", "headers": {"content-type": "Application/JSON; charset=x"}},
    "another host": {"json": INVOICE, "headers": {"host": "example.com"}},
    "no key of the API": {"json": INVOICE, "headers": {"authorization": ""}},
    "a wrong key of the API": {"json": INVOICE, "headers": {"authorization": "Bearer onejob_x"}},
    "a slash": {"path": "/jobs/", "json": INVOICE},
    "two slashes": {"path": "//jobs", "json": INVOICE},
    "another method": {"method": "PUT", "json": INVOICE},
    "options": {"method": "OPTIONS"},
    "a job": {"method": "GET", "path": "/jobs/{job_id}"},
    "a job with a wait": {"method": "GET", "path": "/jobs/{job_id}", "headers": WAIT},
    "a changed job": {"method": "GET", "path": "/jobs/{job_id}", "headers": {"if-none-match": '"x"'}},
    "any version of a job": {"method": "GET", "path": "/jobs/{job_id}", "headers": {"if-none-match": "*"}},
    "a job with a query": {"method": "GET", "path": "/jobs/{job_id}?full=1"},
    "the head of a job": {"method": "HEAD", "path": "/jobs/{job_id}"},
    "no job": {"method": "GET", "path": "/jobs/nothing"},
    "no job of a printable id": {"method": "GET", "path": "/jobs/a%00b"},
    "no job of a short id": {"method": "GET", "path": "/jobs/" + "x" * 300},
    "an id with a slash": {"method": "GET", "path": "/jobs/a%2Fb"},
    "a deleted job": {"method": "DELETE", "path": "/jobs/{job_id}"},
    "a list": {"method": "GET", "path": "/jobs"},
    "more jobs than the quota": {"json": INVOICE | {"kwargs": {"order_id": 10}}},
    "a duplicate over the quota": {"json": INVOICE},
}  # fmt: skip
BOMBS = {f"a bomb {body[:50]!r}": {"content": body, "headers": JSON} for body in (*NO_JSON, *NO_SUBMISSION)}
BOMBS |= {
    f"invalid: {body}": {"content": json.dumps(body), "headers": JSON} for path, body in INVALID if path == "/jobs"
}
VARYING = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]+Z|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|(?<=\")[0-9a-f]{32}(?=\")|(?<=retry-after', ')\d+|(?<=retry in )\d+"
)
"""Times, ids and ETags, and how long a quota is still exceeded."""


def _answers(shop: Shop, requests: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Send the requests; return the status, the headers and the body of each response."""
    job_id, found = "", {}
    for name, request in requests.items():
        more = {"method": "POST", "path": "/jobs"} | request
        response = shop.request(more.pop("method"), more.pop("path").format(job_id=job_id), **more)
        if name == "a new job" and response.status_code == 202:
            job_id = response.json()["job"]["id"]
        found[name] = VARYING.sub("*", f"{response.status_code} {response.headers.multi_items()} {response.text}")
    return found


@for_each("key, requests, options", [
    ("", BOMBS | REQUESTS, {"quota": "4/day"}), ("submit", REQUESTS, {}), ("read", REQUESTS, {}),
])  # fmt: skip
def test_the_direct_way_answers_as_the_router_does(
    standing: Standing, key: str, requests: dict[str, dict[str, Any]], options: dict[str, Any]
) -> None:
    """Every request has the same status, headers and body with and without direct routes, whoever sends it."""
    direct: Any = DirectRoutes
    found = []
    for left_out in (None, direct):
        standing.empty()
        app = create_app(standing.app, standing.keys.path if key else None, **options)
        app.user_middleware = [each for each in app.user_middleware if each.cls is not left_out]
        with TestClient(app, raise_server_exceptions=False, **LOCAL) as client:
            shop = Shop(standing.app, client, headers=bearer(standing.texts[key]) if key else {})
            found.append(_answers(shop, requests))
    for name, answer in found[1].items():
        assert found[0][name] == answer, name


class _Scopes:
    """A middleware that keeps the scope of each request, and may add to it."""

    def __init__(self, app: ASGIApp, kept: list[Scope], added: dict[str, Any]) -> None:
        self._app, self._kept, self._added = app, kept, added

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope.update(self._added)
            self._kept.append(scope)
        await self._app(scope, receive, send)


@for_each("added", [{}, {TELEMETRY: None}])
def test_a_middleware_of_the_app_precedes_the_direct_way(celery_app: Any, added: dict[str, Any]) -> None:
    """A middleware that is added to the app sees each request and its route, and one that FastAPI traces is routed."""
    kept: list[Scope] = []
    app = create_app(celery_app)
    app.add_middleware(_Scopes, kept=kept, added=added)
    with TestClient(app, **LOCAL) as client:
        shop = Shop(celery_app, client)
        shop.get(f"/jobs/{shop.job_id()}")
    assert [each["route"].path for each in kept] == ["/jobs", "/jobs/{job_id:job}"]
    assert [each["path_params"] for each in kept] == [{}, {"job_id": ANY}]
    assert ["router" in each for each in kept] == [bool(added)] * 2
