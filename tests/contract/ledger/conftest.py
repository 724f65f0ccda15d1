"""The ledger's laws stand above the stores: they run on SQLite, and some on `every_store`."""

import pytest

from onejob.stores.protocol import Store
from tests.conftest import on_stores
from tests.contract.ledger.world import World
from tests.contract.support import ManualClock

fresh_address = on_stores("sqlite")


@pytest.fixture
def world(store: Store, clock: ManualClock) -> World:
    """Return a ledger on a fresh store whose clock the test moves."""
    return World(store, clock)
