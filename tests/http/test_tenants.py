"""Callers with own jobs: over every route, the jobs of others look as if they did not exist."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from starlette.testclient import TestClient

import onejob
from onejob.api import create_app, job_pages
from onejob.api.api_keys import KeyFile, Role
from onejob.celery.app_state import app_state_of
from onejob.jobs.records import Query
from tests.cases import for_each
from tests.http.conftest import problem
from tests.http.shop import build
from tests.http.test_api_keys import bearer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery

    from onejob.ledger.ledger import Ledger
    from tests.contract.support import StoreAddress

UNKNOWN = "00000000-0000-4000-8000-000000000000"
ERROR = '{"type": "ValueError", "message": "no", "traceback": ""}'
JOB_ROUTES = [
    ("GET", ""), ("GET", "/events"), ("GET", "/duplicates"), ("GET", "/history"), ("POST", "/cancel"),
    ("POST", "/cancel?force=true"), ("POST", "/redrive"), ("POST", "/run-now"), ("DELETE", ""),
]  # fmt: skip


@dataclass(frozen=True)
class Tenant:
    """A client with a key of its own."""

    client: TestClient
    key: str

    def get(self, path: str, **more: Any) -> Any:
        """Send a GET request."""
        return self.client.get(path, headers=bearer(self.key) | more.pop("headers", {}), **more)

    def post(self, path: str, body: Any = None) -> Any:
        """Send a POST request."""
        return self.client.post(path, json={} if body is None else body, headers=bearer(self.key))

    def call(self, method: str, path: str) -> Any:
        """Send a request."""
        return self.client.request(method, path, headers=bearer(self.key), json={} if method == "POST" else None)

    def submit(self, order_id: int = 1, task: str = "invoice", **more: Any) -> Any:
        """Submit a job."""
        return self.post("/jobs", {"task": f"shop.{task}", "kwargs": {"order_id": order_id}, **more})

    def job_id(self, order_id: int = 1, **more: Any) -> str:
        """Submit a job, and return its id."""
        return str(self.submit(order_id, **more).json()["job"]["id"])


@dataclass(frozen=True)
class Tenants:
    """Two tenants, a caller that sees everything, and one that is limited to a task."""

    app: Celery
    one: Tenant
    two: Tenant
    staff: Tenant
    limited: Tenant

    @property
    def ledger(self) -> Ledger:
        """The ledger of the app."""
        return app_state_of(self.app).ledger

    def fail(self, job_id: str) -> None:
        """Let a job fail."""
        job = self.ledger.claim(job_id, nonce=job_id, node="node").job
        assert job is not None
        self.ledger.fail(job, ERROR, "ValueError: no")


def _opened(app: Celery, directory: Path) -> Iterator[Tenants]:
    file = KeyFile(directory / "keys.json")
    keys = [
        file.add("one", Role.OPERATE, own_jobs=True),
        file.add("two", Role.OPERATE, own_jobs=True),
        file.add("staff", Role.OPERATE),
        file.add("limited", Role.OPERATE, tasks=["shop.invoice"]),
    ]
    with TestClient(create_app(app, keys=file.path), raise_server_exceptions=False) as client:
        yield Tenants(app, *(Tenant(client, key) for key in keys))
    app_state_of(app).ledger.close()


@pytest.fixture
def tenants(celery_app: Celery, tmp_path: Path) -> Iterator[Tenants]:
    """Return tenants on SQLite."""
    yield from _opened(celery_app, tmp_path)


@pytest.fixture
def stored(store_address: StoreAddress, tmp_path: Path) -> Iterator[Tenants]:
    """Return tenants on each store."""
    yield from _opened(build(store_address.url, onejob_namespace=store_address.namespace), tmp_path)


def ids(response: Any) -> list[str]:
    """Return the ids of a page of jobs."""
    return [job["id"] for job in response.json()["jobs"]]


def test_equal_submissions_of_tenants_are_two_jobs(stored: Tenants) -> None:
    """Submissions of one tenant attach to its own jobs only, also with a shared idempotency key."""
    mine, others = stored.one.submit(), stored.two.submit()
    assert [each.json()["outcome"] for each in (mine, others)] == ["admitted"] * 2
    assert mine.json()["job"]["identity"] != others.json()["job"]["identity"]
    again = stored.one.submit().json()
    assert (again["outcome"], again["job"]["id"]) == ("attached", mine.json()["job"]["id"])
    keyed = [each.submit(7, idempotency_key="k").json() for each in (stored.one, stored.two, stored.staff)]
    assert [each["outcome"] for each in keyed] == ["admitted"] * 3
    assert stored.staff.submit().json()["outcome"] == "admitted"
    for strict in (stored.one, stored.two):
        assert strict.submit(9, "strict").status_code == 202
        problem(strict.submit(9, "strict"), 409, "duplicate-job")


def test_a_tenant_reads_and_operates_only_its_jobs(stored: Tenants) -> None:
    """Lists, counts, dead letters and statistics of a tenant have its own jobs only; a full key sees all of them."""
    mine, others = stored.one.job_id(1), stored.two.job_id(1)
    for tenant, number in ((stored.one, 1), (stored.two, 3)):
        for _ in range(number):
            tenant.submit(1)
    failed, others_failed = stored.one.job_id(2), stored.two.job_id(2)
    for job_id in (failed, others_failed):
        stored.fail(job_id)
    page = stored.one.get("/jobs?count=true").json()
    assert {job["id"] for job in page["jobs"]} == {mine, failed}
    assert (page["total"], page["by_state"]["failed"], page["by_state"]["queued"]) == (2, 1, 1)
    assert ids(stored.one.get("/dead")) == [failed]
    assert ids(stored.one.get("/jobs?submitter=two")) == []
    identity = stored.two.get(f"/jobs/{others}").json()["identity"]
    assert ids(stored.one.get(f"/jobs?identity={identity}")) == []
    own = stored.one.get(f"/jobs/{mine}").json()["identity"]
    for by, name in (("task", "shop.invoice"), ("submitter", "one"), ("identity", own)):
        (row,) = stored.one.get(f"/duplicates/summary?by={by}").json()
        assert (row["name"], row["counts"]["attached"]) == (name, 1)
    assert len(stored.staff.get("/jobs").json()["jobs"]) == 4
    assert sum(row["counts"]["attached"] for row in stored.staff.get("/duplicates/summary").json()) == 4
    assert stored.one.get(f"/jobs/{mine}/history").json()[0]["event"] == "submit"
    assert [each["submitter"] for each in stored.one.get(f"/jobs/{mine}/duplicates").json()] == ["one"]
    assert stored.one.post(f"/jobs/{mine}/cancel").json()["reason"] == "canceled over HTTP by one"
    assert stored.one.post(f"/jobs/{failed}/redrive").status_code == 202
    assert stored.two.get(f"/jobs/{others}").json()["state"] == "queued"


def test_pages_have_only_visible_jobs(stored: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages, their cursors, counts and large fields are of the caller's jobs, wherever a page ends."""
    mine: dict[str, list[str]] = {"one": [], "two": [], "limited": []}
    for number in range(4):
        for name in ("one", "two"):
            tenant = getattr(stored, name)
            mine[name].insert(0, tenant.job_id(number))
            tenant.submit(number, "strict")
    mine["limited"] = [each for pair in zip(mine["two"], mine["one"], strict=True) for each in pair]
    for name in ("one", "two"):
        stored.fail(mine[name][0])
    for budget in (1_000_000, 1):
        monkeypatch.setattr(job_pages, "PAGE_BYTES", budget)
        for name, expected in mine.items():
            tenant = getattr(stored, name)
            for more in ("", "&include=result&include=progress"):
                assert _walk(tenant, f"/jobs?task=shop.invoice&limit=3{more}") == expected
                assert set(_walk(tenant, f"/dead?limit=1{more}")) == {mine["one"][0], mine["two"][0]} & {*expected}
            assert tenant.get("/jobs?task=shop.invoice&count=true").json()["total"] == len(expected)
    nothing = stored.one.get("/jobs?submitter=two&count=true&include=result").json()
    assert (nothing["jobs"], nothing["next"], nothing["total"]) == ([], None, 0)
    assert set(nothing["by_state"].values()) == {0}
    assert stored.limited.get("/jobs?count=true").json()["total"] == 8


def _walk(tenant: Tenant, path: str) -> list[str]:
    """Return the ids on all pages."""
    found, cursor = [], ""
    while cursor is not None:
        page = tenant.get(f"{path}&cursor={cursor}" if cursor else path).json()
        found += [job["id"] for job in page["jobs"]]
        cursor = page["next"]
    return found


@for_each("method path", JOB_ROUTES)
def test_foreign_and_unknown_ids_are_indistinguishable(tenants: Tenants, method: str, path: str) -> None:
    """For live, ended, failed, purged and unknown ids of others, each route returns the same 404."""
    live, failed, canceled, purged = (tenants.two.job_id(number) for number in (1, 2, 3, 4))
    state = tenants.ledger.get(failed).state
    if state != "failed":
        tenants.fail(failed)
        tenants.two.post(f"/jobs/{canceled}/cancel")
        tenants.two.post(f"/jobs/{purged}/cancel")
        tenants.ledger.purge([purged])
    wanted = problem(tenants.one.call(method, f"/jobs/{UNKNOWN}{path}"), 404, "job-not-found")
    for job_id in (live, failed, canceled, purged):
        response = tenants.one.call(method, f"/jobs/{job_id}{path}")
        details = problem(response, 404, "job-not-found")
        assert {**details, "detail": details["detail"].replace(job_id, UNKNOWN)} == wanted
        assert "location" not in response.headers
    waited = tenants.one.get(f"/jobs/{live}", headers={"prefer": "wait=5", "if-none-match": "*"})
    problem(waited, 404, "job-not-found")


def test_bulk_redrive_reveals_and_changes_no_foreign_job(tenants: Tenants) -> None:
    """A bulk redrive by ids answers foreign, purged and unknown ids alike; one by a filter takes own jobs only."""
    mine, foreign, purged, live = (
        tenant.job_id(number) for number, tenant in enumerate([tenants.one, *[tenants.two] * 3])
    )
    for job_id in (mine, foreign):
        tenants.fail(job_id)
    tenants.two.post(f"/jobs/{purged}/cancel")
    tenants.ledger.purge([purged])
    refused = tenants.one.post("/dead/redrive", {"job_ids": [foreign, purged, live, UNKNOWN]}).json()["refused"]
    assert {text.replace(job_id, UNKNOWN) for job_id, text in refused.items()} == {refused[UNKNOWN]}
    assert tenants.one.post("/dead/redrive", {"all": True}).json()["done"] == [mine]
    assert tenants.ledger.get(foreign).state == "failed"


def test_bulk_operations_and_groups_are_of_visible_jobs(stored: Tenants) -> None:
    """A bulk operation and the groups of dead letters have only the caller's jobs, whatever the filter names."""
    mine, foreign = stored.one.job_id(1), stored.two.job_id(1)
    strict = stored.two.job_id(2, task="strict")
    for job_id in (mine, foreign, strict):
        stored.fail(job_id)
    assert [(each["count"], each["job_ids"]) for each in stored.one.get("/dead/groups").json()] == [(1, [mine])]
    assert {each["task"] for each in stored.limited.get("/dead/groups").json()} == {"shop.invoice"}
    assert sum(each["count"] for each in stored.staff.get("/dead/groups").json()) == 3
    wanted = {"operation": "delete", "filter": {"state": ["failed"]}}
    assert stored.one.post("/jobs/bulk", wanted | {"filter": {"submitter": "two"}}).json()["done"] == []
    refused = stored.one.post("/jobs/bulk", {"operation": "delete", "job_ids": [foreign, UNKNOWN]}).json()["refused"]
    assert refused[foreign].replace(foreign, UNKNOWN) == refused[UNKNOWN]
    assert stored.one.post("/jobs/bulk", wanted).json()["done"] == [mine]
    assert stored.limited.post("/jobs/bulk", wanted).json()["done"] == [foreign]
    assert [job.id for job in stored.ledger.find(Query())] == [strict]


def test_a_check_is_made_for_the_caller(stored: Tenants) -> None:
    """A duplicate check finds the caller's own job, and no job of a tenant for others; other tasks are refused."""
    mine = stored.one.job_id(1)
    body = {"task": "shop.invoice", "kwargs": {"order_id": 1}}
    found = stored.one.post("/duplicates/check", body).json()
    assert (found["outcome"], found["existing"]["id"]) == ("attached", mine)
    for tenant in (stored.two, stored.staff, stored.limited):
        other = tenant.post("/duplicates/check", body).json()
        assert (other["outcome"], other["existing"]) == ("admitted", None)
    problem(stored.limited.post("/duplicates/check", body | {"task": "shop.strict"}), 403, "forbidden")


def test_routes_about_all_jobs_are_refused(tenants: Tenants) -> None:
    """A caller that is limited to own jobs or to tasks reads no metrics, activity, audit log or explanation."""
    for path in ("/metrics", "/activity", "/audit", "/jobs/any/explanation"):
        problem(tenants.one.get(path), 403, "forbidden")
        problem(tenants.limited.get(path), 403, "forbidden")
        assert tenants.staff.get(path).status_code == (404 if "any" in path else 200)
    assert {(each["actor"], each["outcome"]) for each in tenants.staff.get("/audit").json()} == {
        ("one", "forbidden"), ("limited", "forbidden"), ("staff", "job-not-found"),
    }  # fmt: skip


def test_a_key_limited_to_tasks_uses_only_these(stored: Tenants) -> None:
    """A key with tasks submits, sees, counts and operates only the jobs of these tasks."""
    invoice, strict = stored.staff.job_id(1), stored.staff.job_id(1, task="strict")
    for tenant in (stored.staff, stored.staff):
        tenant.submit(1)
        tenant.submit(1, "strict")
    attached = stored.limited.submit(1).json()
    assert (attached["outcome"], attached["job"]["id"]) == ("attached", invoice)
    problem(stored.limited.submit(2, "strict"), 403, "forbidden")
    problem(stored.limited.submit(2, "strict", validate_only=True), 403, "forbidden")
    assert ids(stored.limited.get("/jobs")) == [invoice]
    assert ids(stored.limited.get("/jobs?task=shop.strict")) == []
    assert stored.limited.get("/jobs?count=true").json()["total"] == 1
    assert [row["name"] for row in stored.limited.get("/duplicates/summary").json()] == ["shop.invoice"]
    for method, path in JOB_ROUTES:
        problem(stored.limited.call(method, f"/jobs/{strict}{path}"), 404, "job-not-found")
    assert stored.limited.post(f"/jobs/{invoice}/cancel").status_code == 200
    assert stored.ledger.get(strict).state == "queued"


def test_a_quota_counts_for_its_tenant_alone(celery_app: Celery, tmp_path: Path) -> None:
    """The default quota of the settings applies to each key by itself, and a key's own quota replaces it."""
    celery_app.conf.onejob_quota = "1/day"
    for tenants in _opened(celery_app, tmp_path):
        for tenant in (tenants.one, tenants.two):
            assert [tenant.submit(number).status_code for number in (1, 2)] == [202, 429]
        task: Any = celery_app.tasks["shop.invoice"]
        with pytest.raises(onejob.QuotaExceededError), onejob.submitter("one", own_jobs=True):
            task.delay(3)
        with onejob.submitter("one", own_jobs=True, quota="5/day"):
            assert task.delay(3).outcome == "admitted"


def test_jobs_in_python_are_those_of_the_key(tenants: Tenants) -> None:
    """A job that Python submits for a submitter with own jobs is equal to one of the key of that name, and visible."""
    task: Any = tenants.app.tasks["shop.invoice"]
    with onejob.submitter("one", own_jobs=True):
        mine = task.delay(1)
    assert tenants.one.job_id(1) == mine.id
    problem(tenants.two.get(f"/jobs/{mine.id}"), 404, "job-not-found")
    assert task.delay(1).outcome == "admitted"


def test_a_former_life_of_a_name_reveals_nothing(tenants: Tenants) -> None:
    """An idempotency key that a name used before it had own jobs does not answer with the job of another one."""
    task: Any = tenants.app.tasks["shop.invoice"]
    foreign = task.delay(1)
    with onejob.submitter("one"):
        assert task.apply_async((1,), idempotency_key="k").id == foreign.id
    assert tenants.one.job_id(1, idempotency_key="k") != foreign.id
    assert len(tenants.ledger.find(Query())) == 2
