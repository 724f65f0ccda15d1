"""taskiq on a Redis list, with results in Redis: two worker processes with an event loop each."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

from bench.peers.common import BROKER, SECOND, Peer, work

if TYPE_CHECKING:
    from collections.abc import Sequence

results: RedisAsyncResultBackend[int] = RedisAsyncResultBackend(os.environ[BROKER], result_ex_time=600)
broker = ListQueueBroker(os.environ[BROKER]).with_result_backend(results)


async def run(number: int, second: int) -> int:
    """Run the body of the job."""
    return work(number, second)


task = broker.task(run)


class TaskiqPeer(Peer):
    """A broker of taskiq, in an event loop of its own."""

    commands = (("-m", "taskiq", "worker", f"{__name__}:broker", "--workers", "2", "--log-level", "WARNING"),)

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def connect(self) -> None:
        """Connect."""
        self._runner.run(broker.startup())

    def submit(self, numbers: Sequence[int]) -> None:
        """Await `kiq()` for each number."""
        self._runner.run(self._send(numbers))

    async def _send(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            await task.kiq(number, SECOND)


peer = TaskiqPeer()
