"""Searches over HTTP are bounded: in time, for a client that has gone, and in the share that one caller has."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from onejob.api import create_app, job_reads
from onejob.api.callers import Caller, set_caller
from onejob.api.fair_threads import FairThreads, IsOver
from onejob.api.problems import Problem
from onejob.api.routes import jobs, operate
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.ledger.reader import JobReader
from tests.api.conftest import Shop
from tests.api.serving import PATIENCE
from tests.services import eventually

COUNT = 20
WINDOW = 3


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a search have a few jobs in a window."""
    for name in ("WINDOW", "PAYLOAD_WINDOW"):
        monkeypatch.setattr(f"onejob.ledger.search.{name}", WINDOW)


@pytest.fixture
def ids(shop: Shop, windows: None) -> list[str]:
    """Submit jobs, and return their ids, newest first."""
    return [shop.job_id(number) for number in range(COUNT)][::-1]


def walked(shop: Shop, path: str = "/jobs", **params: Any) -> list[dict[str, Any]]:
    """Return the pages of a list; `offset` is that of the first one."""
    pages = [shop.get(path, params=params).json()]
    params.pop("offset", None)
    while pages[-1]["next"] is not None:
        pages.append(shop.get(path, params=params | {"cursor": pages[-1]["next"]}).json())
    return pages


def listed(pages: list[dict[str, Any]]) -> list[str]:
    return [job["id"] for page in pages for job in page["jobs"]]


SEARCHES: list[tuple[dict[str, Any], Callable[[list[str]], list[str]]]] = [
    ({"argument": "order_id=13"}, lambda ids: [ids[6]]), ({"argument": "none"}, lambda ids: []),
    ({"task": "shop.invoice", "limit": 2}, lambda ids: ids),
    ({"task": "shop.invoice", "offset": 7, "limit": 4}, lambda ids: ids[7:]),
    ({"task": "shop.invoice", "offset": 100}, lambda ids: []), ({"offset": 7, "limit": 4}, lambda ids: ids[7:]),
]  # fmt: skip


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_a_search_goes_on_where_its_time_was_over(
    shop: Shop, ids: list[str], monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """A page ends when the time is over, also an empty one; `next` leads to all other jobs, once, until it is null."""
    monkeypatch.setattr(job_reads, "SEARCH_SECONDS", seconds)
    for params, expected in SEARCHES:
        pages = walked(shop, **params)
        assert listed(pages) == expected(ids), params
        assert all(len(page["jobs"]) <= params.get("limit", 50) for page in pages)
    assert (len(walked(shop, argument="none")) == 1) is (seconds > 0)


def test_a_count_ends_when_its_time_is_over(shop: Shop, ids: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A count has what was found in time, and says that there may be more; with time it is complete."""
    monkeypatch.setattr(job_reads, "SEARCH_SECONDS", 0.0)
    (part, *_) = walked(shop, task="shop.invoice", count="true", limit=1)
    assert part["total"] == WINDOW + 1
    assert part["total_is_capped"] is True
    monkeypatch.setattr(job_reads, "SEARCH_SECONDS", 60.0)
    (whole, *_) = walked(shop, task="shop.invoice", count="true", limit=1)
    assert whole["total"] == COUNT
    assert whole["total_is_capped"] is False


def test_groups_of_dead_letters_end_when_the_time_is_over(
    shop: Shop, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The groups are those of the dead letters that were reached, and the response says since when these are all."""
    for job_id in ids:
        shop.failed(job_id)
    monkeypatch.setattr(jobs, "STATISTICS_SECONDS", 0.0)
    part = shop.get("/dead/groups?task=shop.invoice").json()
    newest = sorted((shop.get(f"/jobs/{job_id}").json()["created_at"] for job_id in ids), reverse=True)
    assert (part["groups"][0]["count"], part["searched_to"]) == (WINDOW + 1, newest[WINDOW])
    monkeypatch.setattr(jobs, "STATISTICS_SECONDS", 60.0)
    whole = shop.get("/dead/groups?task=shop.invoice").json()
    assert (whole["groups"][0]["count"], whole["searched_to"]) == (COUNT, None)


def test_a_bulk_operation_goes_on_where_its_time_was_over(
    shop: Shop, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a portion without a job ends when its time is over; its cursor leads to the others."""
    monkeypatch.setattr(operate, "BULK_SECONDS", 0.0)
    body = {"operation": "cancel", "dry_run": True, "filter": {"argument": "order_id=1"}}
    first = shop.post("/jobs/bulk", body | {"filter": {"argument": "none"}}).json()
    assert first["done"] == []
    assert first["next"] is not None
    done, cursor, portions = list[str](), None, 0
    while portions == 0 or cursor is not None:
        page = shop.post("/jobs/bulk", body | {"cursor": cursor}).json()
        done, cursor, portions = done + page["done"], page["next"], portions + 1
    assert done == [*ids[:10], ids[18]]
    assert portions > COUNT // WINDOW


# --- a client that has gone -----------------------------------------------------------------------------------------


def scope_of(query: str) -> dict[str, Any]:
    return {
        "type": "http", "http_version": "1.1", "method": "GET", "path": "/jobs", "raw_path": b"/jobs",
        "query_string": query.encode(), "root_path": "", "scheme": "http", "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1), "state": {}, "headers": [(b"host", b"127.0.0.1")],
    }  # fmt: skip


@pytest.mark.parametrize("reads", [0, 2])
def test_a_client_that_has_gone_ends_its_search(
    shop: Shop, ids: list[str], monkeypatch: pytest.MonkeyPatch, reads: int
) -> None:
    """A search whose client has gone before its turn reads nothing, and one whose client goes reads no more windows."""
    read, find = list[Query](), shop.ledger.store.find

    def count(query: Query) -> list[JobRow]:
        read.append(query)
        return find(query)

    monkeypatch.setattr(shop.ledger.store, "find", count)
    monkeypatch.setattr(job_reads, "SEARCH_SECONDS", 60.0)
    messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Any:
        message = next(messages, None)
        if message is None and len(read) < reads:
            await asyncio.Event().wait()  # until Starlette gives up
        return message or {"type": "http.disconnect"}

    async def send(_message: Any) -> None:
        """Send nothing."""

    asyncio.run(create_app(shop.app)(scope_of("argument=none"), receive, send))
    assert len(read) == reads


# --- the share of a caller ------------------------------------------------------------------------------------------


def request_of(caller: str, *, has_gone: bool = False) -> Request:
    async def receive() -> Any:
        if not has_gone:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    request = Request(scope_of(""), receive)
    set_caller(request, Caller(caller))
    return request


def test_callers_take_turns() -> None:
    """A caller who asks for more than its share waits for itself, and one who comes later is before; few may wait."""
    begun, ended = list[str](), {name: threading.Event() for name in ("a1", "a2", "a3", "b1", "c1")}

    async def play() -> None:
        threads = FairThreads(2, per_caller=1, most=3)

        def work(name: str) -> Callable[[IsOver], str]:
            def begin(is_over: IsOver) -> str:
                begun.append(name)
                assert ended[name].wait(PATIENCE)
                assert not is_over()
                return name

            return begin

        tasks = {name: asyncio.ensure_future(threads.run(request_of(name[0]), PATIENCE, work(name))) for name in ended}
        await asyncio.sleep(0)
        with pytest.raises(Problem, match="send fewer at once") as refused:
            await threads.run(request_of("a"), PATIENCE, work("a4"))
        assert (refused.value.status_code, refused.value.headers) == (429, {"retry-after": "1"})
        for name, expected in (("a1", {"a1", "b1"}), ("b1", {"a1", "b1", "c1"}), ("c1", {"a1", "b1", "c1", "a2"})):
            await asyncio.to_thread(eventually, lambda expected=expected: {*begun} == expected)
            ended[name].set()
            assert await tasks[name] == name
        for name in ("a2", "a3"):
            ended[name].set()
            assert await tasks[name] == name
        with pytest.raises(ClientDisconnect):
            await threads.run(request_of("a", has_gone=True), PATIENCE, work("a1"))

    asyncio.run(play())
    assert [sorted(begun[:2]), *begun[2:]] == [["a1", "b1"], "c1", "a2", "a3"]


@contextmanager
def held(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Hold each search in the middle; gives the text that each looks for, and lets all go at the end."""
    begun, go, edge = list[str](), threading.Event(), JobReader.edge

    def hold(self: JobReader, query: Any, *, skip: int) -> Any:
        begun.append(query.arguments)
        assert go.wait(PATIENCE)
        return edge(self, query, skip=skip)

    monkeypatch.setattr(JobReader, "edge", hold)
    try:
        yield begun
    finally:
        go.set()


@pytest.mark.parametrize("is_bulk", [False, True])
def test_others_are_answered_in_the_middle_of_searches(
    keyed: Shop, monkeypatch: pytest.MonkeyPatch, is_bulk: bool
) -> None:
    """While searches, or bulk operations, of four callers are held, few have begun, and submissions and lists go on."""
    names = ("operate", "edit", "one", "two")

    def ask(name: str) -> int:
        caller = keyed.named(name)
        if is_bulk:
            body = {"operation": "cancel", "dry_run": True, "filter": {"argument": name}}
            return int(caller.post("/jobs/bulk", body).status_code)
        return int(caller.get("/jobs", params={"argument": name, "task": "shop.invoice"}).status_code)

    with ThreadPoolExecutor(2 * len(names)) as pool:
        with held(keyed, monkeypatch) as begun:
            asked = [pool.submit(ask, name) for name in (*names, *names)]
            eventually(lambda: len(begun) == (2 if is_bulk else 1))
            for number in range(3):
                assert keyed.named("submit").submit(number).status_code == 202
                assert len(keyed.named("read").get("/jobs?limit=5").json()["jobs"]) == number + 1
                assert keyed.named("one").get("/jobs?limit=5").json()["jobs"] == []
            assert len(begun) == (2 if is_bulk else 1)
        assert {future.result(PATIENCE) for future in asked} == {200}
    assert set(begun) == {json.dumps(name)[1:-1] for name in names}
