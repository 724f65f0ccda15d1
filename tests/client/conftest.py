"""The fixtures of the tests of the client: an app with its ledger, on SQLite and some of it on `every_store`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery

import onejob
from onejob.celery.app_state import app_state_of
from onejob.ledger.ledger import Ledger
from tests.api.shop import build
from tests.conftest import on_stores
from tests.stores.support import StoreAddress

fresh_address = on_stores("sqlite")
SCHEDULE = {"hourly": {"task": "shop.invoice", "schedule": 3600.0, "args": [7]}}


@pytest.fixture
def app(store_address: StoreAddress) -> Iterator[Celery]:
    app = build(store_address.url, onejob_namespace=store_address.namespace, beat_schedule=SCHEDULE)
    yield app
    app_state_of(app).close()


@pytest.fixture
def ledger(app: Celery) -> Ledger:
    return app_state_of(app).ledger


@pytest.fixture
def client(store_address: StoreAddress) -> Iterator[onejob.Client]:
    """Return a client of the ledger's URL alone."""
    with onejob.Client(store_address.url, namespace=store_address.namespace, actor="ann") as client:
        yield client
