"""The environment of a script: private servers, an empty ledger, and a database for the effects."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chaos import effects
from onejob.jobs.ledger_settings import LedgerSettings
from onejob.ledger.ledger import Ledger
from onejob.stores import migrate as migrations
from onejob.stores import open_store
from tests.services import start_postgres, start_redis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services import PostgresServer, RedisServer

ROOT = Path(__file__).parent.parent
NAMESPACE = "chaos"
PATIENT = LedgerSettings(crash_limit=100_000)
"""Kills and freezes are random, so that a job must not become a dead letter because of them."""


@dataclass(frozen=True, slots=True)
class Testbed:
    """The servers and URLs of a script."""

    folder: Path
    broker: RedisServer
    server: PostgresServer | None
    """The PostgreSQL that has both ledger and effects, or None."""
    store: str
    """The URL of the ledger."""
    effects: str
    """The URL of the effects, as SQLAlchemy writes it."""

    @property
    def postgres(self) -> PostgresServer:
        """The PostgreSQL server, of a script that always has one."""
        if self.server is None:
            raise LookupError("the ledger is not in PostgreSQL")
        return self.server

    def broker_url(self, name: str) -> str:
        """Return the URL of what delivers the jobs: `ledger`, or the `redis` of this testbed."""
        return "onejob://" if name == "ledger" else self.broker.url

    def ledger(self) -> Ledger:
        """Return the ledger."""
        return Ledger(open_store(self.store, namespace=NAMESPACE), PATIENT)

    def environment(self, **more: object) -> dict[str, str]:
        """Return the environment of the processes; `more` become `CHAOS_<NAME>`."""
        own = {"folder": self.folder, "broker": self.broker.url, "store": self.store, "effects": self.effects, **more}
        path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
        return os.environ | path | {f"CHAOS_{name.upper()}": str(value) for name, value in own.items()}


@contextmanager
def start_testbed(kind: str, *settings: str) -> Iterator[Testbed]:
    """Start the servers for a ledger in `sqlite`, `postgresql` (with these settings) or `redis`, and end them."""
    with tempfile.TemporaryDirectory(prefix="onejob-chaos-") as name, ExitStack() as stack:
        folder = Path(name)
        broker = start_redis(folder)
        stack.callback(broker.stop)
        started = (
            _postgres(folder, broker, settings, stack) if kind == "postgresql" else _separate(folder, broker, kind)
        )
        effects.create(started.effects)
        yield started


def _postgres(folder: Path, broker: RedisServer, settings: tuple[str, ...], stack: ExitStack) -> Testbed:
    server = start_postgres(*settings)
    stack.callback(server.remove)
    migrations.upgrade(server.url, NAMESPACE)
    return Testbed(folder, broker, server, server.url, server.url.replace("://", "+psycopg://"))


def _separate(folder: Path, broker: RedisServer, kind: str) -> Testbed:
    """Return a testbed with the effects in another database than the ledger."""
    store = f"sqlite:///{folder}/ledger.db" if kind == "sqlite" else broker.url.removesuffix("0") + "1"
    return Testbed(folder, broker, None, store, f"sqlite:///{folder}/effects.db")
