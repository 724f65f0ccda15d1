"""SAQ on Redis: two worker processes with an event loop each; equal jobs have equal keys, which it refuses."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from saq import Queue

from bench.peers.common import BROKER, SECOND, Peer, work

if TYPE_CHECKING:
    from collections.abc import Sequence

queue = Queue.from_url(os.environ[BROKER], name="bench")


async def run(_context: Any, *, number: int, second: int) -> int:
    """Run the body of the job."""
    return work(number, second)


settings = {"queue": queue, "functions": [run]}


class SaqPeer(Peer):
    """A queue of SAQ, in an event loop of its own."""

    commands = (("-m", "saq", f"{__name__}.settings", "--workers", "2", "--quiet"),)

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def submit(self, numbers: Sequence[int]) -> None:
        """Await `enqueue()` for each number."""
        self._runner.run(self._enqueue(numbers))

    def submit_equal(self, numbers: Sequence[int]) -> None:
        """Await `enqueue()` with an equal key for each number."""
        self._runner.run(self._enqueue(numbers, key="{number}"))

    async def _enqueue(self, numbers: Sequence[int], key: str | None = None) -> None:
        for number in numbers:
            named = {"key": key.format(number=number)} if key else {}
            await queue.enqueue("run", number=number, second=SECOND, **named)


peer = SaqPeer()
