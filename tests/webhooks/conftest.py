"""Fixtures for webhooks: a receiver on loopback, settings that allow loopback, and a ledger on SQLite."""

from collections.abc import Iterator

import pytest

from onejob.webhooks.settings import WebhookSettings
from tests.conftest import on_stores
from tests.webhooks.receiver import SETTINGS, Receiver, receiving

fresh_address = on_stores("sqlite")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def settings() -> WebhookSettings:
    return WebhookSettings.from_mapping(SETTINGS, namespace="tests")
