"""The fixtures of the tests of webhooks: receivers, and settings that let them be reached."""

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
    """Return settings by which loopback can be reached."""
    return WebhookSettings.from_mapping(SETTINGS, namespace="tests")
