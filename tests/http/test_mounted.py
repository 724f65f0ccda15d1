"""The router mounted in another app, whose dependencies precede every route."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI, HTTPException, Request
from starlette.testclient import TestClient

import onejob
from onejob.api import router
from tests.cases import for_each
from tests.http.conftest import problem
from tests.http.test_entry_points import ROUTES, call_route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from celery import Celery
    from starlette.responses import Response

MOUNTED = [route for route in ROUTES if route[1] != "/openapi.json"]


def _refuse(status: int) -> Callable[[], None]:
    def check() -> None:
        raise HTTPException(status, "not you", headers={"x-why": "house rule"})

    return check


def _client(celery_app: Celery, *checks: Callable[..., None]) -> TestClient:
    app = FastAPI()
    app.include_router(router(celery_app), dependencies=[Depends(check) for check in checks])
    return TestClient(app, raise_server_exceptions=False)


@for_each("status", [401, 403, 409, 429, 503])
def test_a_refusal_of_the_app_is_passed_on(celery_app: Celery, status: int) -> None:
    """A dependency of the app in which the router is mounted precedes every route, and its status is returned."""
    client = _client(celery_app, _refuse(status))
    for route in MOUNTED:
        response = call_route(client, route)
        problem(response, status, "refused")
        assert (response.json()["detail"], response.headers["x-why"]) == ("not you", "house rule"), route


def test_accepted_requests_are_handled(celery_app: Celery) -> None:
    """With a dependency of the app that accepts a request, jobs are submitted and returned as without one."""
    client = _client(celery_app, lambda: None)
    body = {"task": "shop.typed", "kwargs": {"day": "2026-01-31", "lines": [{"sku": "a"}]}}
    made = client.post("/jobs", json=body)
    assert (made.status_code, made.json()["outcome"]) == (202, "admitted")
    assert client.get(made.headers["location"]).json() == made.json()["job"]
    problem(client.post("/jobs", json=body | {"kwargs": {"day": 7, "lines": []}}), 422, "invalid-request")
    problem(
        client.post("/jobs", content=b'{"a": 1, "a": 2}', headers={"content-type": "application/json"}), 400, "bad-json"
    )


def test_each_request_has_its_own_submitter(celery_app: Celery) -> None:
    """The submitter of a job is that of its request's context, also when requests are batched."""
    app = FastAPI()
    app.include_router(router(celery_app))

    @app.middleware("http")
    async def named(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        with onejob.submitter(request.headers["x-user"]):
            return await call_next(request)

    client = TestClient(app, raise_server_exceptions=False)
    for number in range(5):
        body = {"task": "shop.invoice", "kwargs": {"order_id": number}, "idempotency_key": "same"}
        answer = client.post("/jobs", json=body, headers={"x-user": f"user:{number}"})
        assert (answer.status_code, answer.json()["job"]["submitter"]) == (202, f"user:{number}")
