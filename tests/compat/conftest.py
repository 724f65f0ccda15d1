"""Programs that were written for other libraries, with real workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from onejob.celery.app_state import app_state_of
from tests.celery.harness import Cluster
from tests.services import RedisServer


@pytest.fixture(scope="module")
def new_program(broker: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Cluster]]:
    """Return a way to run the program, without a worker; it ends with the tests of the file."""
    built: list[Cluster] = []

    def build(kind: str = "redis", **settings: Any) -> Cluster:
        directory = tmp_path_factory.mktemp("program")
        built.append(Cluster(directory, broker, kind, settings, module="tests.compat.program"))
        return built[-1]

    yield build
    for cluster in built:
        cluster.close()


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Celery]:
    """Return an app with a ledger and without a worker, a Redis or a setting of the other library."""
    app = Celery("tests", broker="memory://", changes={"onejob_store": f"sqlite:///{tmp_path}/ledger.db"})
    yield app
    app_state_of(app).ledger.close()
    app.close()
