"""Callers: users of the app around the router (`caller`, `may`), and tenants, whose jobs do not exist for others."""

from __future__ import annotations

import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import httpx2
import pytest
from celery import Celery
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from starlette.testclient import TestClient

import onejob
from onejob.api import Caller, create_app, router
from onejob.api.routes import jobs
from onejob.celery.app_state import app_state_of
from onejob.errors import ConfigurationError
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.jobs.transitions import new_nonce
from tests.api.conftest import Shop, Standing, bearer, problem
from tests.api.serving import PATIENCE, serving
from tests.api.shop import build
from tests.api.test_entry_points import ROUTES, call_route
from tests.cases import for_each
from tests.services import eventually
from tests.stores.support import accepted

USERS = {"ada": "user-1", "bob": "user-2"}
Header_ = Annotated[str, Header()]


def from_state(request: Request) -> Any:
    return request.state.user


async def from_state_later(request):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - a function without hints
    return request.state.user


async def from_header(x_user: Header_ = "") -> str:
    if x_user not in USERS:
        raise HTTPException(401, "log in")
    return USERS[x_user]


def as_named(x_user: Header_ = "") -> Caller:
    return Caller(x_user, own_jobs=False)


class Users:
    """An app with users, and the router in it."""

    def __init__(self, celery_app: Celery, caller: Callable[..., Any], **options: Any) -> None:
        app = FastAPI()

        def check(request: Request, x_user: Header_ = "") -> None:
            request.state.user = USERS.get(x_user)

        app.include_router(router(celery_app, caller=caller, **options), dependencies=[Depends(check)])
        self._shop = Shop(celery_app, TestClient(app, raise_server_exceptions=False))

    def __getitem__(self, name: str) -> Shop:
        return Shop(self._shop.app, self._shop.client, headers={"x-user": name})


@for_each("caller", [from_header, from_state, lambda request: request.state.user, from_state_later])
def test_a_user_sees_only_its_jobs(celery_app: Celery, caller: Callable[..., Any]) -> None:
    """A caller that is given as a name has jobs, identities and idempotency keys of its own."""
    users = Users(celery_app, caller)
    mine, others = (users[name].submit().json()["job"] for name in ("ada", "bob"))
    assert (mine["submitter"], others["submitter"]) == ("user-1", "user-2")
    assert mine["id"] != others["id"]
    assert [job["id"] for job in users["ada"].get("/jobs").json()["jobs"]] == [mine["id"]]
    problem(users["ada"].get(f"/jobs/{others['id']}"), 404, "job-not-found")
    problem(users["ada"].get("/metrics"), 403, "forbidden")
    assert users["nobody"].get("/healthz").status_code == 200


@for_each("caller, status, kind", [
    (from_header, 401, "refused"), (from_state, 500, "internal"), (lambda: Caller(""), 422, "invalid-arguments"),
])  # fmt: skip
def test_an_unknown_user_is_refused(celery_app: Celery, caller: Callable[..., Any], status: int, kind: str) -> None:
    """The function's own refusal is returned, and a function that returns no caller refuses every request."""
    details = problem(Users(celery_app, caller)["eve"].submit(), status, kind)
    assert (details["detail"] == "log in") is (kind == "refused")
    assert app_state_of(celery_app).ledger.find(Query()) == []


def test_each_caller_has_its_quotas(celery_app: Celery) -> None:
    """The router's quota counts for each caller, and that of a `Caller` replaces it; the same name counts in Python."""

    def caller(x_user: Header_ = "") -> Caller:
        return Caller(x_user, quota="2/day" if x_user == "big" else None)

    users = Users(celery_app, caller, quota="1/day")
    for user in ("ada", "bob"):
        assert [users[user].submit(number).status_code for number in (1, 1, 2)] == [202, 200, 429]
    assert [users["big"].submit(number).status_code for number in (1, 2, 3)] == [202, 202, 429]
    with pytest.raises(onejob.errors.QuotaExceededError), onejob.submitter("ada", own_jobs=True, quota="1/day"):
        celery_app.tasks["shop.invoice"].delay(9)


# --- may ------------------------------------------------------------------------------------------------------------


def test_may_decides_each_action(celery_app: Celery) -> None:
    """What `may` does not allow is refused: submissions, reading, which looks like an unknown id, and operations."""
    allowed: set[str] = set()
    seen: list[Any] = []

    def may(caller: Caller, action: str, target: Any) -> bool:
        seen.append((caller.name, action, getattr(target, "task", target)))
        return action in allowed

    staff = Users(celery_app, as_named, may=may)["staff"]
    problem(staff.submit(), 403, "forbidden")
    allowed |= {"submit"}
    job = staff.job_id()
    unknown = problem(staff.get("/jobs/unknown"), 404, "job-not-found")
    assert problem(staff.get(f"/jobs/{job}"), 404, "job-not-found")["title"] == unknown["title"]
    assert staff.get("/jobs").json() == {"jobs": [], "next": None}
    for path in ("/metrics", "/jobs?count=true", "/duplicates/summary"):
        problem(staff.get(path), 403, "forbidden")
    allowed |= {"read"}
    assert [each["id"] for each in staff.get("/jobs").json()["jobs"]] == [job]
    for path in ("cancel", "redrive", "run-now"):
        problem(staff.post(f"/jobs/{job}/{path}"), 403, "forbidden")
    problem(staff.request("DELETE", f"/jobs/{job}"), 403, "forbidden")
    for dry_run in (True, False):
        body = {"operation": "force_cancel", "job_ids": [job], "dry_run": dry_run}
        assert "not permitted: cancel" in staff.post("/jobs/bulk", body).json()["refused"][job]
    staff.failed(job)
    problem(staff.post(f"/jobs/{job}/edit", {"args": [8]}), 403, "forbidden")
    assert "not permitted" in staff.post("/dead/redrive", {"all": True}).json()["refused"][job]
    allowed |= {"redrive", "statistics"}
    assert staff.post("/dead/redrive", {"all": True}).json()["done"] == [job]
    assert staff.get("/metrics").status_code == 200
    asked = {("staff", action, "shop.invoice") for action in ("submit", "cancel", "run_now", "delete", "edit")}
    assert {*asked, ("staff", "statistics", None)} <= {*seen}


def test_a_cursor_does_not_disclose_a_job(celery_app: Celery) -> None:
    """The pages of a caller for whom `may` decides have each visible job once, and no cursor has the id of another."""

    def may(_caller: Caller, action: str, target: Any) -> bool:
        assert not isinstance(target, JobRow) or target.payload, "a job that is not complete"
        return action != "read" or "strict" not in target.task

    staff = Users(celery_app, as_named, may=may)["staff"]
    tasks = ["strict"] * 3 + ["invoice", "strict", "invoice", "invoice"] + ["strict"] * 5 + ["invoice", "strict"]
    ids = [celery_app.tasks[f"shop.{task}"].delay(number).id for number, task in enumerate(tasks)]
    hidden = {job_id for job_id, task in zip(ids, tasks, strict=True) if task == "strict"}
    for path in ("/jobs?limit=2", "/jobs?limit=2&include=result", "/jobs?limit=1", "/jobs?limit=9"):
        found: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = staff.get(f"{path}&cursor={cursor}" if cursor else path).json()
            found += [job["id"] for job in page["jobs"]]
            cursor = page["next"]
            assert not [job_id for job_id in hidden if job_id.encode().hex() in (cursor or "")]
        assert found == [job_id for job_id in reversed(ids) if job_id not in hidden]


def assert_hidden(response: Any, job_id: str) -> None:
    """Assert that a duplicate was refused without a word about the job that answers it."""
    assert problem(response, 409, "duplicate-job").keys() == {"type", "title", "status", "detail", "outcome"}
    assert job_id not in response.text


def test_a_job_that_may_not_be_read_answers_without_being_shown(tmp_path: Path) -> None:
    """What another's job answers, a submission, a check or an edit, says nothing of that job, and adds no webhook."""
    secrets = ["whsec_" + base64.b64encode(b"k" * 32).decode()]
    app = build(f"sqlite:///{tmp_path / 'ledger.db'}", onejob_webhook_secrets=secrets)
    users = Users(app, as_named, may=lambda caller, action, job: action != "read" or job.submitter == caller.name)
    dead = users["bob"].failed(users["bob"].job_id(2)).id
    for task in ("newest", "strict", "invoice"):
        kwargs = {"order_id": 1} if task != "newest" else {"document": 1, "text": "a"}
        mine = users["ada"].job_id(task=task, kwargs=kwargs)
        assert users["ada"].submit(task=task, kwargs=kwargs).status_code in {200, 409}
        assert_hidden(users["bob"].submit(task=task, kwargs=kwargs, webhook_url="https://example.com/"), mine)
        check = users["bob"].post("/duplicates/check", {"task": f"shop.{task}", "kwargs": kwargs}).json()
        assert (check["existing"], check["reason"][:43]) == (None, "A job that the caller is not permitted to r")
        assert mine not in str(check)
    live = users["ada"].job_id(1)
    for note in ("", "other"):
        assert_hidden(users["bob"].post(f"/jobs/{dead}/edit", {"kwargs": {"order_id": 1, "note": note}}), live)
    edited = users["bob"].post(f"/jobs/{dead}/edit", {"kwargs": {"order_id": 3}})
    assert (edited.status_code, edited.json()["outcome"]) == (202, "admitted")
    ledger = app_state_of(app).ledger
    assert {job.task for job in ledger.find(Query())} == {"shop.invoice", "shop.newest", "shop.strict"}
    ledger.close()


def test_a_refused_redrive_shows_no_job_that_may_not_be_read(celery_app: Celery) -> None:
    """A redrive, of one or of many, that another's job refuses says nothing of that job to who may not read it."""
    users = Users(
        celery_app, as_named, may=lambda caller, action, job: action != "read" or job.submitter in {caller.name, "eve"}
    )
    for task, field, slug in (("invoice", "holder_id", "identity-held"), ("newest", "newer_id", "superseded")):
        kwargs: Any = {"order_id": 1} if task == "invoice" else {"document": 1, "text": "old"}
        for user, is_shown in (("ada", False), ("eve", True)):
            dead = users["bob"].job_id(task=task, kwargs=kwargs)
            users["bob"].failed(dead)
            other = users[user].job_id(task=task, kwargs=kwargs if task == "invoice" else kwargs | {"text": user})
            response = users["bob"].post(f"/jobs/{dead}/redrive")
            assert (problem(response, 409, slug)[field] == other) is is_shown
            refused = users["bob"].post("/dead/redrive", {"job_ids": [dead]}).json()["refused"][dead]
            assert [other in text for text in (response.text, refused)] == [is_shown, is_shown]
            users[user].completed(other)


@for_each("task", ["invoice", "strict"])
def test_a_run_of_a_schedule_shows_no_job_that_may_not_be_read(tmp_path: Path, task: str) -> None:
    """A run of an entry that another's job answers says nothing of it, and adds no webhook to it; a new job has an id.

    What may not be submitted is not.
    """
    secrets = ["whsec_" + base64.b64encode(b"k" * 32).decode()]
    app = build(f"sqlite:///{tmp_path / task}.db", onejob_webhook_secrets=secrets)
    allowed = {"operate", "statistics", "submit"}
    users = Users(app, as_named, may=lambda _caller, action, _job: action in allowed)
    entry = {"task": f"shop.{task}", "schedule": 3600.0, "args": [7], "options": {}}
    app.conf.beat_schedule = {"daily": entry}
    mine = users["bob"].post("/schedules/daily/run").json()["job_id"]
    app.conf.beat_schedule = {"daily": entry | {"options": {"webhook_url": "https://example.com/"}}}
    assert_hidden(users["bob"].post("/schedules/daily/run"), mine)
    ledger = app_state_of(app).ledger
    assert [job.id for job in ledger.find(Query())] == [mine]
    ledger.cancel(mine)
    assert users["bob"].post("/schedules/daily/run").json()["job_id"] != mine
    allowed.remove("submit")
    problem(users["bob"].post("/schedules/daily/run"), 403, "forbidden")
    ledger.close()


@for_each("path, headers", [("/events", {}), ("", {"prefer": "wait=30"})])
def test_a_stream_ends_with_the_access(
    celery_app: Celery, monkeypatch: pytest.MonkeyPatch, path: str, headers: dict[str, str]
) -> None:
    """An open stream, and a long poll, of a user whom the app no longer accepts learn nothing of the end of the job."""
    monkeypatch.setattr(jobs, "CHECK_INTERVAL", 0.0)
    users, asked, app = {"ada"}, [], FastAPI()

    def caller(x_user: Header_) -> str:
        asked.append(x_user)
        if x_user not in users:
            raise HTTPException(401, "log in")
        return x_user

    app.include_router(router(celery_app, caller=caller))
    options: Any = {"headers": {"x-user": "ada"}, "timeout": PATIENCE}
    with serving(app) as server, httpx2.Client(base_url=server.url, **options) as client, ThreadPoolExecutor(1) as pool:
        body = {"task": "shop.strict", "kwargs": {"order_id": len(path)}}
        job_id = client.post("/jobs", json=body).json()["job"]["id"]
        answer = pool.submit(client.get, f"/jobs/{job_id}{path}", headers=headers)
        eventually(lambda: len(asked) > 1)
        users.clear()
        app_state_of(celery_app).ledger.cancel(job_id)
        assert "canceled" not in answer.result(PATIENCE).text
        assert client.get(f"/jobs/{job_id}").status_code == 401


async def _async_may(*_: Any) -> bool:
    return True


@for_each("options, why", [
    ({"may": lambda *_: True}, "give the function caller="), ({"caller": from_header, "keys": "keys.json"}, "not both"),
    ({"caller": from_header, "may": _async_may}, "plain function"),
    *(({"open": True, **each}, "open=True is for a router without")
      for each in ({"keys": "keys.json"}, {"caller": lambda _: "ada"}, {"dependencies": [Depends(int)]})),
])  # fmt: skip
def test_contradictory_options_are_refused(celery_app: Celery, options: Any, why: str) -> None:
    """What authenticates twice, or decides about nobody, is refused when the router is built."""
    with pytest.raises(ConfigurationError, match=why):
        router(celery_app, **options)


# --- the app around the router --------------------------------------------------------------------------------------


def test_a_refusal_of_the_app_is_passed_on(celery_app: Celery) -> None:
    """A dependency of the app in which the router is mounted precedes every route, and its status is returned."""

    def refuse(x_status: Annotated[int, Header()]) -> None:
        raise HTTPException(x_status, "not you", headers={"x-why": "house rule"})

    app = FastAPI()
    app.include_router(router(celery_app, open=True), dependencies=[Depends(refuse)])
    with TestClient(app, raise_server_exceptions=False) as client:
        for status, route in product((401, 403, 409, 429, 503), ROUTES):
            if route[1] != "/openapi.json":
                response = call_route(Shop(celery_app, client), route, {"x-status": str(status)})
                problem(response, status, "refused")
                assert (response.json()["detail"], response.headers["x-why"]) == ("not you", "house rule"), route


def test_hostile_cookies_are_refused_unread(celery_app: Celery, standing: Standing) -> None:
    """Cookies that Python may take seconds to parse are refused by the API and the dashboard before anybody reads them.

    A hook of the app, a form of login and FastAPI, which parses the cookies of each request, are not called.
    """
    seen: list[Any] = []

    def authorize(request: Request) -> tuple[str, str]:
        seen.append(request.cookies)
        return "ann", "read"

    app, keys = FastAPI(), standing.keys.path
    app.include_router(router(celery_app, prefix="/v1", keys=keys))
    app.mount("/api", create_app(celery_app, keys=keys))
    app.mount("/hook", onejob.dashboard(celery_app, authorize=authorize))
    client = TestClient(app, headers=bearer(standing.texts["read"]))
    for cookie, is_refused in {
        'a="' + "\\" * 60_000 + '"': True, "a=" + "b" * 60_000: True, 'a="' + "\\" * 300 + '"': True,
        'a=b; messages="[\\054\\054]"': False,
    }.items():  # fmt: skip
        for path in ("/v1/jobs", "/v1/healthz", "/api/jobs", "/api/healthz", "/hook/jobs", "/hook/live?job=x"):
            status = client.get(path, headers={"cookie": cookie}).status_code
            assert (status == 400) is is_refused, (path, cookie[:20])
    assert [cookies["a"] for cookies in seen] == ["b", "b"]


@for_each("own_jobs", [False, True])
def test_a_middleware_may_set_the_submitter(celery_app: Celery, own_jobs: bool) -> None:
    """The submitter that a middleware sets is that of its request alone, also in batches; with own jobs it limits."""
    app = FastAPI()
    app.include_router(router(celery_app, open=True))

    @app.middleware("http")
    async def named(request: Request, call_next: Any) -> Any:
        with onejob.submitter(request.headers["x-user"], own_jobs=own_jobs):
            return await call_next(request)

    client = TestClient(app, raise_server_exceptions=False)
    one, two = (Shop(celery_app, client, headers={"x-user": f"user:{number}"}) for number in range(2))
    first, second = (user.submit(10 * own_jobs, idempotency_key="k").json() for user in (one, two))
    assert (first["job"]["submitter"], first["outcome"]) == ("user:0", "admitted")
    assert second["outcome"] == ("admitted" if own_jobs else "attached")
    assert two.get(f"/jobs/{first['job']['id']}").status_code == (404 if own_jobs else 200)


UNKNOWN = "00000000-0000-4000-8000-000000000000"
Tenants: TypeAlias = tuple[Shop, ...]
JOB_ROUTES = [
    ("GET", ""), ("GET", "/events"), ("GET", "/duplicates"), ("GET", "/history"), ("POST", "/cancel"),
    ("POST", "/cancel?force=true"), ("POST", "/redrive"), ("POST", "/run-now"), ("DELETE", ""),
]  # fmt: skip


@pytest.fixture
def tenants(keyed: Shop) -> Tenants:
    """Return two tenants, a client that sees everything, and one that is limited to the task `shop.invoice`."""
    return tuple(keyed.named(name) for name in ("one", "two", "operate", "limited"))


def call(shop: Shop, method: str, path: str) -> Any:
    return shop.request(method, path, **({"json": {}} if method == "POST" else {}))


def ids(response: Any) -> list[str]:
    return [job["id"] for job in response.json()["jobs"]]


@pytest.mark.parametrize(("name", "owner", "other", "task"), [
    ("one", "one", "two", "invoice"), ("limited", "operate", "operate", "strict"),
])  # fmt: skip
def test_a_limited_key_reads_and_operates_only_its_jobs(
    keyed: Shop, name: str, owner: str, other: str, task: str
) -> None:
    """Lists, counts, dead letters, statistics and routes of a key with own jobs, or with tasks, have these only."""
    key, own, others = (keyed.named(each) for each in (name, owner, other))
    mine, foreign = own.job_id(1), others.job_id(1, task)
    for user, kind, number in ((own, "invoice", 1), (others, task, 3)):
        assert {user.submit(1, kind).status_code for _ in range(number)} <= {200, 409}
    failed, _ = own.failed(own.job_id(2)).id, others.failed(others.job_id(2, task))
    for more in ("", "&include=result"):
        pages = [key.get(f"/jobs?count=true&limit=1{more}").json()]
        pages.append(key.get(f"/jobs?limit=1{more}&cursor={pages[0]['next']}").json())
        assert [[job["id"] for job in page["jobs"]] for page in pages] == [[failed], [mine]]
        assert (pages[0]["total"], pages[0]["by_state"]["failed"]) == (2, 1)
        assert key.get(f"/jobs?limit=1{more}&cursor={pages[1]['next']}").json() == {"jobs": [], "next": None}
        assert ids(key.get(f"/dead?limit=9{more}")) == [failed]
    for each, amount in ((mine, "0.5"), (foreign, "9")):
        run = accepted(keyed.ledger.claim(each, nonce=new_nonce(), node="node-1"))
        keyed.ledger.release(keyed.ledger.add_cost(run, {"usd": Decimal(amount)}), "released")
    for by in ("task", "submitter", "day"):
        assert [(row["spent"], row["saved"]) for row in key.get(f"/costs?by={by}").json()] == [("0.5", "0.5")], by
    for by in ("task", "submitter", "identity"):
        assert [row["counts"]["attached"] for row in key.get(f"/duplicates/summary?by={by}").json()] == [1], by
    for method, path in JOB_ROUTES:
        problem(call(key, method, f"/jobs/{foreign}{path}"), 404, "job-not-found")
    assert key.get(f"/jobs/{mine}/history").json()[0]["event"] == "submit"
    assert [each["submitter"] for each in key.get(f"/jobs/{mine}/duplicates").json()] == [owner]
    assert key.post(f"/jobs/{mine}/cancel").json()["reason"] == f"canceled over HTTP by {name}"
    assert key.post(f"/jobs/{failed}/redrive").status_code == 202
    assert keyed.ledger.get(foreign).state == "queued"


def test_a_limited_key_is_answered_by_its_jobs_only(tenants: Tenants) -> None:
    """A filter, a check and a submission find what the key may see; a task that it may not use is refused."""
    one, two, staff, limited = tenants
    invoice, mine, others, _ = staff.job_id(1), one.job_id(1), two.job_id(1), staff.job_id(1, "strict")
    call = {"task": "shop.invoice", "kwargs": {"order_id": 1}}
    checks = [each.post("/duplicates/check", call).json()["existing"]["id"] for each in (one, two, staff)]
    assert checks == [mine, others, invoice]
    assert (ids(one.get("/jobs?submitter=two")), ids(limited.get("/jobs?task=shop.strict"))) == ([], [])
    assert len(ids(staff.get("/jobs"))) == 4
    assert limited.submit(1).json()["job"]["id"] == invoice
    for path, more in (("/jobs", {}), ("/jobs", {"validate_only": True}), ("/duplicates/check", {})):
        problem(limited.post(path, call | {"task": "shop.strict"} | more), 403, "forbidden")


def test_foreign_and_unknown_ids_are_indistinguishable(tenants: Tenants) -> None:
    """For live, ended, failed, purged and unknown ids of others, each route returns the same 404."""
    one, two, _, _ = tenants
    live, failed, canceled, purged = (two.job_id(number) for number in (1, 2, 3, 4))
    two.failed(failed)
    for job_id in (canceled, purged):
        two.ledger.cancel(job_id)
    two.ledger.purge([purged])
    for method, path in JOB_ROUTES:
        wanted = problem(call(one, method, f"/jobs/{UNKNOWN}{path}"), 404, "job-not-found")
        for job_id in (live, failed, canceled, purged):
            response = call(one, method, f"/jobs/{job_id}{path}")
            details = problem(response, 404, "job-not-found")
            assert {**details, "detail": details["detail"].replace(job_id, UNKNOWN)} == wanted, path
            assert "location" not in response.headers
    waited = one.get(f"/jobs/{live}", headers={"prefer": "wait=5", "if-none-match": "*"})
    problem(waited, 404, "job-not-found")


def test_bulk_operations_are_of_visible_jobs(tenants: Tenants) -> None:
    """A bulk operation, and the groups of dead letters, have only the caller's jobs, whatever is named."""
    one, two, _, limited = tenants
    mine, foreign, strict = (
        each.failed(each.job_id(1, task)).id
        for each, task in ((one, "invoice"), (two, "invoice"), (two, "strict"))
    )  # fmt: skip
    live, purged = two.job_id(3), two.job_id(4)
    two.ledger.cancel(purged)
    two.ledger.purge([purged])
    (group,) = one.get("/dead/groups").json()["groups"]
    assert (group["count"], group["job_ids"]) == (1, [mine])
    assert {each["task"] for each in limited.get("/dead/groups").json()["groups"]} == {"shop.invoice"}
    named = {"job_ids": [foreign, purged, live, UNKNOWN]}
    for path, body in (("/dead/redrive", named), ("/jobs/bulk", {"operation": "delete", **named})):
        refused = one.post(path, body).json()["refused"]
        assert {text.replace(job_id, UNKNOWN) for job_id, text in refused.items()} == {refused[UNKNOWN]}
    assert one.post("/dead/redrive", {"all": True, "dry_run": True}).json()["done"] == [mine]
    wanted = {"operation": "delete", "filter": {"state": ["failed"]}}
    assert one.post("/jobs/bulk", wanted | {"filter": {"submitter": "two"}}).json()["done"] == []
    assert one.post("/jobs/bulk", wanted).json()["done"] == [mine]
    assert limited.post("/jobs/bulk", wanted).json()["done"] == [foreign]
    assert {job.id for job in one.ledger.find(Query())} == {strict, live}


@for_each("method, path", [
    *(("GET", path) for path in ("/metrics", "/queues", "/activity", "/audit", "/jobs/any/explanation", "/schedules",
                                  "/pauses", "/strikes", "/limits", "/limits/any")),
    *(("POST", f"/schedules/any/{operation}") for operation in ("pause", "resume", "run")),
])  # fmt: skip
def test_routes_about_all_jobs_are_refused(tenants: Tenants, method: str, path: str) -> None:
    """A caller limited to own jobs or to tasks has no metrics, queues, activity, audit log, explanation or schedule."""
    one, _, staff, limited = tenants
    for shop in (one, limited):
        problem(call(shop, method, path), 403, "forbidden")
    assert call(staff, method, path).status_code == (404 if "any" in path else 200)
