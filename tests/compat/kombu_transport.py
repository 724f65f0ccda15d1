"""Kombu's own tests of transports, for `onejob://`: what its suite has for every transport, but for a failover."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import celery
import pytest

import onejob.celery.transport.connection  # noqa: F401 - kombu knows the URL
from onejob.celery.app_state import app_state_of
from onejob.stores import migrate
from tests.compat.kombu_suite import POSTGRES

common: Any = import_module("t.integration.common")
"""In the source of kombu."""


def app_of(store: str) -> celery.Celery:
    app = celery.Celery(f"kombu-{secrets.token_hex(4)}", broker="onejob://", set_as_current=False)
    app.conf.update(onejob_store=store, accept_content=["json", "pickle"])
    return app


@pytest.fixture
def app(tmp_path: Path) -> Iterator[celery.Celery]:
    """Return an app whose ledger is new and delivers."""
    url = os.environ.get(POSTGRES)
    found = app_of(url or f"sqlite:///{tmp_path / 'ledger.db'}")
    if url:
        found.conf.onejob_namespace = f"kombu_{secrets.token_hex(4)}"
        migrate.upgrade(url, found.conf.onejob_namespace)
    yield found
    app_state_of(found).close()


@pytest.fixture
def connection(app: celery.Celery) -> Any:
    """Return a connection as the suite wants it."""
    return app.connection_for_write()


@pytest.fixture
def invalid_connection(tmp_path: Path) -> Any:
    """Return a connection to a ledger that is not there."""
    (tmp_path / "file").touch()
    url = "postgresql://127.0.0.1:1/none" if POSTGRES in os.environ else f"sqlite:///{tmp_path / 'file' / 'none.db'}"
    return app_of(url).connection_for_write()


class TestBasicFunctionality(common.BasicFunctionality): ...  # type: ignore[misc] # a class that is found at run time


class TestExchangeTypes(common.BaseExchangeTypes): ...  # type: ignore[misc] # a class that is found at run time


class TestTimeToLive(common.BaseTimeToLive): ...  # type: ignore[misc] # a class that is found at run time


class TestPriority(common.BasePriority):  # type: ignore[misc] # a class that is found at run time
    @pytest.fixture
    def connection(self, app: celery.Celery) -> Any:
        """Return a connection that drains all messages: those of virtual transports drain one in a call."""
        connection: Any = app.connection_for_write()
        drain = connection.drain_events

        def drain_all(timeout: float) -> None:
            with suppress(socket.timeout):
                while True:
                    drain(timeout=timeout)

        connection.drain_events = drain_all
        return connection


class TestMessage(common.BaseMessage): ...  # type: ignore[misc] # a class that is found at run time


class TestEventLoop(common.BaseEventLoop): ...  # type: ignore[misc] # a class that is found at run time
