"""The messages that a store keeps as a broker: those of Celery that are not messages of jobs."""

from __future__ import annotations

from onejob.jobs.value import value


@value(frozen=True, slots=True)
class NewMessage:
    """A message that is published."""

    id: str
    """Made by its publisher, so that a repeated call writes nothing."""
    exchange: str
    """The exchange whose bindings decide which queues get a copy; "" for the queue that `routing_key` names."""
    routing_key: str
    body: str
    priority: int = 0
    """Larger ones are delivered first."""
    expires_in: float | None = None
    """After how many seconds it is no longer delivered."""


@value(frozen=True, slots=True)
class Delivery:
    """A copy of a message in one queue, taken by a consumer."""

    id: int
    queue: str
    body: str
    redelivered: bool
    """Whether a consumer had it before."""
