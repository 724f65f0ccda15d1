"""How long a worker has reached the store without a break: only then may its sweeper end expired leases."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LATE_FACTOR = 1.5
"""A renewal is late after this many intervals since the previous one."""


class StoreContact:
    """The times at which a worker renewed its leases.

    While the store is away, the leases of all workers expire, and each worker renews its own as soon as the store is
    back. So a worker ends no lease before `settling` seconds have passed since its contact was last broken.

    `shortest`: the shortest lease of the app. A break is a gap in which a lease can expire that is renewed every
    `interval` seconds: a shorter outage ends no lease. All in seconds.
    `clock` returns seconds that only grow.
    """

    def __init__(
        self, *, settling: float, shortest: float, interval: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._settling = settling
        self._longest_gap = max(shortest - interval, LATE_FACTOR * interval)
        self._since = self._latest = -math.inf

    def reached(self) -> float:
        """Record that the leases were renewed now; return the seconds since the previous time (infinite at first)."""
        previous, self._latest = self._latest, self._clock()
        gap = self._latest - previous
        if gap > self._longest_gap:
            self._since = self._latest
        return gap

    @property
    def steady(self) -> bool:
        """Whether every worker that is alive has had the time to renew its leases."""
        now = self._clock()
        return now - self._latest <= self._longest_gap and now - self._since >= self._settling
