"""Open pages: what tells them of changes, and the pages that they get then."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from threading import Barrier, Event
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from onejob.api.api_keys import Role
from onejob.api.job_reads import JobWatcher
from onejob.concurrency.batching import ENTRIES, KeyedCache
from onejob.errors import StoreUnavailableError
from onejob.jobs.schedule_state import ScheduleState
from onejob.jobs.transitions import new_nonce
from onejob.pages import endpoints, live
from onejob.pages.live import ChangeFeed, stream_changes, stream_job
from onejob.pages.rendering import View
from tests.api.serving import serving
from tests.conftest import on_every_store
from tests.pages.browser import Browser, browser_of, mounted, session_of
from tests.services import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator

    from onejob.api.api_keys import KeyFile
    from onejob.jobs.model import JobRow
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


async def after(act: Callable[[int], object], event: asyncio.Task[bytes]) -> bytes:
    """Act again and again until there is an event: the poller may not have read yet what was there before."""
    for number in itertools.count():
        await asyncio.to_thread(act, number)
        done, _ = await asyncio.wait([event], timeout=0.1)
        if done:
            break
    return event.result()


def actions(sample: Sample) -> dict[str, Callable[[int], object]]:
    def new(name: str, number: int) -> JobRow:
        sample.advance(0.001)
        return sample.submit("shop.study_plan", project=f"{name} {number}").job

    def finish(number: int) -> None:
        sample.ledger.complete(sample.start(new("finish", number)), "null")
        sample.meter.write()

    def cancel(_: int) -> None:
        sample.ledger.cancel(waiting.pop().id)
        sample.meter.write()

    def tick(_: int) -> None:
        entry = ScheduleState("nightly", new_nonce(), "", since=0.0, seen_at=0.0)
        sample.ledger.store.put_schedule(entry, expected=nonce_of(sample))

    sample.clock.at = sample.ledger.read_clock()
    waiting = [new("waiting", number) for number in range(100)]
    return {
        "a submission": lambda number: new("submission", number),
        "a run that ends": finish,
        "a worker": lambda number: sample.ledger.heartbeat(f"worker-{number}", lasts=60.0),
        "a cancellation": cancel,
        "a tick": tick,
        "a failure": lambda number: sample.fail(new("fail", number), ("E", "no"), seconds=0.0),
    }


async def always() -> bool:
    return True


def nonce_of(sample: Sample) -> str:
    return next((each.nonce for each in sample.ledger.store.schedules()), "")


@on_every_store
def test_a_change_is_an_event(any_sample: Sample) -> None:
    """On every store a change of jobs, of workers or of a schedule is an event for each open page."""

    async def watch(act: Callable[[int], object]) -> list[bytes]:
        feed = ChangeFeed(any_sample.ledger, Event())
        one, other = (stream_changes(feed, always) for _ in range(2))
        async with reading(one) as next_of_one, reading(other) as next_of_other:
            assert await next_of_one() == await next_of_other() == CHANGE
            waiting = next_of_other()
            return [await after(act, next_of_one()), await waiting]

    for name, act in actions(any_sample).items():
        assert asyncio.run(watch(act)) == [CHANGE, CHANGE], name


def test_each_change_is_one_event(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is one event, also right after the first or while a client is slow; a quiet stream reloads at times."""

    async def watch() -> list[bytes]:
        feed = ChangeFeed(sample.ledger, Event())
        async with reading(stream_changes(feed, always)) as next_event:
            act = actions(sample)["a submission"]
            seen = [await next_event()]
            act(1)
            seen.append(await next_event())
            change = feed.next_change  # the client has not asked for another event
            await asyncio.to_thread(act, 10_000)
            await asyncio.wait_for(change.wait(), PATIENCE)
            seen.append(await next_event())
            monkeypatch.setattr(live, "CURRENT_SECONDS", 0.125)
            monkeypatch.setattr(live, "QUIET_SECONDS", 0.25)
            return seen + [await next_event() for _ in range(6)]

    assert asyncio.run(watch()) == [CHANGE, CHANGE, CHANGE, *[CURRENT, CURRENT, CHANGE] * 2]


def test_many_pages_need_one_poller(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """One task reads the ledger for all pages, also after a store was away, and ends once the last page is closed."""
    pollers, reads = list[Any](), itertools.count()
    totals, poll = sample.ledger.store.totals, ChangeFeed._poll

    def fail_first() -> dict[str, float]:
        if next(reads) < 5:
            raise StoreUnavailableError("it is away")
        return totals()

    async def noted(feed: ChangeFeed) -> None:
        pollers.append(asyncio.current_task())
        await poll(feed)

    monkeypatch.setattr(sample.ledger.store, "totals", fail_first)
    monkeypatch.setattr(ChangeFeed, "_poll", noted)

    async def watch() -> list[bytes]:
        feed = ChangeFeed(sample.ledger, Event())
        streams = [stream_changes(feed, always) for _ in range(50)]
        for stream in streams:
            await anext(stream)
        waiting = [asyncio.create_task(anext(stream)) for stream in streams]
        await after(actions(sample)["a submission"], waiting[0])
        seen = await asyncio.gather(*waiting)
        await asyncio.gather(*(stream.aclose() for stream in streams))
        await asyncio.wait_for(pollers[0], PATIENCE)
        return seen

    assert set(asyncio.run(watch())) == {CHANGE}
    assert next(reads) > 6
    assert len(pollers) == 1


def test_a_job_is_watched_until_it_is_deleted(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of a job gets an event at once and after each change, `current` between them, and none once deleted."""
    monkeypatch.setattr(live, "CURRENT_SECONDS", 0.1)
    job = sample.submit("shop.study_plan", project="watched").job
    acts: list[Callable[[], object]] = [
        lambda: sample.ledger.cancel(job.id),
        lambda: sample.ledger.delete(job.id, force=True),
    ]

    async def watch() -> list[bytes]:
        watcher = JobWatcher(sample.ledger, 0.02)
        async with reading(stream_job(watcher, job, "ann", always)) as next_event:
            seen = [await next_event(), await next_event()]
            for act in acts:
                await asyncio.to_thread(act)
                while (event := await next_event()) == CURRENT:
                    pass
                seen.append(event)
            with pytest.raises(StopAsyncIteration):
                await next_event()
            return seen

    assert asyncio.run(watch()) == [CHANGE, CURRENT, CHANGE, CHANGE]


# --- over HTTP --------------------------------------------------------------------------------------------------------


def lines_of(url: str, path: str, cookies: dict[str, str] | None = None) -> Generator[str, None, None]:
    client = httpx2.Client(base_url=url, cookies=cookies, timeout=PATIENCE)
    with client, client.stream("GET", path) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
        assert response.headers["x-content-type-options"] == "nosniff"
        yield from response.iter_lines()


def test_the_page_of_a_running_job_is_read_again_for_its_log(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream of a running job has a change now and then, although its row is the same; a poll has another name."""
    monkeypatch.setattr(live, "CURRENT_SECONDS", 0.05)

    async def is_open() -> bool:
        return True

    async def watch(job: JobRow) -> list[bytes]:
        watcher = JobWatcher(sample.ledger, interval=live.POLL_SECONDS)
        async with reading(stream_job(watcher, job, "ann", is_open)) as next_event:
            return [await next_event() for _ in range(3)]

    running, failed = (sample.ledger.get(sample.named[state]) for state in ("running", "failed"))
    assert asyncio.run(watch(running)) == [CHANGE, CHANGE, CHANGE]
    assert asyncio.run(watch(failed)) == [CHANGE, CURRENT, CURRENT]
    name = live.version_name_of(running)
    eventually(lambda: live.version_name_of(running) != name)


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
    with serving(mounted(sample.app, keys=keys.path)) as served:
        for name, path in (("ann", "/ops/live"), ("ben", f"/ops/live?job={sample.named['running']}")):
            stream = lines_of(served.url, path, {"onejob_session": session_of(sample, keys, keys.add(name, Role.READ))})
            next(stream)
            keys.revoke(name)
            assert len([line for line in stream if line]) < 100  # far more: to revoke may take long


def test_a_user_has_a_limit_of_streams(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user has so many streams at once, of jobs and of the ledger together, and no one takes those of another."""
    monkeypatch.setattr(endpoints, "STREAMS_PER_USER", 2)
    monkeypatch.setattr(live, "CURRENT_SECONDS", 0.1)
    paths = (f"/ops/live?job={sample.named['running']}&", "/ops/live?")
    with serving(mounted(sample.app, authorize=lambda request: (request.query_params["user"], "read"))) as served:

        def status(user: str, path: str) -> int:
            with httpx2.stream("GET", f"{served.url}{path}user={user}", timeout=PATIENCE) as response:
                return response.status_code

        streams = [lines_of(served.url, path + "user=ann") for path in paths]
        assert [next(stream) for stream in streams] == ["event: change"] * 2
        assert [status("ann", path) for path in paths] == [429, 429]
        assert [status("ben", path) for path in paths] == [200, 200]
        for stream in streams:
            stream.close()
        eventually(lambda: status("ann", "/ops/live?") == 200)


# --- the pages that open pages get ------------------------------------------------------------------------------------

UPDATE = {"hx-request": "true"}


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keep pages for updates long; return the names of the pages that are built, as they are."""
    names: list[str] = []
    show = View.show

    def noted(view: View, *args: Any) -> Any:
        names.append(view.name)
        return show(view, *args)

    monkeypatch.setattr(endpoints, "FRESH_SECONDS", 60.0)
    monkeypatch.setattr(View, "show", noted)
    return names


def test_updates_at_once_read_once(sample: Sample, built: list[str]) -> None:
    """However many open pages with one URL update at once, the page is built once, and all show the same."""
    app, count = mounted(sample.app, authorize=lambda _request: ("ann", "read")), 12
    barrier = Barrier(count)

    def update(_number: int) -> str:
        browser = Browser(app)
        barrier.wait()
        return browser.get("/jobs", UPDATE).text.partition("<table")[2].partition("</table>")[0]

    with ThreadPoolExecutor(count) as threads:
        (shown,) = set(threads.map(update, range(count)))
    assert sample.named["queued"] in shown
    assert built == ["jobs"]


def test_the_cache_is_bounded(sample: Sample, built: list[str]) -> None:
    """Pages of jobs are not kept, and of lists only so many, whatever host they are asked of; no action leaves any."""
    browser, failed = browser_of(sample), sample.named["failed"]
    for host in ("a", "b"):
        browser.get(f"/jobs/{failed}", UPDATE)
        browser.get("/workers", UPDATE | {"host": host})
    assert built == ["job", "workers", "job"]
    for number in range(ENTRIES):
        browser.get("/workers", UPDATE, x=number)
    browser.get("/workers", UPDATE)
    assert len(built) == 3 + ENTRIES + 1
    assert failed in browser.get("/jobs?state=failed", UPDATE).text
    sample.ledger.redrive(failed)
    assert failed in browser.get("/jobs?state=failed", UPDATE).text
    assert failed not in browser.page("/jobs", state="failed").source, "a page that a person opens is never stale"
    browser.post(f"/operate/{failed}", operation="cancel")
    assert failed not in browser.get("/jobs?state=failed", UPDATE).text


def test_a_page_that_was_being_built_during_an_action_is_not_kept() -> None:
    """A page whose building began before an action is not shown to those who update after it."""
    began, may_end = Event(), Event()
    cache: KeyedCache[str] = KeyedCache(60.0, cost_factor=0.0)

    def build_slowly() -> str:
        began.set()
        assert may_end.wait(PATIENCE)
        return "before"

    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(cache.get, "/jobs", build_slowly)
        assert began.wait(PATIENCE)
        cache.clear()
        second = cache.get("/jobs", lambda: "after")
        may_end.set()
        assert [first.result(), second, cache.get("/jobs", lambda: "after")] == ["before", "after", "after"]


def test_updates_differ_by_query_zone_and_user(browse: Callable[..., Browser], built: list[str]) -> None:
    """Other parameters and another time zone get their own page, which only those get who may see it."""
    role: list[Any] = [("ann", "edit")]
    browser = browse(authorize=lambda _request: role[0])
    assert browser.get("/jobs?state=running", UPDATE).text != browser.get("/jobs?state=failed", UPDATE).text
    in_utc = browser.get("/duplicates", UPDATE, format="json").json()["hours"]
    browser.client.cookies.set("onejob_zone", "Asia/Tokyo")
    assert browser.get("/duplicates", UPDATE, format="json").json()["hours"] != in_utc
    assert built == ["jobs", "jobs", "duplicates", "duplicates"]
    assert browser.get("/audit", UPDATE).status_code == 200
    for role[0] in (("ben", "read"), None):
        assert browser.get("/audit", UPDATE).status_code == 403
