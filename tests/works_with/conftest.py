"""The fixtures of the tests beside other packages."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from kombu import Connection

from tests.release.environments import later_python, overlay_with
from tests.services import PostgresServer, RedisServer, rabbitmq_url
from tests.works_with.program import MakeProgram, Program
from tests.works_with.rows import Row


@pytest.fixture
def program(
    request: pytest.FixtureRequest, pytestconfig: pytest.Config, tmp_path: Path, broker: RedisServer
) -> MakeProgram:
    """Return a way to make a program in the environment of the module's `ROW`, with a broker and a ledger of its own.

    `direct`: the ledger, a file of SQLite or a PostgreSQL, is the broker, too.
    """
    row: Row = request.module.ROW
    name = request.module.__name__.rpartition(".")[2].removeprefix("test_")
    base = later_python(pytestconfig.cache.mkdir("versions"), *row.pythons)
    python = overlay_with(pytestconfig.cache.mkdir("works-with") / name, row.pins, base)

    def make(text: str, *, direct: bool = False, postgres: bool = False, **variables: str) -> Program:
        ledger, namespace = f"sqlite:///{tmp_path / 'ledger.db'}", "onejob"
        if postgres:
            ledger, namespace = (
                request.getfixturevalue("postgres_server").url,
                request.getfixturevalue("postgres_schema"),
            )
        shop = {"SHOP_LEDGER": ledger, "SHOP_NAMESPACE": namespace, "SHOP_REDIS": broker.database()}
        shop["SHOP_BROKER"] = "onejob://" if direct else broker.database()
        made = Program(tmp_path, python, shop | variables)
        made.write(text)
        return made

    return make


@pytest.fixture
def database_port(postgres_server: PostgresServer) -> Iterator[str]:
    """Return the port of a PostgreSQL on this machine that has an empty database `shop`, for what is no ledger."""
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute("create database shop")
        yield str(postgres_server.port)
        connection.execute("drop database shop with (force)")


@pytest.fixture
def queue() -> Iterator[str]:
    """Return the name of a queue of RabbitMQ; it and its exchange are deleted at the end."""
    name = f"works-with-{secrets.token_hex(8)}"
    with Connection(rabbitmq_url()) as connection:
        channel: Any = connection.default_channel
        yield name
        channel.queue_delete(name)
        channel.exchange_delete(name)
