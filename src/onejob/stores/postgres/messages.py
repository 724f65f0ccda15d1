"""The store as a broker: the messages that are no jobs, in queues that are rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from onejob.jobs.model import values_of
from onejob.jobs.records import Delivery
from onejob.stores.protocol import FORGOTTEN_AFTER
from onejob.stores.signals import Channel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onejob.jobs.records import NewMessage
    from onejob.stores.postgres.statements import Statements


class Messages:
    """The operations of `onejob.stores.protocol.MessageStore`."""

    _sql: Statements

    def put_messages(self, messages: Sequence[NewMessage], *, durable: bool = True, wake: bool = True) -> list[str]:
        given = [{"position": position, **values_of(message)} for position, message in enumerate(messages)]
        values = {"messages": json.dumps(given), "durable": durable, "channel": self._channel if wake else None}
        return [row["queue"] for row in self._sql.run("put_messages", **values)]

    def take_messages(self, queues: Sequence[str], *, limit: int, consumer: str, hold: float) -> list[Delivery]:
        name = "take_messages" if hold else "receive_messages"
        rows = self._sql.run(name, queues=list(queues), limit=limit, consumer=consumer, hold=hold)
        return [Delivery(**row) for row in rows]

    def delete_messages(self, ids: Sequence[int], *, consumer: str) -> None:
        self._sql.run("delete_messages", ids=list(ids), consumer=consumer)

    def release_messages(self, ids: Sequence[int], *, consumer: str) -> None:
        self._sql.run("release_messages", ids=list(ids), consumer=consumer, channel=self._channel)

    def renew_messages(self, ids: Sequence[int], queues: Sequence[str], *, consumer: str, hold: float) -> None:
        values = {"ids": list(ids), "queues": list(queues), "consumer": consumer, "hold": hold}
        self._sql.run(*RENEWAL, **values, channel=self._channel, forgotten_after=FORGOTTEN_AFTER)

    def declare_queue(self, name: str, *, expires_after: float | None, message_ttl: float | None) -> None:
        self._sql.run("declare_queue", name=name, expires_after=expires_after, message_ttl=message_ttl)

    def bind_queue(self, name: str, exchange: str, routing_key: str, pattern: str | None) -> None:
        self._sql.run("bind_queue", name=name, exchange=exchange, routing_key=routing_key, pattern=pattern)

    def unbind_queue(self, name: str, exchange: str, routing_key: str) -> None:
        self._sql.run("unbind_queue", name=name, exchange=exchange, routing_key=routing_key)

    def bindings(self, exchange: str | None = None) -> list[tuple[str, str, str]]:
        rows = self._sql.run("bindings", exchange=exchange)
        return [(row["exchange"], row["routing_key"], row["queue"]) for row in rows]

    def queue_size(self, name: str) -> int | None:
        rows = self._sql.run("queue_size", name=name)
        return rows[0]["size"] if rows else None

    def purge_queue(self, name: str) -> int:
        return int(self._sql.run("purge_queue", name=name)[0]["size"])

    def delete_queue(self, name: str) -> None:
        self._sql.run("delete_queue", name=name)

    @property
    def _channel(self) -> str:
        return self._sql.channels[Channel.DUE]


RENEWAL = ("renew_messages", "renew_queues", "release_abandoned", "delete_expired_messages", "delete_expired_queues")
