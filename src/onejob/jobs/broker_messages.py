"""The messages of Celery, except the messages of jobs, in a store that is the broker."""

from __future__ import annotations

from onejob.jobs.model import value


@value(slots=True)
class NewMessage:
    """A message that is published."""

    id: str
    """The id that the publisher makes, so that a repeated call writes nothing."""
    exchange: str
    """The exchange whose bindings decide which queues get a copy; "" for the queue that `routing_key` names."""
    routing_key: str
    body: str
    priority: int = 0
    """Messages of a larger priority are delivered first."""
    expires_in: float | None = None
    """After how many seconds the message is no longer delivered."""


@value(slots=True)
class Delivery:
    """A copy of a message in one queue, taken by a consumer."""

    id: int
    queue: str
    body: str
    redelivered: bool
    """Whether a consumer had the message before."""
