"""Callers with own jobs: over every route, the jobs of others look as if they did not exist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import onejob
from onejob.jobs.records import Query
from tests.cases import for_each
from tests.http.conftest import problem

if TYPE_CHECKING:
    from tests.http.conftest import Shop

UNKNOWN = "00000000-0000-4000-8000-000000000000"
JOB_ROUTES = [
    ("GET", ""), ("GET", "/events"), ("GET", "/duplicates"), ("GET", "/history"), ("POST", "/cancel"),
    ("POST", "/cancel?force=true"), ("POST", "/redrive"), ("POST", "/run-now"), ("DELETE", ""),
]  # fmt: skip


@pytest.fixture
def one(keyed: Shop) -> Shop:
    """Return a tenant."""
    return keyed.named("one")


@pytest.fixture
def two(keyed: Shop) -> Shop:
    """Return another tenant."""
    return keyed.named("two")


@pytest.fixture
def staff(keyed: Shop) -> Shop:
    """Return a client that sees everything."""
    return keyed.named("operate")


@pytest.fixture
def limited(keyed: Shop) -> Shop:
    """Return a client that is limited to the task `shop.invoice`."""
    return keyed.named("limited")


def call(shop: Shop, method: str, path: str) -> Any:
    """Send a request."""
    return shop.request(method, path, **({"json": {}} if method == "POST" else {}))


def ids(response: Any) -> list[str]:
    """Return the ids of a page of jobs."""
    return [job["id"] for job in response.json()["jobs"]]


def test_equal_submissions_of_tenants_are_two_jobs(one: Shop, two: Shop, staff: Shop) -> None:
    """Submissions of one tenant attach to its own jobs only, also with a shared idempotency key."""
    mine, others = one.submit(1).json(), two.submit(1).json()
    assert [each["outcome"] for each in (mine, others)] == ["admitted"] * 2
    assert mine["job"]["identity"] != others["job"]["identity"]
    assert one.submit(1).json()["job"]["id"] == mine["job"]["id"]
    with_key = [each.submit(7, idempotency_key="k").json()["outcome"] for each in (one, two, staff)]
    assert [*with_key, staff.submit(1).json()["outcome"]] == ["admitted"] * 4
    for strict in (one, two):
        strict.job_id(9, "strict")
        problem(strict.submit(9, "strict"), 409, "duplicate-job")
    assert {job["submitter"] for job in one.get("/jobs").json()["jobs"]} == {"one"}
    assert ids(one.get(f"/jobs?identity={others['job']['identity']}")) == []


def test_a_tenant_reads_and_operates_only_its_jobs(one: Shop, two: Shop, staff: Shop) -> None:
    """Lists, counts, dead letters and statistics of a tenant have its own jobs only; a full key sees all of them."""
    mine, others = one.job_id(1), two.job_id(1)
    for tenant, number in ((one, 1), (two, 3)):
        for _ in range(number):
            tenant.submit(1)
    failed, _ = (each.failed(each.job_id(2)).id for each in (one, two))
    for more in ("", "&include=result"):
        pages = [one.get(f"/jobs?count=true&limit=1{more}").json()]
        pages.append(one.get(f"/jobs?limit=1{more}&cursor={pages[0]['next']}").json())
        assert [[job["id"] for job in page["jobs"]] for page in pages] == [[failed], [mine]]
        assert (pages[0]["total"], pages[0]["by_state"]["failed"]) == (2, 1)
        assert one.get(f"/jobs?limit=1{more}&cursor={pages[1]['next']}").json() == {"jobs": [], "next": None}
        assert ids(one.get(f"/dead?limit=9{more}")) == [failed]
    assert (ids(one.get("/jobs?submitter=two")), len(ids(staff.get("/jobs")))) == ([], 4)
    own = one.get(f"/jobs/{mine}").json()["identity"]
    for by, name in (("task", "shop.invoice"), ("submitter", "one"), ("identity", own)):
        (row,) = one.get(f"/duplicates/summary?by={by}").json()
        assert (row["name"], row["counts"]["attached"]) == (name, 1)
    assert sum(row["counts"]["attached"] for row in staff.get("/duplicates/summary").json()) == 4
    assert one.get(f"/jobs/{mine}/history").json()[0]["event"] == "submit"
    assert [each["submitter"] for each in one.get(f"/jobs/{mine}/duplicates").json()] == ["one"]
    assert one.post(f"/jobs/{mine}/cancel").json()["reason"] == "canceled over HTTP by one"
    assert one.post(f"/jobs/{failed}/redrive").status_code == 202
    assert two.get(f"/jobs/{others}").json()["state"] == "queued"


def test_foreign_and_unknown_ids_are_indistinguishable(one: Shop, two: Shop) -> None:
    """For live, ended, failed, purged and unknown ids of others, each route returns the same 404."""
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


def test_bulk_operations_are_of_visible_jobs(one: Shop, two: Shop, limited: Shop) -> None:
    """A bulk operation, and the groups of dead letters, have only the caller's jobs, whatever is named."""
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


def test_a_check_is_made_for_the_caller(one: Shop, two: Shop, staff: Shop, limited: Shop) -> None:
    """A duplicate check finds the caller's own job, and no job of a tenant for others; other tasks are refused."""
    mine = one.job_id(1)
    body = {"task": "shop.invoice", "kwargs": {"order_id": 1}}
    found = one.post("/duplicates/check", body).json()
    assert (found["outcome"], found["existing"]["id"]) == ("attached", mine)
    for tenant in (two, staff, limited):
        other = tenant.post("/duplicates/check", body).json()
        assert (other["outcome"], other["existing"]) == ("admitted", None)
    problem(limited.post("/duplicates/check", body | {"task": "shop.strict"}), 403, "forbidden")


@for_each("path", ["/metrics", "/activity", "/audit", "/jobs/any/explanation"])
def test_routes_about_all_jobs_are_refused(one: Shop, limited: Shop, staff: Shop, path: str) -> None:
    """A caller that is limited to own jobs or to tasks reads no metrics, activity, audit log or explanation."""
    for shop in (one, limited):
        problem(shop.get(path), 403, "forbidden")
    assert staff.get(path).status_code == (404 if "any" in path else 200)


def test_a_key_limited_to_tasks_uses_only_these(limited: Shop, staff: Shop) -> None:
    """A key with tasks submits, sees, counts and operates only the jobs of these tasks."""
    invoice, strict = staff.job_id(1), staff.job_id(1, "strict")
    staff.submit(1, "strict")
    attached = limited.submit(1).json()
    assert (attached["outcome"], attached["job"]["id"]) == ("attached", invoice)
    for more in ({}, {"validate_only": True}):
        problem(limited.submit(2, "strict", **more), 403, "forbidden")
    assert (ids(limited.get("/jobs")), ids(limited.get("/jobs?task=shop.strict"))) == ([invoice], [])
    assert limited.get("/jobs?count=true").json()["total"] == 1
    assert [row["name"] for row in limited.get("/duplicates/summary").json()] == ["shop.invoice"]
    for method, path in JOB_ROUTES:
        problem(call(limited, method, f"/jobs/{strict}{path}"), 404, "job-not-found")
    assert limited.post(f"/jobs/{invoice}/cancel").status_code == 200
    assert staff.ledger.get(strict).state == "queued"


def test_jobs_in_python_are_those_of_the_key(one: Shop, two: Shop) -> None:
    """A job of Python for a submitter with own jobs is that of the key of this name; one from before is another's."""
    foreign = one.task.delay(1)
    with onejob.submitter("one"):
        assert one.task.apply_async((1,), idempotency_key="k").id == foreign.id
    with onejob.submitter("one", own_jobs=True):
        mine = one.task.delay(1)
    assert (one.job_id(1), mine.id == foreign.id) == (mine.id, False)
    assert one.job_id(1, idempotency_key="k") != foreign.id
    problem(two.get(f"/jobs/{mine.id}"), 404, "job-not-found")
