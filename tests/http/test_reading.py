"""Looking at jobs over HTTP, calling them off, and sending dead letters again."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from threading import Event
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.sse import KEEPALIVE_COMMENT

from onejob.api.per_loop import PerLoop
from onejob.api.routes import jobs as reading
from onejob.api.routes.jobs import wait_of
from onejob.jobs.lifecycle import State
from tests.cases import for_each
from tests.http.conftest import problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from onejob.jobs.model import Job
    from tests.http.conftest import Shop


def _ids(shop: Shop, count: int) -> list[str]:
    return [shop.post("invoice", {"order_id": number}).json()["job"]["id"] for number in range(count)]


def test_a_job_is_shown_with_what_came_of_it(shop: Shop) -> None:
    """A job shows its result or its error, and neither its arguments nor a traceback."""
    done, failed = _ids(shop, 2)
    shop.ledger.complete(shop.claimed(done), '{"total": 5}')
    shop.failed(failed)
    assert shop.client.get(f"/jobs/{done}").json()["result"] == {"total": 5}
    answer = shop.client.get(f"/jobs/{failed}")
    assert answer.json()["error"] == {"type": "ValueError", "message": "no"}
    assert "secret" not in answer.text
    assert "order_id" not in answer.text


def test_what_has_not_changed_is_not_sent_again(shop: Shop) -> None:
    """A job has an ETag that changes with what is shown of it; who has that view gets 304 without a body."""
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
        ["", "/duplicates", "/history", "/events"],
    ),
)
def test_an_id_that_no_job_has_is_not_found(shop: Shop, job_id: str, rest: str) -> None:
    """Whatever stands in the place of an id, the answer is 404."""
    answer = shop.client.get(f"/jobs/{job_id}{rest}")
    assert answer.status_code == 404, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("limit", [1, 2, 3, 200])
def test_pages_show_each_job_once(shop: Shop, limit: int) -> None:
    """The cursor of a page leads to the next one, until every job has been shown once, the newest first."""
    made = _ids(shop, 5)
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = shop.client.get("/jobs", params={"limit": limit} | ({"cursor": cursor} if cursor else {})).json()
        seen += [job["id"] for job in page["jobs"]]
        cursor = page["next"]
    assert seen == made[::-1]


def test_lists_are_filtered(shop: Shop) -> None:
    """A list keeps to the states, the task and the identity that were asked for."""
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
            for each in ([1], [1.0, 2], [1.0, "\0"], {"a": 1, "b": 2}, ["x", "y"], [1.0, "\ud800"])
        ),
        f"cursor={_cursor([float('inf'), 'a'])}",
    ],
)
def test_a_query_that_makes_no_sense_is_told(shop: Shop, query: str) -> None:
    """A filter, a limit or a cursor that cannot be is 422."""
    problem(shop.client.get(f"/jobs?{query}"), 422, "invalid-request")


def test_a_waiting_job_is_canceled(shop: Shop) -> None:
    """A job that waits is canceled at once, and what has ended cannot be canceled."""
    (job_id,) = _ids(shop, 1)
    answer = shop.client.post(f"/jobs/{job_id}/cancel", json={})
    assert (answer.status_code, answer.json()["state"]) == (200, "canceled")
    assert problem(shop.client.post(f"/jobs/{job_id}/cancel", json={}), 409, "job-ended")["state"] == "canceled"


@pytest.mark.parametrize(("query", "asked"), [("", 1), ("?force=true", 2)])
def test_a_run_is_asked_to_stop(shop: Shop, query: str, asked: int) -> None:
    """To cancel a run is a request, 202; `force` asks its worker."""
    (job_id,) = _ids(shop, 1)
    shop.claimed(job_id)
    answer = shop.client.post(f"/jobs/{job_id}/cancel{query}", json={})
    assert (answer.status_code, answer.json()["state"], answer.json()["cancel_requested"]) == (202, "running", True)
    assert shop.ledger.get(job_id).cancel == asked


def test_a_dead_letter_is_sent_again(shop: Shop) -> None:
    """A failed job is listed as dead and can be sent again, unless it has not failed or its identity is held."""
    (job_id,) = _ids(shop, 1)
    problem(shop.client.post(f"/jobs/{job_id}/redrive", json={}), 409, "not-a-dead-letter")
    shop.failed(job_id)
    assert [job["id"] for job in shop.client.get("/dead?error=valueerror").json()["jobs"]] == [job_id]
    assert shop.client.get("/dead?error=other").json()["jobs"] == []
    (live,) = _ids(shop, 1)
    told = problem(shop.client.post(f"/jobs/{job_id}/redrive", json={}), 409, "identity-held")
    assert told["holder_id"] == live
    shop.ledger.cancel(live)
    answer = shop.client.post(f"/jobs/{job_id}/redrive", json={})
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")


def test_the_past_is_told(shop: Shop) -> None:
    """The history of a job, and who meets jobs most often, can be read."""
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
def test_a_preference_for_waiting_is_read(header: str | None, seconds: float) -> None:
    """`Prefer: wait=N` is read from among other preferences, and bounded."""
    assert wait_of(header) == seconds


def test_an_ended_job_has_one_event(shop: Shop) -> None:
    """The stream of a job that has ended shows its end and is over; who has seen that is told not to come again."""
    (job_id,) = _ids(shop, 1)
    shop.ledger.complete(shop.claimed(job_id), "1")
    answer = shop.client.get(f"/jobs/{job_id}/events")
    fields = dict(line.split(": ", 1) for line in answer.text.strip().splitlines())
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert (fields["event"], json.loads(fields["data"])["state"]) == ("state", State.COMPLETED)
    again = shop.client.get(f"/jobs/{job_id}/events", headers={"last-event-id": fields["id"]})
    assert (again.status_code, again.content) == (204, b"")


class Beating:
    """A watch over a job to which nothing that is shown ever happens, however often it is written to."""

    def __init__(self, job: Job) -> None:
        self.job = job

    async def change(self, longest: float) -> bool:
        """Say at once that something was written."""
        await asyncio.sleep(0)
        self.job = replace(self.job, lease_until=(self.job.lease_until or 0) + 1)
        return longest >= 0


def test_a_quiet_stream_gives_signs_of_life(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that has nothing to show pings, also while heartbeats renew a lease, which nobody is shown."""
    (job_id,) = _ids(shop, 1)
    watch = Beating(shop.claimed(job_id))

    @asynccontextmanager
    async def watching(_job: Job) -> AsyncIterator[Beating]:
        yield watch

    endpoints: Any = reading.Reading(shop.ledger, Event())
    endpoints.watchers = PerLoop(lambda: SimpleNamespace(watching=watching))
    monkeypatch.setattr(reading, "PING", 0.05)

    async def first(count: int) -> list[bytes]:
        stream = endpoints._stream(watch.job, None)
        return [await anext(stream) for _ in range(count)]

    told = asyncio.run(first(3))
    assert told[0].startswith(b"event: state")
    assert told[1:] == [KEEPALIVE_COMMENT] * 2
