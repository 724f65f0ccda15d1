"""huey on Redis: two worker processes; results are stored, its default."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from huey import RedisHuey

from bench.peers.common import BROKER, SECOND, Peer, work

if TYPE_CHECKING:
    from collections.abc import Sequence

huey = RedisHuey("bench", url=os.environ[BROKER])
task = huey.task()(work)


class HueyPeer(Peer):
    """A task of huey."""

    commands = (("-m", "huey.bin.huey_consumer", f"{__name__}.huey", "-k", "process", "-w", "2", "-q"),)

    def submit(self, numbers: Sequence[int]) -> None:
        """Call the task for each number."""
        for number in numbers:
            task(number, SECOND)


peer = HueyPeer()
