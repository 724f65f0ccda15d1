"""Reading, canceling and redriving jobs over HTTP."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.sse import KEEPALIVE_COMMENT

from onejob.api.callers import Caller, Permissions
from onejob.api.routes import jobs
from onejob.api.routes.jobs import parse_wait
from onejob.celery.batching import PerLoop
from onejob.jobs.lifecycle import State
from onejob.ledger.explain import explain
from tests.cases import for_each
from tests.http.conftest import problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from onejob.jobs.model import Job
    from tests.http.conftest import Shop


def _ids(shop: Shop, count: int) -> list[str]:
    return [shop.post("invoice", {"order_id": number}).json()["job"]["id"] for number in range(count)]


def test_a_job_has_its_result_or_error(shop: Shop) -> None:
    """A job is returned with its result or its error, without its arguments and without a traceback."""
    done, failed = _ids(shop, 2)
    shop.ledger.complete(shop.claimed(done), '{"total": 5}')
    shop.failed(failed)
    assert shop.client.get(f"/jobs/{done}").json()["result"] == {"total": 5}
    response = shop.client.get(f"/jobs/{failed}")
    assert response.json()["error"] == {"type": "ValueError", "message": "no"}
    assert "secret" not in response.text
    assert "order_id" not in response.text


def test_an_unchanged_job_is_304(shop: Shop) -> None:
    """A job has an ETag that changes with its view; a matching If-None-Match gets 304 without a body."""
    (job_id,) = _ids(shop, 1)
    tag = shop.client.get(f"/jobs/{job_id}").headers["etag"]
    for header in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = shop.client.get(f"/jobs/{job_id}", headers={"if-none-match": header})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    shop.claimed(job_id)
    changed = shop.client.get(f"/jobs/{job_id}", headers={"if-none-match": tag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != tag


@for_each(
    "job_id, rest",
    itertools.product(
        ["nobody", "a%00b", "%ff", "a%0Ab", "x" * 300, "..", "%F0%9D%84%9E", "a%2fb"],
        ["", "/duplicates", "/history", "/events", "/explanation"],
    ),
)
def test_an_id_that_no_job_has_is_not_found(shop: Shop, job_id: str, rest: str) -> None:
    """An unknown or invalid id is 404 on every route of a job."""
    response = shop.client.get(f"/jobs/{job_id}{rest}")
    assert response.status_code == 404, response.text
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("limit", [1, 2, 3, 200])
def test_pages_list_each_job_once(shop: Shop, limit: int) -> None:
    """Following the cursor of each page lists every job once, newest first."""
    made = _ids(shop, 5)
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = shop.client.get("/jobs", params={"limit": limit} | ({"cursor": cursor} if cursor else {})).json()
        seen += [job["id"] for job in page["jobs"]]
        cursor = page["next"]
    assert seen == made[::-1]


def test_lists_are_filtered(shop: Shop) -> None:
    """A list has only jobs of the requested states, task and identity."""
    first, second = _ids(shop, 2)
    shop.claimed(first)

    def listed(query: str) -> list[str]:
        return [job["id"] for job in shop.client.get(f"/jobs?{query}").json()["jobs"]]

    assert listed("state=running") == [first]
    assert listed("state=running&state=queued") == [second, first]
    assert listed("task=shop.strict") == []
    assert listed(f"identity={shop.ledger.get(second).identity}") == [second]


def _cursor(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@for_each(
    "query",
    [
        "limit=0",
        "limit=201",
        "limit=x",
        "limit=9999999999999999999999",
        "state=done",
        "task=%00",
        "task=" + "x" * 256,
        "cursor=",
        "cursor=%ff",
        "cursor=AAAA",
        "cursor=" + "W" * 1001,
        *(
            f"cursor={_cursor(each)}"
            for each in (
                [1],
                [1.0, 2],
                [1.0, "\0"],
                {"a": 1, "b": 2},
                ["x", "y"],
                [1.0, "\ud800"],
                [1.0, "a", -1],
                [1.0, "a", True],
                [1.0, "a", 2**63],
                [None, "a", 1],
            )
        ),
        f"cursor={_cursor([float('inf'), 'a'])}",
    ],
)
def test_a_query_that_makes_no_sense_is_told(shop: Shop, query: str) -> None:
    """An invalid filter, limit or cursor is 422."""
    problem(shop.client.get(f"/jobs?{query}"), 422, "invalid-request")


def test_a_queued_job_is_canceled_at_once(shop: Shop) -> None:
    """A queued job is canceled at once, and a job that has ended cannot be canceled."""
    (job_id,) = _ids(shop, 1)
    response = shop.client.post(f"/jobs/{job_id}/cancel", json={})
    assert (response.status_code, response.json()["state"]) == (200, "canceled")
    assert problem(shop.client.post(f"/jobs/{job_id}/cancel", json={}), 409, "job-ended")["state"] == "canceled"


@pytest.mark.parametrize(("query", "requested"), [("", 1), ("?force=true", 2)])
def test_canceling_a_run_is_a_request(shop: Shop, query: str, requested: int) -> None:
    """Canceling a running job is a request, 202; `force` records a forced one."""
    (job_id,) = _ids(shop, 1)
    shop.claimed(job_id)
    response = shop.client.post(f"/jobs/{job_id}/cancel{query}", json={})
    assert (response.status_code, response.json()["state"], response.json()["cancel_requested"]) == (
        202,
        "running",
        True,
    )
    assert shop.ledger.get(job_id).cancel == requested


def test_a_dead_letter_is_redriven(shop: Shop) -> None:
    """A failed job is listed as a dead letter and can be redriven, unless its identity is held; other jobs cannot."""
    (job_id,) = _ids(shop, 1)
    problem(shop.client.post(f"/jobs/{job_id}/redrive", json={}), 409, "not-a-dead-letter")
    shop.failed(job_id)
    assert [job["id"] for job in shop.client.get("/dead?error=valueerror").json()["jobs"]] == [job_id]
    assert shop.client.get("/dead?error=other").json()["jobs"] == []
    (live,) = _ids(shop, 1)
    details = problem(shop.client.post(f"/jobs/{job_id}/redrive", json={}), 409, "identity-held")
    assert details["holder_id"] == live
    shop.ledger.cancel(live)
    response = shop.client.post(f"/jobs/{job_id}/redrive", json={})
    assert (response.status_code, response.json()["state"]) == (202, "queued")


def test_a_job_is_explained(shop: Shop) -> None:
    """The explanation of a job has the sentences that `onejob why` prints, and why the job is stuck, if it is."""
    (job_id,) = _ids(shop, 1)
    explained = shop.client.get(f"/jobs/{job_id}/explanation").json()
    assert explained["stuck"] == "no worker is alive"
    assert explained["sentences"] == explain(shop.ledger, job_id).sentences
    shop.ledger.cancel(job_id)
    assert shop.client.get(f"/jobs/{job_id}/explanation").json()["stuck"] is None


def test_history_and_duplicate_statistics_are_returned(shop: Shop) -> None:
    """The history of a job and the statistics of duplicates are returned."""
    (job_id,) = _ids(shop, 1)
    _ids(shop, 1)
    shop.ledger.complete(shop.claimed(job_id), "1")
    assert [line["event"] for line in shop.client.get(f"/jobs/{job_id}/history").json()] == [
        "submit",
        "claim",
        "complete",
    ]
    for by, name in (("task", "shop.invoice"), ("identity", shop.ledger.get(job_id).identity), ("submitter", "")):
        (saving,) = shop.client.get(f"/duplicates/summary?by={by}").json()
        assert (saving["name"], saving["counts"]["attached"], saving["runs_saved"]) == (name, 1, 1)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 0),
        ("wait=5", 5),
        ("respond-async, wait=5", 5),
        ("wait=99999", 30),
        ("await=5", 0),
        ("wait=-5", 0),
        ('wait="7"', 7),
    ],
)
def test_prefer_wait_is_parsed(header: str | None, seconds: float) -> None:
    """`Prefer: wait=N` is found among other preferences, and is limited."""
    assert parse_wait(header) == seconds


def test_an_ended_job_has_one_event(shop: Shop) -> None:
    """The stream of an ended job has one event; a client that has received it gets 204."""
    (job_id,) = _ids(shop, 1)
    shop.ledger.complete(shop.claimed(job_id), "1")
    response = shop.client.get(f"/jobs/{job_id}/events")
    fields = dict(line.split(": ", 1) for line in response.text.strip().splitlines())
    assert response.headers["content-type"].startswith("text/event-stream")
    assert (fields["event"], json.loads(fields["data"])["state"]) == ("state", State.COMPLETED)
    again = shop.client.get(f"/jobs/{job_id}/events", headers={"last-event-id": fields["id"]})
    assert (again.status_code, again.content) == (204, b"")


class UnpublishedChanges:
    """A watch over a job to which nothing that is shown ever happens, however often it is written to."""

    def __init__(self, job: Job) -> None:
        self.job = job

    async def wait_for_change(self, seconds: float) -> bool:
        """Report a change at once."""
        await asyncio.sleep(0)
        self.job = replace(self.job, lease_until=(self.job.lease_until or 0) + 1)
        return seconds >= 0


def test_an_idle_stream_sends_keepalives(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream without events sends keepalive comments, also while unpublished fields such as the lease change."""
    (job_id,) = _ids(shop, 1)
    watch = UnpublishedChanges(shop.claimed(job_id))

    @asynccontextmanager
    async def watch_job(_job: Job, _caller: str) -> AsyncIterator[UnpublishedChanges]:
        yield watch

    endpoints: Any = jobs.JobRoutes(shop.ledger)
    endpoints.watchers = PerLoop(lambda: SimpleNamespace(watch=watch_job))
    monkeypatch.setattr(jobs, "KEEPALIVE_INTERVAL", 0.05)

    caller = Caller("reader", own_jobs=False)
    state = SimpleNamespace(caller=caller, permissions=Permissions(caller), authenticate=lambda: None)
    request: Any = SimpleNamespace(state=state)

    async def first(count: int) -> list[bytes]:
        stream = endpoints._stream(watch.job, request, None)
        return [await anext(stream) for _ in range(count)]

    details = asyncio.run(first(3))
    assert details[0].startswith(b"event: state")
    assert details[1:] == [KEEPALIVE_COMMENT] * 2
