"""The fixtures of these tests: a project on each kind of database, migrated."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests import quiet
from tests.django.project import Project, sqlite
from tests.services import PostgresServer, RedisServer, eventually
from tests.tiers import deep


@pytest.fixture
def broker_url(broker: RedisServer) -> str:
    return broker.database()


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=deep)])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return Django's settings of an empty database of each kind."""
    if request.param == "sqlite":
        return sqlite(tmp_path_factory.mktemp("database") / "shop.db")
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return postgres_database(server)


def postgres_database(server: PostgresServer) -> dict[str, Any]:
    name = f"shop_{secrets.token_hex(4)}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
    place = {"HOST": "127.0.0.1", "PORT": str(server.port), "USER": "postgres", "NAME": name}
    return {"ENGINE": "django.db.backends.postgresql", **place}


@pytest.fixture(scope="module")
def project(database: dict[str, Any], broker: RedisServer) -> Project:
    project = Project({"DATABASES": {"default": database}, "CELERY_BROKER_URL": broker.database()})
    project.manage("migrate", "-v", "0")
    return project


@pytest.fixture(scope="module")
def worker(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start a worker of the project; return its log."""
    log = tmp_path_factory.mktemp("worker") / "worker.log"
    log.touch()
    options = "worker --pool=threads -c 2 -l INFO -Q celery,slow --without-gossip --without-mingle -n w@test".split()
    with project.start("-m", "celery", "-A", "shop", *options, log=log) as daemon:
        eventually(lambda: "w@test ready." in log.read_text(errors="replace") or not daemon.alive, 40)
        assert daemon.alive, log.read_text(errors="replace")
        errors = quiet.LogReader(log)
        quiet.watch(errors)
        yield log
        quiet.unwatch(errors)
    print(log.read_text(errors="replace")[-6000:])  # noqa: T201 - pytest shows it when a test fails


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    return {"default": sqlite(tmp_path / "shop.db"), "jobs": sqlite(tmp_path / "jobs.db")}
