"""Tools that concurrent requests share: a batcher of calls, an object per event loop, caches whose values expire."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from functools import partial
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from celery.utils.functional import LRUCache

from onejob.stores.carrier import Pending, or_error
from onejob.stores.protocol import BATCH_LIMIT

T = TypeVar("T")
Item = TypeVar("Item")
Result = TypeVar("Result")
MAX_BATCHES = 2
"""The number of batches that are processed at once: one waits for the store while another is prepared."""
MAX_DEFERRED = 32
"""The number of deferred results that are computed at once."""


class PerEventLoop(Generic[T]):
    """Keeps one object per event loop, made by `make` on first use. Most processes have one loop, tests have many."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()

    def all(self) -> list[T]:
        """Return the objects of all loops."""
        return list(self._by_loop.values())

    def current(self) -> T:
        """Return the object of the running loop; make it on first use."""
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            self._by_loop[loop] = self._make()
        return self._by_loop[loop]


class Batcher(Generic[Item, Result]):
    """Passes the items of an event loop's coroutines to `process_batch`, in a thread, in few batches.

    `process_batch` returns one result per item, in their order; an exception as a result is raised in the coroutine of
    its item. An item is processed at once unless `MAX_BATCHES` batches are in progress. A batch runs in an empty
    context.
    """

    def __init__(
        self, process_batch: Callable[[Sequence[Item]], Sequence[Result | Pending[Result] | Exception]]
    ) -> None:
        self._process_batch = process_batch
        self._pending: list[tuple[Item, asyncio.Future[Result | Exception]]] = []
        self._consumers = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(MAX_BATCHES, "onejob-batch")
        self._deferred_threads = ThreadPoolExecutor(MAX_DEFERRED, "onejob-deferred")

    async def process(self, item: Item) -> Result:
        """Return the result for an item."""
        future: asyncio.Future[Result | Exception] = asyncio.get_running_loop().create_future()
        self._pending.append((item, future))
        if self._consumers < MAX_BATCHES:
            self._consumers += 1
            task = asyncio.create_task(self._consume(), context=Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        result = await future
        if isinstance(result, Exception):
            raise result
        return result

    async def _consume(self) -> None:
        try:
            while self._pending:
                await self._process_next_batch()
        finally:
            self._consumers -= 1  # in the same step as the last check of `_pending`, so that no item is left behind

    async def _process_next_batch(self) -> None:
        batch, self._pending = self._pending[:BATCH_LIMIT], self._pending[BATCH_LIMIT:]
        loop, process = asyncio.get_running_loop(), partial(self._process_batch, [item for item, _ in batch])
        try:
            found = await loop.run_in_executor(self._threads, or_error, process)
            results = [found] * len(batch) if isinstance(found, Exception) else found
            for (_, future), result in zip(batch, results, strict=True):
                if isinstance(result, Pending):
                    computed = loop.run_in_executor(self._deferred_threads, or_error, result.compute)
                    computed.add_done_callback(partial(_resolve_by, future))
                else:
                    _resolve(future, result)
        except BaseException as error:
            for _, future in batch:  # whatever happens, nobody waits for ever
                _resolve(future, RuntimeError(f"the batch was not processed: {error!r}"))
            raise


def _resolve(future: asyncio.Future[Result], result: Result) -> None:
    if not future.done():  # done already: its coroutine was canceled
        future.set_result(result)


def _resolve_by(future: asyncio.Future[Result], computed: asyncio.Future[Result]) -> None:
    if not computed.cancelled():  # as at the end of the event loop
        _resolve(future, computed.result())


class TTLCache(Generic[T]):
    """Caches the value or the exception of `load` for some seconds; one call of `load` runs at a time.

    A load that took `t` seconds is cached for `cost_factor * (t - free_seconds)` seconds if that is longer.
    """

    def __init__(
        self, load: Callable[[], T], seconds: float, *, cost_factor: float = 0.0, free_seconds: float = 0.0
    ) -> None:
        self._load = load
        self._seconds = seconds
        self._cost_factor = cost_factor
        self._free_seconds = free_seconds
        self._lock = threading.Lock()
        self._expires_at = float("-inf")
        self._loaded: T | Exception

    def __call__(self) -> T:
        """Return the value, or raise the exception, that was loaded last."""
        with self._lock:
            started = time.monotonic()
            if started >= self._expires_at:
                self._loaded = or_error(self._load)
                now = time.monotonic()
                cost = now - started - self._free_seconds
                self._expires_at = now + max(self._seconds, self._cost_factor * cost)
            if isinstance(self._loaded, Exception):
                raise self._loaded.with_traceback(None)
            return self._loaded


ENTRIES = 32
"""The default number of cached values. A page takes up to about a megabyte."""


class KeyedCache(Generic[T]):
    """Caches at most `entries` values by key, each in a `TTLCache` that all callers with the key share."""

    def __init__(self, seconds: float, *, entries: int = ENTRIES, **costs: float) -> None:
        self._make: Callable[[Callable[[], T]], TTLCache[T]] = lambda load: TTLCache(load, seconds, **costs)
        self._by_key: LRUCache[Hashable, TTLCache[T]] = LRUCache(entries)

    def get(self, key: Hashable, load: Callable[[], T]) -> T:
        """Return the value of a key, loaded by this call or by an earlier one."""
        return self._by_key.setdefault(key, self._make(load))()

    def clear(self) -> None:
        """Forget all values."""
        self._by_key.clear()
