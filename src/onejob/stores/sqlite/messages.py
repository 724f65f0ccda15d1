"""The store as a broker: the messages that are no jobs, in queues that are rows."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from onejob.jobs.model import values_of
from onejob.jobs.records import Delivery
from onejob.stores.protocol import FORGOTTEN_AFTER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onejob.jobs.records import NewMessage
    from onejob.stores.sqlite.transaction import Transaction


class Messages:
    """The operations of `onejob.stores.protocol.MessageStore`."""

    def _statement(self) -> Transaction:
        raise NotImplementedError

    def _transaction(self) -> Transaction:
        raise NotImplementedError

    def put_messages(self, messages: Sequence[NewMessage], *, durable: bool = True, wake: bool = True) -> list[str]:  # noqa: ARG002 - the file is the signal
        rows = self._execute("put_messages", messages=json.dumps([values_of(message) for message in messages]))
        return sorted({row["queue"] for row in rows})

    def take_messages(self, queues: Sequence[str], *, limit: int, consumer: str, hold: float) -> list[Delivery]:
        values = {"queues": json.dumps(list(queues)), "limit": limit}
        if not self._execute("find_ready", **values | {"limit": 1}):  # without the lock of a writer
            return []
        with self._transaction() as tx:
            ids = json.dumps([row["id"] for row in tx.rows("find_ready", **values)])
            name = "take_messages" if hold else "receive_messages"
            rows = tx.rows(name, ids=ids, consumer=consumer, hold=hold)
        rows.sort(key=lambda row: (-row.pop("priority"), row["id"]))
        return [Delivery(**row | {"redelivered": bool(row["redelivered"])}) for row in rows]

    def delete_messages(self, ids: Sequence[int], *, consumer: str) -> None:
        self._execute("delete_messages", ids=json.dumps(list(ids)), consumer=consumer)

    def release_messages(self, ids: Sequence[int], *, consumer: str) -> None:
        self._execute("release_messages", ids=json.dumps(list(ids)), consumer=consumer)

    def renew_messages(self, ids: Sequence[int], queues: Sequence[str], *, consumer: str, hold: float) -> None:
        values = {"ids": json.dumps(list(ids)), "queues": json.dumps(list(queues)), "consumer": consumer, "hold": hold}
        with self._transaction() as tx:
            for name in ("renew_messages", "renew_queues", "release_abandoned", "delete_expired_messages"):
                tx.rows(name, **values)
            for row in tx.rows("expired_queues", forgotten_after=FORGOTTEN_AFTER):
                tx.rows("purge_queue", name=row["name"])
                if row["is_forgotten"]:
                    _delete_queue(tx, row["name"])

    def declare_queue(self, name: str, *, expires_after: float | None, message_ttl: float | None) -> None:
        with self._transaction() as tx:
            tx.rows("unbind_expired", name=name)
            tx.rows("declare_queue", name=name, expires_after=expires_after, message_ttl=message_ttl)

    def bind_queue(self, name: str, exchange: str, routing_key: str, pattern: str | None) -> None:
        self._execute("bind_queue", name=name, exchange=exchange, routing_key=routing_key, pattern=pattern)

    def unbind_queue(self, name: str, exchange: str, routing_key: str) -> None:
        self._execute("unbind_queue", name=name, exchange=exchange, routing_key=routing_key)

    def bindings(self, exchange: str | None = None) -> list[tuple[str, str, str]]:
        rows = self._execute("bindings", exchange=exchange)
        return [(row["exchange"], row["routing_key"], row["queue"]) for row in rows]

    def queue_size(self, name: str) -> int | None:
        rows = self._execute("queue_size", name=name)
        return rows[0]["size"] if rows else None

    def purge_queue(self, name: str) -> int:
        return len(self._execute("purge_queue", name=name))

    def delete_queue(self, name: str) -> None:
        with self._transaction() as tx:
            _delete_queue(tx, name)

    def _execute(self, statement: str, /, **values: Any) -> list[dict[str, Any]]:
        with self._statement() as tx:
            return tx.rows(statement, **values)


def _delete_queue(tx: Transaction, name: str) -> None:
    for statement in ("unbind_all", "purge_queue", "delete_queue"):
        tx.rows(statement, name=name)


def matches(pattern: str, text: str) -> bool:
    """Return whether a regular expression matches: SQLite's `regexp`."""
    return re.search(pattern, text) is not None
