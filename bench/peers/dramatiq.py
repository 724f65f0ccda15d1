"""dramatiq on Redis: two worker processes, each with its default number of threads; no results."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers.common import BROKER, SECOND, Peer, work

if TYPE_CHECKING:
    from collections.abc import Sequence

dramatiq.set_broker(RedisBroker(url=os.environ[BROKER]))
actor = dramatiq.actor(work)


class DramatiqPeer(Peer):
    """An actor."""

    commands = (("-m", "dramatiq", __name__, "--processes", "2"),)

    def submit(self, numbers: Sequence[int]) -> None:
        """Call `send()` for each number."""
        for number in numbers:
            actor.send(number, SECOND)


peer = DramatiqPeer()
