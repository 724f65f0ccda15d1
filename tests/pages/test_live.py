"""The stream that tells open pages of changes."""

from __future__ import annotations

import asyncio
import itertools
import json
from contextlib import aclosing, asynccontextmanager
from threading import Event
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from onejob.api.api_keys import KeyFile, Role
from onejob.api.job_watcher import JobWatcher
from onejob.errors import StoreUnavailableError
from onejob.pages import live
from onejob.pages.live import ChangeFeed, stream_changes, stream_job
from tests.http.serving import serving
from tests.pages.browser import Browser, mounted
from tests.services import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
    from pathlib import Path

    from onejob.jobs.model import Job
    from tests.pages.sample import Sample

    Next = Callable[[], asyncio.Task[bytes]]

PATIENCE = 20.0
CHANGE = b"event: change\ndata: 1\n\n"
CURRENT = b"event: current\ndata: 1\n\n"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll often, so that the tests wait briefly."""
    monkeypatch.setattr(live, "POLL_SECONDS", 0.02)


@asynccontextmanager
async def reading(events: AsyncGenerator[bytes, None]) -> AsyncIterator[Next]:
    """Yield a function that begins to wait for the next event of a stream; the stream is closed at the end."""

    async def read() -> bytes:
        return await asyncio.wait_for(anext(events), PATIENCE)

    async with aclosing(events):
        yield lambda: asyncio.create_task(read())


def is_open() -> bool:
    return True


async def after(act: Callable[[int], object], event: asyncio.Task[bytes]) -> bytes:
    """Act again and again until there is an event: the poller may not have read yet what was there before."""
    for number in itertools.count():
        await asyncio.to_thread(act, number)
        done, _ = await asyncio.wait([event], timeout=0.1)
        if done:
            break
    return event.result()


def actions(sample: Sample) -> dict[str, Callable[[int], object]]:
    """Return what changes a page."""

    def new(name: str, number: int) -> Job:
        sample.advance(0.001)
        return sample.submit("shop.study_plan", project=f"{name} {number}").job

    def finish(number: int) -> None:
        sample.ledger.complete(sample.start(new("finish", number)), "null")
        sample.meter.write()

    def fail(number: int) -> None:
        sample.fail(new("fail", number), ("E", "no"), seconds=0.0)

    sample.clock.at = sample.ledger.read_clock()
    return {
        "a submission": lambda number: new("submission", number),
        "a run that ends": finish,
        "a worker": lambda number: sample.ledger.heartbeat(f"worker-{number}", lasts=60.0),
        "a failure": fail,
    }


def test_a_change_is_an_event(any_sample: Sample) -> None:
    """On every store a submission, the end of a run, a failure and a new worker are an event for each open page."""

    async def watch(act: Callable[[int], object]) -> list[bytes]:
        feed = ChangeFeed(any_sample.ledger, Event())
        one, other = stream_changes(feed, is_open), stream_changes(feed, is_open)
        async with reading(one) as next_of_one, reading(other) as next_of_other:
            assert await next_of_one() == await next_of_other() == CHANGE
            waiting = next_of_other()
            return [await after(act, next_of_one()), await waiting]

    for name, act in actions(any_sample).items():
        assert asyncio.run(watch(act)) == [CHANGE, CHANGE], name


def test_without_a_change_pages_reload_now_and_then(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quiet stream tells that nothing has changed, and after a longer time to reload what is not counted."""
    monkeypatch.setattr(live, "CURRENT_SECONDS", 0.125)
    monkeypatch.setattr(live, "QUIET_SECONDS", 0.25)

    async def watch() -> list[bytes]:
        async with reading(stream_changes(ChangeFeed(sample.ledger, Event()), is_open)) as next_event:
            return [await next_event() for _ in range(7)]

    assert asyncio.run(watch()) == [CHANGE, *[CURRENT, CURRENT, CHANGE] * 2]


def test_a_change_while_an_event_is_sent_is_not_missed(sample: Sample) -> None:
    """A change that happens while a slow client takes an event is the next event."""

    async def watch() -> list[bytes]:
        feed = ChangeFeed(sample.ledger, Event())
        async with reading(stream_changes(feed, is_open)) as next_event:
            await next_event()
            act = actions(sample)["a submission"]
            seen = [await after(act, next_event())]
            change = feed.next_change  # the client has not asked for another event
            await asyncio.to_thread(act, 10_000)
            await asyncio.wait_for(change.wait(), PATIENCE)
            return [*seen, await next_event()]

    assert asyncio.run(watch()) == [CHANGE, CHANGE]


def test_a_store_that_is_away_does_not_end_the_stream(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store does not respond the stream waits, and goes on when it responds again."""
    totals, failures = sample.ledger.store.totals, itertools.count()

    def fail_first() -> dict[str, float]:
        if next(failures) < 5:
            raise StoreUnavailableError("it is away")
        return totals()

    monkeypatch.setattr(sample.ledger.store, "totals", fail_first)

    async def watch() -> bytes:
        async with reading(stream_changes(ChangeFeed(sample.ledger, Event()), is_open)) as next_event:
            await next_event()
            return await after(actions(sample)["a submission"], next_event())

    assert asyncio.run(watch()) == CHANGE
    assert next(failures) > 6


def test_nobody_listens_nobody_polls(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many pages are open there is one read per interval, and none once the last page is closed."""
    totals, reads = sample.ledger.store.totals, []

    def counted() -> dict[str, float]:
        reads.append(1)
        return totals()

    monkeypatch.setattr(sample.ledger.store, "totals", counted)
    monkeypatch.setattr(live, "POLL_SECONDS", 0.05)

    async def watch() -> tuple[float, int]:
        feed, started = ChangeFeed(sample.ledger, Event()), asyncio.get_running_loop().time()
        streams = [stream_changes(feed, is_open) for _ in range(50)]
        waiting: list[asyncio.Task[bytes]] = []
        for stream in streams:
            await anext(stream)
            waiting.append(asyncio.create_task(anext(stream)))
        await asyncio.sleep(0.5)
        elapsed = asyncio.get_running_loop().time() - started
        count = len(reads)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait_for(asyncio.gather(*others), PATIENCE)  # the poller, which ends by itself
        return elapsed, count

    elapsed, count = asyncio.run(watch())
    assert 2 <= count <= elapsed / 0.05 + 1


def test_a_shutdown_ends_all_streams(sample: Sample) -> None:
    """When the server begins to shut down, streams of the ledger and of a job end, also those that begin then."""

    async def watch() -> list[list[bytes]]:
        closing = Event()
        feed, watcher = ChangeFeed(sample.ledger, closing), JobWatcher(sample.ledger, 0.02, closing)
        job = sample.ledger.get(sample.named["running"])

        def streams() -> list[AsyncGenerator[bytes, None]]:
            may_go_on = lambda: not closing.is_set()  # noqa: E731 - passed twice
            return [stream_changes(feed, may_go_on), stream_job(watcher, job, "ann", may_go_on)]

        collecting = [asyncio.create_task(collect(stream)) for stream in streams()]
        await asyncio.sleep(0.1)
        closing.set()
        collecting += [asyncio.create_task(collect(stream)) for stream in streams()]
        return await asyncio.wait_for(asyncio.gather(*collecting), PATIENCE)

    assert asyncio.run(watch()) == [[CHANGE]] * 4


async def collect(stream: AsyncGenerator[bytes, None]) -> list[bytes]:
    """Return all events of a stream."""
    return [event async for event in stream]


def test_a_job_is_watched_until_it_is_deleted(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of a job gets an event at once and after each change, and is told between them that it is current."""
    monkeypatch.setattr(live, "CURRENT_SECONDS", 0.1)
    job = sample.submit("shop.study_plan", project="watched").job

    async def watch() -> list[bytes]:
        watcher = JobWatcher(sample.ledger, 0.02)
        async with reading(stream_job(watcher, job, "ann", is_open)) as next_event:
            seen = [await next_event(), await next_event()]
            for act in (lambda: sample.start(job), lambda: sample.ledger.cancel(job.id, force=True)):
                await asyncio.to_thread(act)
                seen.append(await not_current(next_event))
            return seen

    assert asyncio.run(watch()) == [CHANGE, CURRENT, CHANGE, CHANGE]


def test_the_stream_of_a_deleted_job_ends(sample: Sample) -> None:
    """After the event of its deletion the stream of a job ends."""
    job = sample.ledger.get(sample.named["failed"])

    async def watch() -> list[bytes]:
        collecting = asyncio.create_task(collect(stream_job(JobWatcher(sample.ledger, 0.02), job, "ann", is_open)))
        await asyncio.to_thread(sample.ledger.drop, job.id)
        return await asyncio.wait_for(collecting, PATIENCE)

    assert asyncio.run(watch()) == [CHANGE, CHANGE]


async def not_current(next_event: Next) -> bytes:
    """Return the next event that tells of a change."""
    while (event := await next_event()) == CURRENT:
        pass
    return event


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    """Return a key file with one key."""
    file = KeyFile(tmp_path / "keys.json")
    file.add("other", Role.READ)
    return file


def lines_of(url: str, path: str, cookies: dict[str, str] | None = None) -> Iterator[str]:
    """Yield the lines of a stream of a server."""
    client = httpx2.Client(base_url=url, cookies=cookies, timeout=PATIENCE)
    with client, client.stream("GET", path) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
        assert response.headers["x-content-type-options"] == "nosniff"
        yield from response.iter_lines()


def test_a_server_streams_and_stops(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over HTTP the streams have the security headers and the events, and end when the server begins to shut down."""
    monkeypatch.setattr(live, "CURRENT_SECONDS", 0.1)
    closing = Event()
    app = mounted(sample.app, authorize=lambda _request: ("ann", "read"), closing=closing)
    with serving(app) as served:
        changes = lines_of(served.url, "/ops/live")
        job = lines_of(served.url, f"/ops/live?job={sample.named['running']}")
        assert [next(changes), next(job)] == ["event: change"] * 2
        eventually(lambda: next(changes) == "event: current")
        closing.set()
        for stream in (changes, job):
            assert set(stream) <= {"event: change", "event: current", "data: 1", ""}
        eventually(lambda: served.connections == 0)


def test_a_revoked_key_gets_no_further_event(sample: Sample, keys: KeyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The streams of a session end with the next event after its key was revoked."""
    monkeypatch.setattr(live, "CURRENT_SECONDS", 0.1)
    text = keys.add("ann", Role.READ)
    with serving(mounted(sample.app, keys=keys.path)) as served:
        for path in ("/ops/live", f"/ops/live?job={sample.named['running']}"):
            key = text if path == "/ops/live" else keys.add("ben", Role.READ)
            stream = lines_of(served.url, path, {"onejob_session": key})
            next(stream)
            keys.revoke("ann" if key == text else "ben")
            assert len([line for line in stream if line]) < 10


def test_a_user_has_a_limit_of_streams(sample: Sample) -> None:
    """Streams of jobs count for the limit of waits of their user, so that one cannot hold all connections."""
    browser = Browser(mounted(sample.app, authorize=lambda _request: ("ann", "read")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobWatcher, "check_waits", refuse)
        response = browser.get("/live", job=sample.named["running"], format="json")
    assert response.status_code == 429
    assert json.loads(response.text)["type"].endswith("too-many-waits")


def refuse(_watcher: JobWatcher, _caller: str) -> Any:
    """Refuse a further wait."""
    from onejob.api.problems import Problem

    raise Problem("too-many-waits", "too many")
