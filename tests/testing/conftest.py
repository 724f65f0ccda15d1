"""The fixtures of these tests: the application of a user, isolated."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onejob.testing import Jobs, isolated
from tests.testing import payments, shop


@pytest.fixture
def celery_app() -> Any:
    shop.calls.clear()
    return shop.app


@pytest.fixture
def till(tmp_path: Path) -> Iterator[Jobs]:
    payments.gateway.open(tmp_path / "gateway.db")
    with isolated(payments.app) as jobs:
        yield jobs
