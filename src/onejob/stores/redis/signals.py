"""The signals of a ledger in Redis: scripts publish them, and one connection per process is subscribed to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from redis import ConnectionPool, exceptions

from onejob.stores.listener import Feed
from onejob.stores.redis.connection import Connection
from onejob.stores.signals import Channel


class RedisFeed(Feed):
    """A connection that is subscribed to channels, named `names`."""

    def __init__(self, pool: ConnectionPool, names: Mapping[Channel, str]) -> None:
        super().__init__(Connection(pool), names)
        self._is_checked = False

    def change(self, added: Iterable[Channel], removed: Iterable[Channel]) -> None:
        """Subscribe to channels, and unsubscribe from others."""
        for command, channels in (("SUBSCRIBE", added), ("UNSUBSCRIBE", removed)):
            self._connection.send((command, self._names[channel]) for channel in channels)

    def read(self) -> Iterator[tuple[Channel, str | None, str]]:
        """Yield channel, key and payload of what has arrived; without a key when a channel was subscribed to."""
        for reply in self._connection.receive_available():
            if isinstance(reply, Exception):
                raise reply
            self._is_checked = False
            kind, name, text = reply if len(reply) == 3 else (*reply, "")  # noqa: PLR2004 - a PONG has two
            if kind == "message":
                yield self._signal(name, text)
            elif kind == "subscribe":
                yield self._channels[name], None, ""

    def check(self) -> None:
        """Send a ping, whose reply has to arrive before the next call."""
        if self._is_checked:
            raise exceptions.TimeoutError("the server does not answer")
        self._connection.send([("PING",)])
        self._is_checked = True
