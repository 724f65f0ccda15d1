"""The signals of a ledger in PostgreSQL: statements notify of them, and one connection per process listens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from onejob.stores.listener import Feed
from onejob.stores.postgres.connection import HEARTBEAT_SILENCE, Connection
from onejob.stores.signals import Channel


class PostgresFeed(Feed):
    """A connection that listens to channels, named `names`."""

    def __init__(self, conninfo: str, names: Mapping[Channel, str]) -> None:
        connection = Connection.connect(conninfo, autocommit=True)
        connection.silence = HEARTBEAT_SILENCE
        super().__init__(connection, names)
        self._arrived: list[tuple[Channel, str | None, str]] = []
        self._connection.add_notify_handler(
            lambda notify: self._arrived.append(self._signal(notify.channel, notify.payload))
        )

    def change(self, added: Iterable[Channel], removed: Iterable[Channel]) -> None:
        """Listen to channels, and no more to others."""
        for command, channels in (("listen", added), ("unlisten", removed)):
            for channel in channels:
                self._connection.execute(f'{command} "{self._names[channel]}"'.encode())
        self._arrived += [(channel, None, "") for channel in added]

    def read(self) -> Iterator[tuple[Channel, str | None, str]]:
        """Yield channel, key and payload of what has arrived; without a key when a channel is listened to."""
        self._connection.pgconn.consume_input()
        while notify := self._connection.pgconn.notifies():
            self._arrived.append(self._signal(notify.relname.decode(), notify.extra.decode()))
        arrived, self._arrived = self._arrived, []
        yield from arrived

    def check(self) -> None:
        """Have the server answer."""
        self._connection.execute(b"select")
