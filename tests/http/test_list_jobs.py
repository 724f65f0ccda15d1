"""Listing jobs over HTTP by submitter and time, counting them, and purged jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from onejob.jobs.lifecycle import FINAL, State
from onejob.jobs.submitter import submitter
from onejob.jobs.timestamps import format_timestamp, parse_timestamp
from tests.cases import for_each
from tests.http.conftest import problem

if TYPE_CHECKING:
    from tests.http.conftest import Shop

ROUTES = [
    ("GET", ""),
    ("GET", "/events"),
    ("GET", "/duplicates"),
    ("GET", "/history"),
    ("POST", "/cancel"),
    ("POST", "/redrive"),
]


def _submit_as(shop: Shop, *names: str) -> list[str]:
    """Submit a job as each of these submitters, and return the ids."""
    ids = []
    for number, name in enumerate(names):
        with submitter(name):
            ids.append(shop.app.tasks["shop.invoice"].delay(number).id)
    return ids


def _listed(shop: Shop, **params: Any) -> list[str]:
    response = shop.client.get("/jobs", params=params)
    assert response.status_code == 200, response.text
    return [job["id"] for job in response.json()["jobs"]]


def test_a_job_has_its_first_submitter(shop: Shop) -> None:
    """A job has the submitter of its first submission, and the list can be filtered by it."""
    (job_id,) = _submit_as(shop, "user:1")
    assert _submit_as(shop, "user:2") == [job_id]
    assert shop.client.get(f"/jobs/{job_id}").json()["submitter"] == "user:1"
    nobodys = shop.post("anything", {"value": 1}).json()["job"]
    assert nobodys["submitter"] == ""
    by = {name: _listed(shop, submitter=name) for name in ("user:1", "user:2", "")}
    assert by == {"user:1": [job_id], "user:2": [], "": [nobodys["id"]]}


def test_jobs_are_filtered_by_queue_worker_and_argument(shop: Shop) -> None:
    """The list can be filtered by the queue, by the worker of the latest run, and by an argument."""
    task = shop.app.tasks["shop.invoice"]
    first = task.apply_async((), {"order_id": 42, "note": "Zoë"}, queue="fast").id
    second = task.apply_async((), {"order_id": 7}, queue="slow").id
    shop.claimed(second)
    assert _listed(shop, queue="fast") == [first]
    assert (_listed(shop, worker="node"), _listed(shop, worker="")) == ([second], [first])
    found = {typed: _listed(shop, argument=typed) for typed in ("order_id=42", "note=Z", "oë", "shop.invoice", "")}
    assert found == {"order_id=42": [first], "note=Z": [first], "oë": [first], "shop.invoice": [], "": [second, first]}
    assert _listed(shop, queue="fast", argument="order_id=7") == []
    page = shop.client.get("/jobs", params={"argument": "order_id=7", "count": "true"}).json()
    assert (page["total"], page["by_state"]["running"]) == (1, 1)


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(hours=11))])
def test_jobs_are_filtered_by_time(shop: Shop, zone: timezone) -> None:
    """`since` (inclusive) and `until` (exclusive) are timestamps with any time zone."""
    ids = _submit_as(shop, *"abc")
    first, second, third = (datetime.fromtimestamp(shop.ledger.get(job_id).created_at, zone) for job_id in ids)
    assert first < second < third
    assert _listed(shop, since=second.isoformat()) == [ids[2], ids[1]]
    assert _listed(shop, until=second.isoformat()) == [ids[0]]
    assert _listed(shop, since=second.isoformat(), until=third.isoformat()) == [ids[1]]
    assert _listed(shop, since=third.isoformat(), until=first.isoformat()) == []
    assert _listed(shop, since="0001-01-01T00:00:00+14:00", until="9999-12-31T23:59:59-14:00") == ids[::-1]


@for_each(
    "query",
    [
        "since=yesterday",
        "since=",
        "since=2026-01-31T12:00:00",
        "since=2026-01-31",
        "until=1700000000",
        "until=2026-02-30T12:00:00Z",
        "until=2026-01-31T25:00:00Z",
        "until=2026-01-31T12:00:00%2B99:99",
        "since=2026-01-31T12:00:00+01:00",
        "since=%D9%A2026-01-31T12:00:00Z",
        "offset=-1",
        "offset=10001",
        "offset=x",
        "count=perhaps",
        "submitter=%00",
        "queue=%00",
        "argument=%00",
        f"argument={'x' * 256}",
    ],
)
def test_a_query_that_makes_no_sense_is_told(shop: Shop, query: str) -> None:
    """An invalid timestamp, offset or submitter is 422, and the error has its place and reason."""
    details = problem(shop.client.get(f"/jobs?{query}"), 422, "invalid-request")
    assert details["errors"][0]["at"] == ["query", query.partition("=")[0]]


def test_cursor_and_offset_exclude_each_other(shop: Shop) -> None:
    """A page begins at an offset or after a cursor; both together are refused."""
    ids = _submit_as(shop, *"abcde")[::-1]
    assert _listed(shop, offset=2, limit=2) == ids[2:4]
    assert _listed(shop, offset=5) == []
    page = shop.client.get("/jobs", params={"offset": 1, "limit": 2}).json()
    assert _listed(shop, cursor=page["next"]) == ids[3:]
    assert _listed(shop, cursor=page["next"], offset=0) == ids[3:]
    details = problem(shop.client.get("/jobs", params={"cursor": page["next"], "offset": 1}), 422, "invalid-request")
    assert "not both" in details["detail"]


def test_count_is_optional(shop: Shop) -> None:
    """With `count=true` a page has the number of all matching jobs, in total and for every state."""
    ids = _submit_as(shop, "user:1", "user:1", "user:2")
    shop.claimed(ids[0])
    params: dict[str, Any] = {"count": "true", "limit": 1}
    page = shop.client.get("/jobs", params=params).json()
    assert (len(page["jobs"]), page["total"]) == (1, 3)
    assert page["by_state"] == dict.fromkeys(State, 0) | {"queued": 2, "running": 1}
    assert shop.client.get("/jobs", params=params | {"submitter": "user:1"}).json()["total"] == 2
    assert shop.client.get("/jobs", params=params | {"cursor": page["next"]}).json()["total"] == 3
    assert set(shop.client.get("/jobs").json()) == {"jobs", "next"}


@pytest.mark.parametrize(("method", "rest"), ROUTES)
def test_a_purged_job_is_gone(shop: Shop, method: str, rest: str) -> None:
    """On every route of a job a purged one is 410 with its final state; an unknown one is 404."""
    (job_id,) = _submit_as(shop, "user:1")
    ended = shop.failed(job_id)
    assert ended.finished_at is not None
    assert shop.ledger.purge([job_id]) == [job_id]
    gone, unknown = (
        shop.client.request(method, f"/jobs/{each}{rest}", json={} if method == "POST" else None)
        for each in (job_id, "unknown")
    )
    problem(unknown, 404, "job-not-found")
    details = problem(gone, 410, "job-purged")
    assert (details["job_id"], details["state"], details["finished_at"]) == (
        job_id,
        "failed",
        format_timestamp(ended.finished_at),
    )
    assert parse_timestamp(details["purged_at"]) >= ended.finished_at


def test_the_id_of_a_purged_job_can_be_reused(shop: Shop) -> None:
    """A job submitted under the id of a purged one is returned as any other."""
    (job_id,) = _submit_as(shop, "user:1")
    shop.ledger.cancel(job_id)
    assert shop.ledger.store.delete([job_id], sources=FINAL, tombstone_for=100.0)
    shop.app.tasks["shop.invoice"].apply_async((7,), task_id=job_id)
    assert shop.client.get(f"/jobs/{job_id}").json()["state"] == "queued"


def test_a_wait_ends_when_the_job_is_purged(shop: Shop) -> None:
    """A wait for a job that is purged meanwhile ends with 410."""
    (job_id,) = _submit_as(shop, "user:1")
    get_many = shop.ledger.store.get_many

    def purges_first(job_ids: Any) -> Any:
        shop.ledger.store.get_many = get_many  # type: ignore[method-assign]
        shop.ledger.cancel(job_id)
        shop.ledger.purge([job_id])
        return get_many(job_ids)

    shop.ledger.store.get_many = purges_first  # type: ignore[method-assign]
    response = shop.client.get(f"/jobs/{job_id}", headers={"prefer": "wait=30"})
    assert problem(response, 410, "job-purged")["state"] == "canceled"
