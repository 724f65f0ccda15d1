"""Signals: what happens in a ledger wakes who waits for it, in any process."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol, TypeAlias

Wake: TypeAlias = Callable[[str], object]
BACKSTOP = 1.0
"""Seconds after which each subscriber looks for itself, so that a lost notification costs no more."""
POLL = 0.05
"""Seconds after which each subscriber looks for itself where no notifications arrive."""


JOB = "job"
MESSAGE = "message"


class Channel(StrEnum):
    """What a signal is about."""

    END = "end"
    """A job has ended; the key is its id."""
    DUE = "due"
    """A job or a message may be due; the key is the name of its queue, or "" for a job that the end of another one has
    made due. The payload is `JOB` or `MESSAGE`."""


class Signals(Protocol):
    """The signals of one store. Safe to use from many threads; a forked child has no subscriptions of its parent."""

    interval: float
    """Seconds after which each subscriber should look for itself: `BACKSTOP`, or `POLL` where no signals arrive."""

    def subscribe(self, channel: Channel, key: str, wake: Wake) -> Callable[[], None]:
        """Have `wake` called with the payload of each signal, and return the function that ends the subscription.

        It is called in the thread that listens, must not block, and may be called without a reason. An empty payload
        means that something may have happened: also when a connection was lost, and when a new one listens. So a
        subscriber looks for itself once after this call, which never raises, after each wake, and at each `interval`.
        """

    def close(self) -> None:
        """Close the connection. The next subscription opens another one."""
