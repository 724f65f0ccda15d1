"""The carrier of an event loop: the requests of its coroutines to a store go there together, from threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from onejob.concurrency.batching import Batcher
from onejob.concurrency.greenlets import call_in_bridge, is_bridged, wait_for
from onejob.stores.carrier import carried

T = TypeVar("T")


class LoopCarrier:
    """A `Carrier` for the code in the bridges of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._batchers: dict[Callable[..., Any], Batcher[Any, Any]] = {}

    is_usable = staticmethod(is_bridged)

    def is_of_running_loop(self) -> bool:
        """Return whether the caller is a coroutine of this loop."""
        return asyncio._get_running_loop() is self._loop  # noqa: SLF001 - documented for this

    async def call(self, operation: Callable[[], T]) -> T:
        """Call an operation for a coroutine, as `Carrier.call` says."""
        return await call_in_bridge(partial(carried, operation))

    def carry(self, process: Callable[[Sequence[Any]], Sequence[Any]], request: Any) -> Any:
        """Carry a request, as `Carrier.carry` says."""
        batcher = self._batchers.get(process)
        if batcher is None:
            batcher = self._batchers[process] = Batcher(process)
        return wait_for(batcher.process(request))

    def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""
        wait_for(asyncio.sleep(seconds))
