"""Fixtures for webhooks: a receiver on loopback, settings that allow loopback, and a ledger on SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.webhooks.settings import WebhookSettings
from tests.conftest import address_of
from tests.webhooks.receiver import SETTINGS, Receiver, receiving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.contract.support import StoreAddress


@pytest.fixture(params=["sqlite"])
def fresh_address(request: pytest.FixtureRequest, tmp_path: Path) -> StoreAddress:
    """Return where a store can be that nobody has opened yet."""
    return address_of(request.param, request, tmp_path)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Return a receiver on loopback."""
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def settings() -> WebhookSettings:
    """Return settings that allow loopback."""
    return WebhookSettings.from_mapping(SETTINGS, namespace="tests")
