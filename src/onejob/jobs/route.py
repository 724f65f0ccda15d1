"""The route of a job: where its messages are sent."""

from __future__ import annotations

import json
from typing import NamedTuple


class Route(NamedTuple):
    """An exchange, a routing key, and the queue that the message is meant for; "" for none."""

    exchange: str
    routing_key: str
    queue: str

    @classmethod
    def to_queue(cls, queue: str) -> Route:
        """Return the route through the default exchange, which delivers to the queue that the routing key names."""
        return cls("", queue, queue)

    @property
    def is_direct(self) -> bool:
        """Whether the default exchange delivers straight to the queue."""
        return not self.exchange and self.routing_key == self.queue

    def encode(self) -> str:
        """Return the text that a job stores: the name of the queue alone where the rest follows from it."""
        return self.queue if self.is_direct and not self.queue.startswith("[") else json.dumps(self)

    @classmethod
    def decode(cls, text: str) -> Route:
        """Return the route in a text of `encode`."""
        return cls(*json.loads(text)) if text.startswith("[") else cls.to_queue(text)
