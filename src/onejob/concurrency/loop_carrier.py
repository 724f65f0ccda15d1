"""The carrier of an event loop: the requests of its coroutines to a store go there together, from threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias, TypeVar

from onejob.concurrency.batching import MAX_BATCHES, MAX_DEFERRED
from onejob.concurrency.greenlets import call_in_bridge, is_bridged, wait_for
from onejob.stores.carrier import Pending, carried, or_error
from onejob.stores.protocol import BATCH_LIMIT

T = TypeVar("T")
Process: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
"""Carries out several requests, and returns the result of each in their order, as `Carrier.carry` says."""


class LoopCarrier:
    """A `Carrier` for the code in the bridges of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines: dict[Process, Line] = {}

    is_usable = staticmethod(is_bridged)

    def is_of_running_loop(self) -> bool:
        """Return whether the caller is a coroutine of this loop."""
        return asyncio._get_running_loop() is self._loop  # noqa: SLF001 - documented for this

    async def call(self, operation: Callable[[], T]) -> T:
        """Call an operation for a coroutine, as `Carrier.call` says."""
        return await call_in_bridge(partial(carried, operation))

    def carry(self, process: Process, request: Any) -> Any:
        """Carry a request, as `Carrier.carry` says."""
        line = self._lines.get(process)
        if line is None:
            line = self._lines[process] = Line(self._loop, process)
        result = wait_for(line.add(request))
        if isinstance(result, Exception):
            raise result
        return result

    def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""
        wait_for(asyncio.sleep(seconds))


class Line:
    """The requests that one function processes: those that have come in one turn of the loop go together.

    At most `MAX_BATCHES` batches are on their way at once; what comes meanwhile waits, and then goes together.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, process: Process) -> None:
        self._loop = loop
        self._process = process
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._under_way = 0
        self._threads = ThreadPoolExecutor(MAX_BATCHES, "onejob-carrier")
        self._apart = ThreadPoolExecutor(MAX_DEFERRED, "onejob-apart")

    def add(self, request: Any) -> asyncio.Future[Any]:
        """Add a request, and return the future of its result."""
        future = self._loop.create_future()
        self._waiting.append((request, future))
        if len(self._waiting) == 1 and self._under_way < MAX_BATCHES:
            self._loop.call_soon(self._send)  # once the other coroutines of this turn have added theirs
        return future

    def _send(self) -> None:
        if self._waiting and self._under_way < MAX_BATCHES:
            batch, self._waiting = self._waiting[:BATCH_LIMIT], self._waiting[BATCH_LIMIT:]
            self._under_way += 1
            self._threads.submit(self._carry_out, batch)

    def _carry_out(self, batch: Sequence[tuple[Any, asyncio.Future[Any]]]) -> None:
        found = or_error(partial(self._process, [request for request, _ in batch]))
        results = [found] * len(batch) if isinstance(found, Exception) else found
        self._loop.call_soon_threadsafe(self._resolve, batch, results)

    def _resolve(self, batch: Sequence[tuple[Any, asyncio.Future[Any]]], results: Sequence[Any]) -> None:
        self._under_way -= 1
        for (_, future), result in zip(batch, results, strict=True):
            if isinstance(result, Pending):
                self._apart.submit(self._compute, result, future)
            else:
                _set(future, result)
        self._send()

    def _compute(self, pending: Pending[Any], future: asyncio.Future[Any]) -> None:
        self._loop.call_soon_threadsafe(_set, future, or_error(pending.compute))


def _set(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():  # its coroutine was canceled
        future.set_result(result)
