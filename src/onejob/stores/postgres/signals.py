"""The signals of a ledger in PostgreSQL: statements notify of them, and one connection per process listens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.stores.listener import ConnectedListener
from onejob.stores.signals import POLL, split_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import psycopg

    from onejob.stores.postgres.connection import Connections
    from onejob.stores.signals import Channel, Wake


class PostgresSignals(ConnectedListener):
    """The signals of one ledger. Behind a pooler in transaction mode, where nobody can listen, none arrive."""

    def __init__(self, connections: Connections, names: Mapping[Channel, str]) -> None:
        super().__init__()
        self._connections = connections
        self._names = names
        if connections.is_pooled:
            self.interval = POLL

    def subscribe(self, channel: Channel, key: str, wake: Wake) -> Callable[[], None]:
        """Have a function called with the payload of each signal: see `onejob.stores.signals`."""
        if self._connections.is_pooled:
            return lambda: None
        return super().subscribe(channel, key, wake)

    def _connect(self) -> PostgresFeed:
        return PostgresFeed(self._connections.open_listening(), self._names)


class PostgresFeed:
    """A connection that listens to channels, named `names`."""

    def __init__(self, connection: psycopg.Connection, names: Mapping[Channel, str]) -> None:
        self._connection = connection
        self._names = names
        self._channels = {name: channel for channel, name in names.items()}
        self._arrived: list[tuple[Channel, str | None, str]] = []
        connection.add_notify_handler(lambda notify: self._add(notify.channel, notify.payload))

    def fileno(self) -> int:
        """Return the socket."""
        return self._connection.fileno()

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
            self._add(notify.relname.decode(), notify.extra.decode())
        arrived, self._arrived = self._arrived, []
        yield from arrived

    def check(self) -> None:
        """Have the server answer."""
        self._connection.execute(b"select")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _add(self, name: str, message: str) -> None:
        self._arrived.append((self._channels[name], *split_message(message)))
