"""procrastinate on PostgreSQL: two workers, each one process; equal jobs have an equal `queueing_lock`."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import procrastinate
from procrastinate.exceptions import AlreadyEnqueued

from bench.peers.common import SECOND, STORE, Peer, work

if TYPE_CHECKING:
    from collections.abc import Sequence

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ[STORE]))
task = app.task(name="bench.work")(work)


class ProcrastinatePeer(Peer):
    """A task of procrastinate."""

    commands = (("-m", "procrastinate", "-a", f"{__name__}.app", "worker"),) * 2

    def connect(self) -> None:
        """Open the pool of connections."""
        app.open()

    def prepare(self) -> None:
        """Make the schema."""
        app.schema_manager.apply_schema()

    def submit(self, numbers: Sequence[int]) -> None:
        """Call `defer()` for each number."""
        for number in numbers:
            task.defer(number=number, second=SECOND)

    def submit_equal(self, numbers: Sequence[int]) -> None:
        """Call `defer()` with a lock for each number."""
        for number in numbers:
            with suppress(AlreadyEnqueued):
                task.configure(queueing_lock=str(number)).defer(number=number, second=SECOND)

    def submit_bulk(self, numbers: Sequence[int]) -> None:
        """Call `batch_defer()` once."""
        task.batch_defer(*({"number": number, "second": SECOND} for number in numbers))


peer = ProcrastinatePeer()
