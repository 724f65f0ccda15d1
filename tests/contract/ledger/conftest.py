"""The ledger's laws stand above the stores: they run on SQLite, and some on `every_store`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import address_of
from tests.contract.ledger.world import World

if TYPE_CHECKING:
    from pathlib import Path

    from onejob.stores.protocol import Store
    from tests.contract.support import ManualClock, StoreAddress


@pytest.fixture(params=["sqlite"])
def fresh_address(request: pytest.FixtureRequest, tmp_path: Path) -> StoreAddress:
    """Return where a store can be that nobody has opened yet."""
    return address_of(request.param, request, tmp_path)


@pytest.fixture
def world(store: Store, clock: ManualClock) -> World:
    """Return a ledger on a fresh store whose clock the test moves."""
    return World(store, clock)
