"""A Celery task of onejob with a limit by its key: two workers, each a pool of threads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import onejob
from bench.peers.common import STORE, Peer, celery_app
from bench.peers.slots import PROCESSES, RUNNING, key_of, limited_work, places
from onejob.celery.app_state import app_state_of

if TYPE_CHECKING:
    from collections.abc import Sequence

app = celery_app(onejob_store=os.environ[STORE], worker_prefetch_multiplier=1)
task = app.task(name="bench.work", base=onejob.Task, limits=[onejob.Limit("key", running=RUNNING)])(limited_work)
OPTIONS = ("--loglevel=warning", "--without-gossip", "--without-mingle", "--pool=threads")


class LimitedPeer(Peer):
    """A task of ours with a limit."""

    commands = tuple(
        (
            "-m",
            "celery",
            "-A",
            __name__,
            "worker",
            *OPTIONS,
            f"--concurrency={places()}",
            "-n",
            f"worker-{number}@bench",
        )
        for number in range(PROCESSES)
    )

    def prepare(self) -> None:
        """Make the schema, where that is a step of its own, and define the limit, as the first worker does."""
        if os.environ[STORE].startswith("postgresql"):
            from onejob.stores.migrate import upgrade

            upgrade(os.environ[STORE])
        app_state_of(app).define_limits()

    def submit_bulk(self, numbers: Sequence[int]) -> None:
        """Call `submit_many()` once."""
        task.submit_many([(number, key_of(number)) for number in numbers])


peer = LimitedPeer()
