"""The ledger's laws stand above the stores: they run on SQLite, and some on `every_store`."""

import pytest

from onejob.stores.protocol import Store
from tests.conftest import on_stores
from tests.ledger.harness import LedgerHarness
from tests.stores.support import ManualClock

fresh_address = on_stores("sqlite")


@pytest.fixture
def harness(store: Store, clock: ManualClock) -> LedgerHarness:
    """Return a ledger on a fresh store whose clock the test moves."""
    return LedgerHarness(store, clock)
