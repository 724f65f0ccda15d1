"""The fixtures of these tests: the application of a user, isolated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onejob.testing import isolated
from tests.testing import payments, shop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onejob.testing import Jobs


@pytest.fixture
def celery_app() -> Any:
    """Return the application, of which nothing was called yet."""
    shop.calls.clear()
    return shop.app


@pytest.fixture
def till(tmp_path: Path) -> Iterator[Jobs]:
    """Return the jobs of the payments, whose gateway is empty."""
    payments.gateway.open(tmp_path / "gateway.db")
    with isolated(payments.app) as jobs:
        yield jobs
