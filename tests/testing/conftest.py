"""The fixtures of these tests: the application of a user, isolated."""

from __future__ import annotations

from typing import Any

import pytest

from tests.testing import shop


@pytest.fixture
def celery_app() -> Any:
    """Return the application, of which nothing was called yet."""
    shop.calls.clear()
    return shop.app
