"""Reading jobs over HTTP: one job and its waits, events, history and explanation; lists, pages and counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote

import httpx2
import pytest
from celery import Celery

from onejob.api import create_app, job_reads
from onejob.api.api_keys import KeyFile, Role
from onejob.api.job_reads import JobWatcher
from onejob.api.routes import jobs
from onejob.api.routes.jobs import parse_wait
from onejob.errors import StoreUnavailableError
from onejob.jobs.lifecycle import FINAL, State
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.jobs.submitter import submitter
from onejob.jobs.timestamps import format_timestamp, parse_timestamp
from onejob.ledger.ledger import NextRun
from tests.api.conftest import Shop, bearer, problem
from tests.api.serving import PATIENCE, ServerThread, serving
from tests.cases import for_each
from tests.cli.command import Shell
from tests.fundamentals.shop import claimed, order
from tests.operation_cases import ERROR
from tests.services import eventually

LARGE = "a" * 100_000
PARTS = ["", "/duplicates", "/history", "/events", "/explanation"]
"""What can be read of a job."""


def _page(shop: Shop, path: str = "/jobs", **params: Any) -> dict[str, Any]:
    response = shop.get(path, params=params)
    assert response.status_code == 200, response.text
    page: dict[str, Any] = response.json()
    return page | {"size": len(response.content)}


def _walked(shop: Shop, **params: Any) -> list[dict[str, Any]]:
    pages = [_page(shop, **params)]
    while pages[-1]["next"] is not None:
        pages.append(_page(shop, **params | {"cursor": pages[-1]["next"]}))
    return pages


# --- one job --------------------------------------------------------------------------------------------------------


def test_a_job_has_its_result_or_error(shop: Shop) -> None:
    """A job has its result, or its error if it failed, also after a retry; no response has arguments or a traceback."""
    job_id = shop.job_id(1)
    shop.submit(1)
    failed = shop.failed(shop.job_id(2))
    tried = shop.claimed(job_id)
    shop.ledger.retry(tried, NextRun.again(tried, delay=0.0, retries=1), error=ERROR, reason="once more")
    shop.completed(job_id, '{"total": 5}')
    answer = shop.get(f"/jobs/{job_id}").json()
    assert (answer["result"], answer["error"]) == ({"total": 5}, None)
    response = shop.get(f"/jobs/{failed.id}")
    assert response.json()["error"] == {"type": "ValueError", "message": "no"}
    assert [text for text in ("secret", "order_id") if text in response.text] == []
    (duplicate,) = shop.get(f"/jobs/{job_id}/duplicates").json()
    assert duplicate["source"] == "http"
    assert duplicate["outcome"] == "attached"
    assert duplicate["arguments_differ"] is False


@for_each("written", [quote, lambda job_id: quote(job_id, safe="")])
def test_an_id_may_have_slashes(shop: Shop, written: Callable[[str], str]) -> None:
    """Every route of a job takes an id with slashes, also those that a proxy has decoded; a wrong method is 405."""
    path = f"/jobs/{written(shop.task.apply_async((7,), task_id='2026/orders/7').id)}"
    for part in PARTS[:3] + PARTS[4:]:
        assert shop.get(path + part).status_code == 200
    problem(shop.get(f"{path}/cancel"), 405, "method-not-allowed")
    problem(shop.post(f"{path}/redrive"), 409, "not-a-dead-letter")
    assert shop.post(f"{path}/run-now").json()["id"] == "2026/orders/7"
    assert shop.post(f"{path}/cancel").json()["state"] == "canceled"
    assert '"state":"canceled"' in shop.get(f"{path}/events").text
    assert shop.request("DELETE", path).status_code == 204


def test_an_unchanged_job_is_not_sent_again(shop: Shop) -> None:
    """A job has an ETag that changes with its view; a matching If-None-Match gets 304 without a body."""
    job_id = shop.job_id()
    tag = shop.get(f"/jobs/{job_id}").headers["etag"]
    for header in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = shop.get(f"/jobs/{job_id}", headers={"if-none-match": header})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    in_two_lines = shop.get(f"/jobs/{job_id}", headers=[("if-none-match", '"other"'), ("if-none-match", tag)])
    assert in_two_lines.status_code == 304
    shop.claimed(job_id)
    changed = shop.get(f"/jobs/{job_id}", headers={"if-none-match": tag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != tag


@for_each("job_id", ["nobody", "a%00b", "%ff", "a%0Ab", "x" * 300, "..", "%F0%9D%84%9E", "a%2fb", ""])
def test_a_job_that_is_none_has_no_route(shop: Shop, job_id: str) -> None:
    """On every route of a job an unknown or invalid id is 404; a purged one is 410, until its id is used again."""
    if job_id:
        for part in PARTS:
            response = shop.get(f"/jobs/{job_id}{part}")
            assert (response.status_code, response.headers["content-type"]) == (404, "application/problem+json"), part
        return
    ended = shop.failed(shop.job_id())
    assert ended.finished_at is not None
    assert shop.ledger.purge([ended.id]) == [ended.id]
    for method, part in [("GET", part) for part in PARTS] + [("POST", "/cancel"), ("POST", "/redrive"), ("DELETE", "")]:
        more: dict[str, Any] = {"json": {}} if method == "POST" else {}
        details = problem(shop.request(method, f"/jobs/{ended.id}{part}", **more), 410, "job-purged")
        assert (details["job_id"], details["state"]) == (ended.id, "failed")
        assert details["finished_at"] == format_timestamp(ended.finished_at)
        assert parse_timestamp(details["purged_at"]) >= ended.finished_at
    shop.task.apply_async((7,), task_id=ended.id)
    assert shop.get(f"/jobs/{ended.id}").json()["state"] == "queued"


def test_a_wait_ends_when_the_job_is_purged(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait for a job that is purged meanwhile ends with 410."""
    job_id, store = shop.job_id(), shop.ledger.store
    get_many = store.get_many

    def purge_first(job_ids: Any) -> Any:
        monkeypatch.setattr(store, "get_many", get_many)
        shop.ledger.cancel(job_id)
        store.delete([job_id], sources=FINAL, tombstone_for=100.0)
        return get_many(job_ids)

    monkeypatch.setattr(store, "get_many", purge_first)
    response = shop.get(f"/jobs/{job_id}", headers={"prefer": "wait=30"})
    assert problem(response, 410, "job-purged")["state"] == "canceled"


# --- waits and events -----------------------------------------------------------------------------------------------


@for_each("header, seconds", [
    (None, 0), ("wait=5", 5), ("respond-async, wait=5", 5), ("wait=99999", 30), ("await=5", 0), ("wait=-5", 0),
    ('wait="7"', 7),
])  # fmt: skip
def test_prefer_wait_is_parsed(header: str | None, seconds: float) -> None:
    """`Prefer: wait=N` is found among other preferences, and is limited."""
    assert parse_wait(header) == seconds


def test_an_ended_job_has_one_event(shop: Shop) -> None:
    """The stream of an ended job has one event; a client that has received it gets 204."""
    job_id = shop.completed(shop.job_id()).id
    response = shop.get(f"/jobs/{job_id}/events")
    fields = dict(line.split(": ", 1) for line in response.text.strip().splitlines())
    assert response.headers["content-type"].startswith("text/event-stream")
    assert (fields["event"], json.loads(fields["data"])["state"]) == ("state", State.COMPLETED)
    again = shop.get(f"/jobs/{job_id}/events", headers={"last-event-id": fields["id"]})
    assert (again.status_code, again.content) == (204, b"")


# --- lists ----------------------------------------------------------------------------------------------------------


def test_each_filter_is_passed_on(shop: Shop) -> None:
    """A list over HTTP or at the command line has the jobs that match all filters, of which times have any zone."""
    with submitter("user:1"):
        first = shop.task.apply_async((), {"order_id": 42, "note": "Zoë"}, queue="fast", tags=["a&b", "c"]).id
    second = shop.task.apply_async((), {"order_id": 7}, queue="slow").id
    shop.claimed(second)
    shell = Shell(("--store", str(shop.app.conf.onejob_store)))
    zone = timezone(timedelta(hours=5, minutes=30))
    at = quote(datetime.fromtimestamp(shop.ledger.get(second).created_at, zone).isoformat())
    for query, expected in (
        ("state=running", [second]), ("state=running&state=queued", [second, first]), ("task=shop.strict", []),
        (f"identity={shop.ledger.get(first).identity}", [first]), ("queue=fast", [first]),
        ("worker=node", [second]), ("worker=", [first]), ("submitter=user:1", [first]), ("submitter=", [second]),
        ("tag=a%26b", [first]), ("tag=a", []), ("error=SUBMITTED", [first]), ("error=KeyError", []),
        ("argument=order_id=42", [first]), ("argument=oë", [first]), ("argument=", [second, first]),
        ("queue=fast&argument=order_id=7", []), ("offset=1", [first]), ("limit=1", [second]),
        (f"since={at}", [second]), (f"until={at}", [first]), (f"since={at}&until={at}", []),
    ):  # fmt: skip
        assert [job["id"] for job in shop.get(f"/jobs?{query}").json()["jobs"]] == expected, query
        options = [word for name, value in parse_qsl(query, keep_blank_values=True) for word in (f"--{name}", value)]
        assert shell.ids(*options) == expected, query
    for words, expected in (("--since 1h", [second, first]), ("--until 1h", []), ("--stuck --queue fast", [first])):
        assert shell.ids(*words.split()) == expected, words
    page = _page(shop, argument="order_id=7", count="true")
    assert (page["total"], page["by_state"]["running"]) == (1, 1)
    assert [job["tags"] for job in shop.get("/jobs").json()["jobs"]] == [[], ["a&b", "c"]]


def test_a_count_is_optional_and_capped(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `count=true` a page has the number of all matching jobs by state, which a limit caps."""
    ids = [shop.job_id(number) for number in range(3)]
    shop.claimed(ids[0])
    page = _page(shop, count="true", limit=1)
    assert (len(page["jobs"]), page["total"]) == (1, 3)
    assert page["by_state"] == dict.fromkeys(State, 0) | {"queued": 2, "running": 1}
    assert _page(shop, count="true", limit=1, cursor=page["next"])["total"] == 3
    assert set(shop.get("/jobs").json()) == {"jobs", "next"}
    for limit, expected in ((2, (2, True)), (3, (3, True)), (4, (3, False))):
        monkeypatch.setattr(job_reads, "COUNT_LIMIT", limit)
        found = _page(shop, count="true", limit=1)
        assert (found["total"], found["total_is_capped"]) == expected


# --- pages that are bounded in bytes --------------------------------------------------------------------------------


def _completed(shop: Shop, count: int, result: str = LARGE) -> list[str]:
    """Complete jobs with this result and a progress, and return their ids, newest first."""
    ids: list[str] = []
    for number in range(count):
        job = shop.claimed(shop.job_id(number))
        shop.ledger.report(job, '{"done": 1}')
        ids.insert(0, shop.ledger.complete(job, json.dumps(result)).id)
    return ids


def test_a_list_has_large_fields_only_on_request(shop: Shop) -> None:
    """A listed job, or dead letter, has its result and progress only if `include` names them."""
    (job_id,) = _completed(shop, 1)
    job = shop.claimed(shop.job_id(task="strict"))
    shop.ledger.report(job, '{"done": 2}')
    shop.ledger.fail(job, '{"type": "E", "message": "no", "traceback": ""}', "no")
    for path, each in (("/jobs?state=completed&{}", job_id), ("/dead?{}", job.id)):
        whole = shop.get(f"/jobs/{each}").json()
        for include in ([], ["result"], ["progress"], ["result", "progress"]):
            (found,) = shop.get(path.format("&".join(f"include={name}" for name in include))).json()["jobs"]
            left_out = {"result", "progress"} - set(include)
            assert found == {name: value for name, value in whole.items() if name not in left_out}


def test_a_page_is_bounded_in_bytes(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page ends when its jobs have a megabyte, but has one at least; the pages have every job once, in order."""
    ids = _completed(shop, 25)
    pages = _walked(shop, include="result", limit=200)
    assert len(pages) == 3
    assert max(page["size"] for page in pages) <= job_reads.PAGE_BYTES + 1000
    assert {job["result"] for page in pages for job in page["jobs"]} == {LARGE}
    monkeypatch.setattr(job_reads, "PAGE_BYTES", 1000)
    cursor = _page(shop, offset=1, limit=1)["next"]
    for each, expected in (
        (pages, ids),
        (_walked(shop, include="result"), ids),
        (_walked(shop, cursor=cursor), ids[2:]),
    ):
        assert [job["id"] for page in each for job in page["jobs"]] == expected


def test_a_list_reads_no_large_fields(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `include` neither arguments nor results are read; with it, those of a few jobs at a time."""
    ids = _completed(shop, 20, "small")
    find, get_many, read = shop.ledger.store.find, shop.ledger.store.get_many, []

    def find_light(query: Query) -> Any:
        assert query.light
        return find(query)

    def get_some(job_ids: Sequence[str]) -> Any:
        read.append(len(job_ids))
        return get_many([job_id for job_id in job_ids if job_id != ids[1]])

    monkeypatch.setattr(shop.ledger.store, "find", find_light)
    monkeypatch.setattr(shop.ledger.store, "get_many", get_some)
    _page(shop)
    assert read == []
    page = _page(shop, include="result")
    assert read == [job_reads.READ_AT_ONCE] * 2 + [4]
    purged = [job["result"] for job in page["jobs"] if job["id"] == ids[1]]
    assert (len(page["jobs"]), purged) == (20, [None]), "a job that is purged meanwhile stays listed"


WAITS = 3


class Waiting(NamedTuple):
    """A server with API keys, the clients of two of these, and the path of a job."""

    keys: KeyFile
    server: ServerThread
    clients: list[httpx2.Client]
    job: str


@pytest.fixture
def waiting(celery_app: Celery, tmp_path: Path) -> Iterator[Waiting]:
    """Return the server, on which a key may have a few waits at once."""
    keys = KeyFile(tmp_path / "keys.json")
    headers = [bearer(keys.add(name, Role.OPERATE)) for name in ("first", "second")]
    with serving(create_app(celery_app, keys.path, waits_per_caller=WAITS)) as server, ExitStack() as stack:
        opened = (httpx2.Client(base_url=server.url, headers=each, timeout=PATIENCE) for each in headers)
        clients = [stack.enter_context(client) for client in opened]
        yield Waiting(keys, server, clients, f"/jobs/{celery_app.tasks['shop.invoice'].delay(1).id}")


@contextmanager
def stream(client: httpx2.Client, path: str) -> Iterator[Iterator[str]]:
    """Open the stream of a job, and return its lines after the first event."""
    with client.stream("GET", f"{path}/events") as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        assert next(lines) == "event: state"
        yield lines


def test_waits_are_limited_per_key(waiting: Waiting) -> None:
    """Above the limit an event stream or a long poll of the same key gets a 429 with Retry-After, until one ends."""
    (first, second), job, wait = waiting.clients, waiting.job, {"prefer": "wait=1"}
    with ExitStack() as stack:
        for _ in range(WAITS):
            stack.enter_context(stream(first, job))
        for response in (first.get(f"{job}/events"), first.get(job, headers=wait)):
            problem(response, 429, "too-many-waits")
            assert int(response.headers["retry-after"]) > 0
        assert first.get(job).status_code == 200
        with stream(second, job):
            pass
    eventually(lambda: first.get(job, headers=wait).status_code == 200)


def test_a_revoked_key_ends_its_waits(waiting: Waiting, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its key a stream ends at the first keepalive, and before any event, and a long poll with a 401."""
    monkeypatch.setattr(jobs, "MAX_WAIT", 3600.0)
    (first, second), job, tasks = waiting.clients, waiting.job, waiting.server.server.server_state.tasks
    with stream(first, job) as quiet:
        monkeypatch.setattr(jobs, "KEEPALIVE_INTERVAL", 0.1)
        with stream(first, job) as revoked, stream(second, job) as valid, ThreadPoolExecutor(1) as pool:
            poll = pool.submit(first.get, job, headers={"prefer": "wait=3600"})
            eventually(lambda: len(tasks) == 4)
            waiting.keys.revoke("first")
            assert "event: state" not in list(revoked)
            assert ": ping" in (next(valid) for _ in range(100))
            problem(poll.result(PATIENCE), 401, "unauthorized")
        shop.ledger.cancel(job.removeprefix("/jobs/"))
        assert not [line for line in quiet if "canceled" in line]


# --- one reader for all waiters -------------------------------------------------------------------------------------


async def _wait_during(watcher: JobWatcher, jobs: Sequence[JobRow], act: Callable[[], object]) -> set[str]:
    """Let one wait for each of some jobs, call `act` meanwhile, and return the states that they got."""
    ready = asyncio.Semaphore(0)

    async def state_of(job: JobRow) -> str:
        async with watcher.watch(job) as watch:
            ready.release()
            assert await watch.wait_for_change(PATIENCE)
            return str(watch.job.state if watch.job else "gone")

    waiting = [asyncio.create_task(state_of(job)) for job in jobs]
    for _ in waiting:
        await ready.acquire()
    await asyncio.to_thread(act)
    return set(await asyncio.gather(*waiting))


def test_many_waiters_share_one_read(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand waiters for twenty jobs share one read, also after reads that fail, and none when gone."""
    ledger, reads, failures, get_awaited = shop.ledger, list[list[str]](), [1, 2, 3], shop.ledger.store.get_awaited
    jobs = [ledger.submit(order(number)).job for number in range(20)]

    def counted(job_ids: Sequence[str]) -> dict[str, JobRow]:
        reads.append(list(job_ids))
        if failures:
            failures.pop()
            raise StoreUnavailableError("simulated")
        return get_awaited(job_ids)

    def claim_all() -> None:
        eventually(lambda: len(reads) >= 6)
        for job in jobs:
            claimed(ledger, job.id)

    async def scenario() -> None:
        watcher = JobWatcher(ledger, 0.05)
        assert await _wait_during(watcher, jobs * 50, claim_all) == {"running"}
        assert sorted(reads[0]) == sorted(job.id for job in jobs)
        assert len(reads) < 1000
        assert watcher.watches == {}
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*rest, return_exceptions=True)  # the reader ends, and cancels its wait

    monkeypatch.setattr(ledger.store, "get_awaited", counted)
    asyncio.run(scenario())
