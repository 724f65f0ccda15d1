"""The tutorial's ledger is on SQLite; `tests/contract` has the laws of the stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import address_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.contract.support import StoreAddress


@pytest.fixture
def fresh_address(request: pytest.FixtureRequest, tmp_path: Path) -> StoreAddress:
    """Return where a store can be that nobody has opened yet."""
    return address_of("sqlite", request, tmp_path)
