"""The hand-over of a waiting job: the way by which it gets to a worker, and when a sweep looks whether it did."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Way(StrEnum):
    """How a waiting job that is due gets to a worker."""

    SWEPT = "swept"
    """A sweep hands the job over."""
    CALLER = "caller"
    """The caller of the store sends the message of the job."""
    PUSHED = "pushed"
    """The store pushes the message to the broker, in the operation that writes the job."""
    OFFERED = "offered"
    """Workers take the job from the ledger: only a job whose route is the name of a queue."""
    HELD = "held"
    """No worker gets the job before a sweep has looked at it, even where workers take jobs from the ledger."""


class BrokerMessage(NamedTuple):
    """The message of a job as the broker keeps it, for a store that is on the same server and can push it there."""

    destination: str
    """The key of the broker's list."""
    text: str


class Handover(NamedTuple):
    """The hand-over of a waiting job: its way to a worker, and when a sweep looks at it."""

    way: Way
    after: float | None = None
    """Seconds until a sweep looks at the job; None: one lease of the job."""
    message: BrokerMessage | None = None
    """The message that the store pushes."""

    def columns(self, lease: float) -> tuple[float, bool]:
        """Return two values that a store writes for a due job: the seconds to `wake_at`; whether `published_at` is now.

        No sweep and no worker takes a job with a `published_at` at once.
        """
        return lease if self.after is None else self.after, self.way not in UNSENT

    def columns_for(self, lease: float, route: str) -> tuple[float, bool]:
        """Return the `columns` of a job that exists, whose `route` may differ from the route of its submission."""
        wake_after, is_sent = self.columns(lease)
        return wake_after, is_sent or (self.way is Way.OFFERED and not is_plain(route))

    def is_offered(self, route: str) -> bool:
        """Return whether workers take a job with this route from the ledger."""
        return self.way is Way.OFFERED and is_plain(route)


def is_plain(text: str) -> bool:
    """Return whether an encoded route is the name of a queue, whose workers can take the job from the ledger."""
    return bool(text) and not text.startswith("[")


UNSENT = frozenset({Way.SWEPT, Way.OFFERED})
"""The ways after which a job has no `published_at`."""
BY_SWEEP = Handover(Way.SWEPT, 0.0)
"""The next sweep hands the job over."""
BY_CALLER = Handover(Way.CALLER)
"""The caller sends the message; after one lease, a sweep sees whether the message was lost."""
OFFERED = Handover(Way.OFFERED)
"""Workers take the job from the ledger; after one lease, a sweep sees whether a worker has taken it."""


def by_caller(_submission: object) -> Handover:
    """Return the hand-over of any submission by its caller."""
    return BY_CALLER


def by_sweep(after: float) -> Handover:
    """Return the hand-over by a sweep in so many seconds."""
    return Handover(Way.SWEPT, after)


def pushed(message: BrokerMessage) -> Handover:
    """Return the hand-over by the store, which pushes this message."""
    return Handover(Way.PUSHED, None, message)


def held(after: float) -> Handover:
    """Return the hand-over of a job that no worker gets before a sweep has looked at it, in so many seconds."""
    return Handover(Way.HELD, after)
