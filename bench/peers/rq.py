"""RQ: two worker processes, each of which forks for every job, its default."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from redis import Redis
from rq import Queue

from bench.peers.common import BROKER, SECOND, Peer, work

if TYPE_CHECKING:
    from collections.abc import Sequence

queue = Queue("bench", connection=Redis.from_url(os.environ[BROKER]))


class RqPeer(Peer):
    """A queue of RQ."""

    commands = (("-m", "rq.cli", "worker-pool", "bench", "-n", "2", "-q", "--url", os.environ[BROKER]),)

    def submit(self, numbers: Sequence[int]) -> None:
        """Call `enqueue()` for each number."""
        for number in numbers:
            queue.enqueue(work, number, SECOND)

    def submit_bulk(self, numbers: Sequence[int]) -> None:
        """Call `enqueue_many()` once."""
        queue.enqueue_many([Queue.prepare_data(work, (number, SECOND)) for number in numbers])


peer = RqPeer()
