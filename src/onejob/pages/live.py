"""Sends events to open pages when something has changed: one poller per process, however many pages are open.

In a WSGI server each open stream would keep a thread: there a response ends at once, and the browser polls.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from threading import Event
from typing import TypeAlias

from fastapi.sse import format_sse_event

from onejob.api.job_reads import JobWatcher
from onejob.jobs.lifecycle import State
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.ledger.ledger import Ledger

logger = logging.getLogger("onejob.pages")

POLL_SECONDS = 1.0
CURRENT_SECONDS = 5.0
"""Seconds between two `current` events (nothing has changed), which also keep a stream open."""
QUIET_SECONDS = 60.0
"""Seconds without a change after which pages reload: not every value is a part of the version."""
ASK_AGAIN_SECONDS = 2.0
"""Seconds after which a browser polls again where nothing is streamed."""
ASK_AGAIN = format_sse_event(retry=int(ASK_AGAIN_SECONDS * 1000))
"""The response to a poll if it is not known whether anything has changed."""
CHANGE, CURRENT = "change", "current"
NOT_COUNTED = nullcontext()
NO_CHANGE = ('["sweeps_total"', '["published_total"', '["heartbeats_late_total"')
"""The beginnings of totals that change although no job changes."""
Version: TypeAlias = tuple[object, ...]


class ChangeFeed:
    """Reads a few totals of a ledger every second while any page waits, and wakes the pages when they differ."""

    def __init__(self, ledger: Ledger, closing: Event) -> None:
        self._ledger = ledger
        self._closing = closing
        self._version: Version = ()
        self._waiters = 0
        self.next_change = asyncio.Event()
        """Set, and replaced, at the next change, and when the server begins to shut down."""
        self._poller: asyncio.Task[None] | None = None
        self._has_read = asyncio.Event()

    @asynccontextmanager
    async def subscribed(self) -> AsyncIterator[None]:
        """Keep the poller running for the length of a block, which begins when it has read the ledger.

        Every later change wakes the block.
        """
        self._waiters += 1
        if self._poller is None or self._poller.done():
            self._has_read = asyncio.Event()
            self._poller = asyncio.create_task(self._poll())
        try:
            await self._has_read.wait()
            yield
        finally:
            self._waiters -= 1

    async def _poll(self) -> None:
        while self._waiters:
            if self._closing.is_set():
                self._has_read.set()
                self.next_change.set()
                return
            try:
                version = await asyncio.to_thread(read_version, self._ledger)
            except Exception as error:  # noqa: BLE001 - the pages wait, so the poller must go on
                logger.warning("the ledger could not be read for open pages: %r", error)
            else:
                if self._version and version != self._version:
                    self.next_change.set()
                    self.next_change = asyncio.Event()
                self._version = version
            self._has_read.set()
            await asyncio.sleep(POLL_SECONDS)
        self._version = ()


def read_version(ledger: Ledger) -> Version:
    """Return the version of a ledger: it differs after a change of a job, a worker, a schedule, a block or a limit."""
    totals = ledger.store.totals()
    figures = sorted(item for item in totals.items() if not item[0].startswith(NO_CHANGE))
    newest = ledger.find(Query(limit=1, light=True))
    store = ledger.store
    others = ([each.nonce for each in store.schedules()], [each.id for each in store.blocks()], store.limit_values())
    return (figures, [job.id for job in newest], [each.name for each in ledger.workers()], *others)


def version_name(version: object) -> str:
    """Return the name of a version; after `QUIET_SECONDS` a version without a change gets another name."""
    text = repr((version, int(time.time() // QUIET_SECONDS)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def version_name_of(job: JobRow) -> str:
    """Return the name of the version of a job: a running one has another name after `CURRENT_SECONDS`, for its log."""
    return version_name((job, int(time.time() // CURRENT_SECONDS) if job.state is State.RUNNING else 0))


def format_poll(name: str, seen: str | None) -> bytes:
    """Return the whole stream that responds to a poll: the event, its version, and the time of the next poll.

    `seen`: the version of the browser's last event, which it sends as `Last-Event-ID`.
    """
    event = CURRENT if name == seen else CHANGE
    return format_sse_event(data_str="1", event=event, id=name, retry=int(ASK_AGAIN_SECONDS * 1000))


async def stream_changes(
    feed: ChangeFeed, is_open: Callable[[], Awaitable[bool]], counted: AbstractContextManager[None] = NOT_COUNTED
) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events: `change` after a change, or `QUIET_SECONDS` without one, and `current` meanwhile.

    The first event is `change`, since the page may have been built before the last change. `counted`: a context manager
    that counts the open stream.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(counted)
        await stack.enter_async_context(feed.subscribed())
        change, quiet_seconds = feed.next_change, 0.0
        yield _event(CHANGE)
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(change.wait(), CURRENT_SECONDS)
            changed, change = change.is_set(), feed.next_change  # before the event is sent, which may take long
            if not await is_open():
                return
            quiet_seconds = 0.0 if changed or quiet_seconds >= QUIET_SECONDS else quiet_seconds + CURRENT_SECONDS
            yield _event(CURRENT if quiet_seconds else CHANGE)


async def stream_job(
    watcher: JobWatcher, job: JobRow, caller: str, is_open: Callable[[], Awaitable[bool]]
) -> AsyncGenerator[bytes, None]:
    """Yield the same events about a job, until it is deleted, while the stream `is_open`.

    A running job, whose log may have grown, has a `change` every `CURRENT_SECONDS`.
    """
    yield _event(CHANGE)
    async with watcher.watch(job, caller) as watch:
        latest = watch.job
        while latest is not None:
            if watch.job is latest:
                await watch.wait_for_change(CURRENT_SECONDS)
            if not await is_open():
                return
            changed, latest = watch.job is not latest, watch.job
            is_running = latest is not None and latest.state is State.RUNNING
            yield _event(CHANGE if changed or is_running else CURRENT)


def _event(name: str) -> bytes:
    return format_sse_event(data_str="1", event=name)
