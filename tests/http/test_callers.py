"""The router in an app with users of its own: `caller` says who sends a request, `may` what they may do."""

from __future__ import annotations

import base64
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from starlette.testclient import TestClient

import onejob
from onejob.api import Caller, router
from onejob.celery.app_state import app_state_of
from onejob.errors import ConfigurationError
from onejob.jobs.model import Job
from onejob.jobs.records import Query
from tests.cases import for_each
from tests.contract.races import together
from tests.http.conftest import problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

USERS = {"ada": "user-1", "bob": "user-2"}


def from_state(request: Request) -> Any:
    """Return the user that the app's own check has found."""
    return request.state.user


async def from_header(x_user: Annotated[str, Header()] = "") -> str:
    """Return the user of a token, as a dependency of FastAPI."""
    if x_user not in USERS:
        raise HTTPException(401, "log in")
    return USERS[x_user]


def _client(celery_app: Celery, caller: Callable[..., Any], **options: Any) -> TestClient:
    app = FastAPI()

    def check(request: Request, x_user: Annotated[str, Header()] = "") -> None:
        request.state.user = USERS.get(x_user)

    app.include_router(router(celery_app, caller=caller, **options), dependencies=[Depends(check)])
    return TestClient(app, raise_server_exceptions=False)


def submit(client: TestClient, user: str, order_id: int = 1, task: str = "invoice", **more: Any) -> Any:
    """Submit a job as a user."""
    body = {"task": f"shop.{task}", "kwargs": {"order_id": order_id}, **more}
    return client.post("/jobs", json=body, headers={"x-user": user})


def get(client: TestClient, user: str, path: str) -> Any:
    """Send a GET request as a user."""
    return client.get(path, headers={"x-user": user})


@for_each("caller", [from_header, from_state, lambda request: request.state.user])
def test_a_user_sees_only_its_jobs(celery_app: Celery, caller: Callable[..., Any]) -> None:
    """A caller that is given as a name has jobs, identities and idempotency keys of its own."""
    client = _client(celery_app, caller)
    mine, others = submit(client, "ada").json()["job"], submit(client, "bob").json()["job"]
    assert (mine["submitter"], others["submitter"]) == ("user-1", "user-2")
    assert mine["id"] != others["id"]
    assert [job["id"] for job in get(client, "ada", "/jobs").json()["jobs"]] == [mine["id"]]
    problem(get(client, "ada", f"/jobs/{others['id']}"), 404, "job-not-found")
    problem(get(client, "ada", "/metrics"), 403, "forbidden")
    assert get(client, "nobody", "/healthz").status_code == 200


def test_an_unknown_user_is_refused(celery_app: Celery) -> None:
    """The function's own refusal is returned, and a function that returns no caller refuses every request."""
    response = submit(_client(celery_app, from_header), "eve")
    assert problem(response, 401, "refused")["detail"] == "log in"
    problem(submit(_client(celery_app, from_state), "eve"), 500, "internal")
    problem(submit(_client(celery_app, lambda: Caller("")), "eve"), 422, "invalid-arguments")
    assert app_state_of(celery_app).ledger.find(Query()) == []


def test_each_caller_has_its_quotas(celery_app: Celery) -> None:
    """The router's quota counts for each caller, and that of a `Caller` replaces it; the same name counts in Python."""

    def caller(x_user: Annotated[str, Header()] = "") -> Caller:
        return Caller(x_user, quota="2/day" if x_user == "big" else None)

    client = _client(celery_app, caller, quota="1/day")
    for user in ("ada", "bob"):
        assert [submit(client, user, number).status_code for number in (1, 1, 2)] == [202, 200, 429]
    assert [submit(client, "big", number).status_code for number in (1, 2, 3)] == [202, 202, 429]
    task: Any = celery_app.tasks["shop.invoice"]
    with pytest.raises(onejob.QuotaExceededError), onejob.submitter("ada", own_jobs=True, quota="1/day"):
        task.delay(9)


def test_a_caller_can_be_wider_or_narrower(celery_app: Celery) -> None:
    """A caller without own jobs sees those of all, and one with tasks submits only these."""

    def caller(x_user: Annotated[str, Header()] = "") -> Caller:
        return Caller(x_user, own_jobs=x_user != "staff", tasks=["shop.invoice"] if x_user == "ada" else None)

    client = _client(celery_app, caller)
    mine = submit(client, "ada").json()["job"]["id"]
    problem(submit(client, "ada", task="strict"), 403, "forbidden")
    assert get(client, "staff", f"/jobs/{mine}").status_code == 200
    assert get(client, "staff", "/metrics").status_code == 200


def test_a_cursor_does_not_disclose_a_job(celery_app: Celery) -> None:
    """The pages of a caller for whom `may` decides have each visible job once, and no cursor has the id of another."""

    def may(_caller: Caller, action: str, target: Any) -> bool:
        assert not isinstance(target, Job) or target.payload, "a job that is not complete"
        return action != "read" or "strict" not in target.task

    client = _client(celery_app, lambda: Caller("staff", own_jobs=False), may=may)
    tasks = ["strict"] * 3 + ["invoice", "strict", "invoice", "invoice"] + ["strict"] * 5 + ["invoice", "strict"]
    ids = [submit(client, "staff", number, task).json()["job"]["id"] for number, task in enumerate(tasks)]
    hidden = {job_id for job_id, task in zip(ids, tasks, strict=True) if task == "strict"}
    for path in ("/jobs?limit=2", "/jobs?limit=2&include=result", "/jobs?limit=1", "/jobs?limit=9"):
        found: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = get(client, "staff", f"{path}&cursor={cursor}" if cursor else path).json()
            found += [job["id"] for job in page["jobs"]]
            cursor = page["next"]
            text = base64.urlsafe_b64decode((cursor or "") + "==").decode()
            assert not [job_id for job_id in hidden if job_id in text]
        assert found == [job_id for job_id in reversed(ids) if job_id not in hidden]


def test_may_decides_each_action(celery_app: Celery) -> None:
    """What `may` does not allow is refused: submissions, reading, which looks like an unknown id, and operations."""
    allowed: set[tuple[str, str]] = set()
    seen: list[Any] = []

    def may(caller: Caller, action: str, target: Any) -> bool:
        seen.append((caller.name, action, getattr(target, "task", target)))
        return (caller.name, action) in allowed

    client = _client(celery_app, lambda: Caller("staff", own_jobs=False), may=may)
    problem(submit(client, "staff"), 403, "forbidden")
    allowed |= {("staff", "submit")}
    job = submit(client, "staff").json()["job"]["id"]
    unknown = problem(get(client, "staff", "/jobs/unknown"), 404, "job-not-found")
    assert problem(get(client, "staff", f"/jobs/{job}"), 404, "job-not-found")["title"] == unknown["title"]
    assert get(client, "staff", "/jobs").json() == {"jobs": [], "next": None}
    for path in ("/metrics", "/jobs?count=true", "/duplicates/summary"):
        problem(get(client, "staff", path), 403, "forbidden")
    allowed |= {("staff", "read")}
    assert [each["id"] for each in get(client, "staff", "/jobs").json()["jobs"]] == [job]
    for path in ("cancel", "redrive", "run-now"):
        problem(client.post(f"/jobs/{job}/{path}", json={}), 403, "forbidden")
    problem(client.delete(f"/jobs/{job}"), 403, "forbidden")
    for dry_run in (True, False):
        body = {"operation": "force_cancel", "job_ids": [job], "dry_run": dry_run}
        assert "not permitted: cancel" in client.post("/jobs/bulk", json=body).json()["refused"][job]
    _fail(celery_app, job)
    assert "not permitted" in client.post("/dead/redrive", json={"all": True}).json()["refused"][job]
    allowed |= {("staff", "redrive"), ("staff", "statistics")}
    assert client.post("/dead/redrive", json={"all": True}).json()["done"] == [job]
    assert get(client, "staff", "/metrics").status_code == 200
    assert {
        ("staff", "submit", "shop.invoice"),
        ("staff", "cancel", "shop.invoice"),
        ("staff", "run_now", "shop.invoice"),
        ("staff", "delete", "shop.invoice"),
        ("staff", "statistics", None),
    } <= {*seen}


def _fail(celery_app: Celery, job_id: str) -> None:
    ledger = app_state_of(celery_app).ledger
    job = ledger.claim(job_id, nonce="n", node="node").job
    assert job is not None
    ledger.fail(job, '{"type": "E", "message": "", "traceback": ""}', "E")


def test_a_middleware_may_set_the_submitter(celery_app: Celery) -> None:
    """Without `caller`, the submitter that a middleware sets with own jobs limits the router, too."""
    app = FastAPI()
    app.include_router(router(celery_app))

    @app.middleware("http")
    async def named(request: Request, call_next: Any) -> Any:
        with onejob.submitter(request.headers["x-user"], own_jobs=True):
            return await call_next(request)

    client = TestClient(app, raise_server_exceptions=False)
    mine, others = (submit(client, user).json()["job"]["id"] for user in ("ada", "bob"))
    assert mine != others
    problem(get(client, "ada", f"/jobs/{others}"), 404, "job-not-found")
    assert get(client, "ada", f"/jobs/{mine}").status_code == 200


def test_contradictory_options_are_refused(celery_app: Celery) -> None:
    """`may` without `caller`, and `caller` together with `keys`, are refused when the router is built."""
    with pytest.raises(ConfigurationError, match="give the function caller="):
        router(celery_app, may=lambda *_: True)

    async def may(*_: Any) -> bool:
        return True

    with pytest.raises(ConfigurationError, match="plain function"):
        router(celery_app, caller=from_header, may=may)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="not both"):
        router(celery_app, caller=from_header, keys="keys.json")


def test_a_failing_decision_affects_its_request_alone(celery_app: Celery) -> None:
    """An error in `may` is a 500 of its own request, and other requests are answered meanwhile."""

    def may(caller: Caller, action: str, _target: Any) -> bool:
        if (caller.name, action) == ("eve", "read"):
            raise LookupError(caller.name)
        return True

    def caller(x_user: Annotated[str, Header()] = "") -> Caller:
        return Caller(x_user, own_jobs=False)

    client = _client(celery_app, caller, may=may)
    job = submit(client, "ada").json()["job"]["id"]
    answers = together(*[partial(get, client, user, f"/jobs/{job}") for user in ("ada", "eve", "ada", "eve") * 3])
    assert [answer.status_code for answer in answers] == [200, 500, 200, 500] * 3
