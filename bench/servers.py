"""The servers of a run of the bench: Redis and PostgreSQL of our own, and a RabbitMQ; a part of each per contender."""

from __future__ import annotations

import os
import tempfile
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from kombu import Connection

from bench.contenders import Places
from onejob.stores.migrate import upgrade
from tests.services import rabbitmq_url, start_postgres, start_redis

if TYPE_CHECKING:
    from contextlib import ExitStack

    from bench.contenders import Contender
    from tests.services import PostgresServer, RedisServer


class Servers:
    """Started when they are needed, stopped with the stack."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._numbers = count()
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onejob-bench-")))

    @cached_property
    def redis(self) -> RedisServer:
        """A Redis without persistence."""
        server = start_redis(self.folder, "--databases", "1000", "--maxclients", "20000")
        self._stack.callback(server.stop)
        return server

    @cached_property
    def postgres(self) -> PostgresServer:
        """A PostgreSQL whose commits wait for the disk."""
        settings = ("fsync=on", "shared_buffers=512MB", "max_wal_size=4GB", "max_connections=300")
        server = start_postgres(*settings)
        self._stack.callback(server.remove)
        return server

    def new_ledger(self, store: str, broker: str) -> str:
        """Return the URL of a new ledger; in the database of the broker, if it is in Redis."""
        if store == "redis":
            return broker
        url = self.new_database(store)
        if store == "postgresql":
            upgrade(url)
        return url

    def places_of(self, contender: Contender) -> Places:
        """Return new places for a contender."""
        redis = self.new_database("redis")
        store = redis if contender.store in {"redis", ""} else self.new_database(contender.store)
        if contender.broker != "rabbitmq":
            return Places("onejob://" if contender.broker == "ledger" else redis, store, redis)
        return Places(self.rabbitmq, store, redis, self._new_queue())

    @cached_property
    def rabbitmq(self) -> str:
        """The URL of a RabbitMQ that runs already. Raises `MissingServiceError`."""
        return rabbitmq_url()

    def _new_queue(self) -> str:
        """Return the name of a new queue, which is deleted at the end."""
        name = f"onejob-bench-{os.getpid()}-{next(self._numbers)}"
        self._stack.callback(_delete_queue, self.rabbitmq, name)
        return name

    def log(self, contender: Contender) -> Path:
        """Return where the processes of a contender write."""
        return self.folder / f"{contender.module}.log"

    def new_database(self, store: str) -> str:
        """Return the URL of a new and empty database of one kind."""
        number = next(self._numbers)
        if store == "redis":
            return f"redis://127.0.0.1:{self.redis.port}/{number}"
        if store == "sqlite":
            return f"sqlite:///{self.folder / f'ledger-{number}.db'}"
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            connection.execute(f"create database bench_{number}".encode())
        return f"{self.postgres.url.rpartition('/')[0]}/bench_{number}"


def _delete_queue(url: str, name: str) -> None:
    with Connection(url) as connection:
        channel: Any = connection.default_channel
        channel.queue_delete(name)
        channel.exchange_delete(name)
