"""The clock of a test: the time of the machine, and what the test has added to it."""

from __future__ import annotations

import time
from datetime import timedelta

from onejob.errors import ConfigurationError


class Clock:
    """Seconds since the epoch, ahead of the machine's by `offset` seconds. A store of a test reads this clock."""

    def __init__(self) -> None:
        self.offset = 0.0

    def __call__(self) -> float:
        """Return the time, in whole microseconds."""
        return (time.time_ns() // 1000 + round(self.offset * 1e6)) / 1e6

    def travel(self, seconds: float = 0.0, **units: float) -> None:
        """Advance the clock by `seconds`, or by `minutes`, `hours`, `days`, as `datetime.timedelta` takes them.

        Raises `ConfigurationError` for a negative time: leases and tokens rely on a clock that does not go back.
        """
        ahead = timedelta(seconds=seconds, **units).total_seconds()
        if ahead < 0:
            msg = f"travel takes a time ahead, not {ahead:g} s: the clock of a ledger does not go back"
            raise ConfigurationError(msg)
        self.offset += ahead
