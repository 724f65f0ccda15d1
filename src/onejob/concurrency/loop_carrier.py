"""The carrier of an event loop: the requests of its coroutines to a store go there together, from threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from onejob.concurrency.batching import Batcher
from onejob.concurrency.greenlets import is_bridged, wait_for


class LoopCarrier:
    """A `Carrier` for the code in the bridges of one event loop."""

    def __init__(self) -> None:
        self._batchers: dict[Callable[..., Any], Batcher[Any, Any]] = {}

    is_usable = staticmethod(is_bridged)

    def carry(self, process: Callable[[Sequence[Any]], Sequence[Any]], request: Any) -> Any:
        """Carry a request, as `Carrier.carry` says."""
        batcher = self._batchers.get(process)
        if batcher is None:
            batcher = self._batchers[process] = Batcher(process)
        return wait_for(batcher.process(request))

    def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""
        wait_for(asyncio.sleep(seconds))
