"""Tells open pages that something has changed: one poller per process, however many pages are open."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from onejob.jobs.records import Query

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from threading import Event

    from onejob.api.job_watcher import JobWatcher
    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger

logger = logging.getLogger("onejob.pages")

POLL_SECONDS = 1.0
KEEPALIVE_SECONDS = 15.0
QUIET_SECONDS = 15.0
"""After so long pages are told to reload, whether or not a change was noticed: progress changes no figure."""
NO_CHANGE = ('["sweeps_total"', '["published_total"', '["heartbeats_late_total"')
"""How the totals begin that change although no job does."""
Version: TypeAlias = "tuple[object, ...]"


class ChangeFeed:
    """Reads a few figures of a ledger every second while anybody waits, and wakes the waiters when they differ."""

    def __init__(self, ledger: Ledger, closing: Event) -> None:
        self._ledger = ledger
        self.closing = closing
        """Set when the server begins to shut down: all streams end."""
        self._version: Version = ()
        self._waiters = 0
        self._changed = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def subscribed(self) -> AsyncIterator[None]:
        """Keep the poller running for the length of a block."""
        self._waiters += 1
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        try:
            yield
        finally:
            self._waiters -= 1

    async def wait(self, seconds: float) -> bool:
        """Wait for a change for at most so many seconds, and return whether there was one."""
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def _poll(self) -> None:
        while self._waiters:
            if self.closing.is_set():
                self._changed.set()
                return
            try:
                version = await asyncio.to_thread(self._read_version)
            except Exception as error:  # noqa: BLE001 - the pages wait, so the poller must go on
                logger.warning("the ledger could not be read for open pages: %r", error)
            else:
                if self._version and version != self._version:
                    self._changed.set()
                    self._changed = asyncio.Event()
                self._version = version
            await asyncio.sleep(POLL_SECONDS)
        self._version = ()

    def _read_version(self) -> Version:
        """Return what differs after a job was submitted, or has changed its state, or a worker has come or gone."""
        totals = self._ledger.store.totals()
        figures = sorted(item for item in totals.items() if not item[0].startswith(NO_CHANGE))
        newest = self._ledger.find(Query(limit=1, light=True))
        return (tuple(figures), tuple(job.id for job in newest), tuple(each.name for each in self._ledger.workers()))


async def stream_changes(feed: ChangeFeed) -> AsyncIterator[bytes]:
    """Yield a server-sent event `change` at once, since the page is older than its stream, and after each change."""
    async with feed.subscribed():
        yield _change_event(changed=True)
        while not feed.closing.is_set():
            yield _change_event(changed=await feed.wait(QUIET_SECONDS))


async def stream_job(watcher: JobWatcher, job: Job, caller: str) -> AsyncIterator[bytes]:
    """Yield a server-sent event `change` at once, since the page is older than its stream, and after each change."""
    async with watcher.watch(job, caller) as watch:
        yield _change_event(changed=True)
        while watch.job is not None:
            changed = await watch.wait_for_change(KEEPALIVE_SECONDS)
            yield _change_event(changed=True) if changed else KEEPALIVE_COMMENT


def _change_event(*, changed: bool) -> bytes:
    """Return the event after which a page reloads; `changed`: whether a change was noticed."""
    return format_sse_event(data_str="1" if changed else "0", event="change")
