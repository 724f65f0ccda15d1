"""Docket on Redis with its `ConcurrencyLimit` by an argument: two worker processes with an event loop each."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Annotated

from docket import ConcurrencyLimit, Docket

from bench.peers.common import BROKER, Peer
from bench.peers.slots import PROCESSES, RUNNING, key_of, places, record, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "bench"


async def run(number: int, key: Annotated[int, ConcurrencyLimit(RUNNING)]) -> None:
    """Take a while, and record it."""
    began = time.monotonic()
    if taken := seconds():
        await asyncio.sleep(taken)
    record(number, key, began)


tasks = [run]
OPTIONS = ("--docket", NAME, "--url", os.environ[BROKER], "--tasks", f"{__name__}:tasks", "--logging-level", "WARNING")


class DocketPeer(Peer):
    """A docket, in an event loop of its own."""

    commands = tuple(
        ("-m", "docket", "worker", *OPTIONS, "--concurrency", str(places()), "--name", f"worker-{number}")
        for number in range(PROCESSES)
    )

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._docket = Docket(name=NAME, url=os.environ[BROKER])

    def connect(self) -> None:
        """Connect."""
        self._runner.run(self._docket.__aenter__())

    def submit_bulk(self, numbers: Sequence[int]) -> None:
        """Await `add_many()` once."""
        calls = [self._docket.call(run)(number=number, key=key_of(number)) for number in numbers]
        self._runner.run(self._docket.add_many(calls))


peer = DocketPeer()
