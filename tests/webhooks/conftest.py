"""Fixtures for webhooks: a receiver on loopback, and settings that allow loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.webhooks.settings import WebhookSettings
from tests.webhooks.receiver import SETTINGS, Receiver, receiving

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Return a receiver on loopback."""
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def settings() -> WebhookSettings:
    """Return settings that allow loopback."""
    return WebhookSettings.from_mapping(SETTINGS, namespace="tests")
