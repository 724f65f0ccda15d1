"""Fixtures for webhooks: settings that allow loopback, and a ledger on SQLite."""

import pytest

from onejob.webhooks.settings import WebhookSettings
from tests.conftest import on_stores
from tests.webhooks.receiver import SETTINGS

fresh_address = on_stores("sqlite")


@pytest.fixture
def settings() -> WebhookSettings:
    return WebhookSettings.from_mapping(SETTINGS)
