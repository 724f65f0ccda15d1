"""What these tests need of a store is on SQLite, and some of it on `every_store`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import address_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.contract.support import StoreAddress


@pytest.fixture(params=["sqlite"])
def fresh_address(request: pytest.FixtureRequest, tmp_path: Path) -> StoreAddress:
    """Return where a store can be that nobody has opened yet."""
    return address_of(request.param, request, tmp_path)
