"""The fixtures of the tests of the command line: a ledger in a file, and its URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.jobs.records import Query
from onejob.ledger.ledger import Ledger
from onejob.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a ledger in a file."""
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    """Return that ledger."""
    ledger = Ledger(open_store(url))
    ledger.find(Query())  # which creates the file
    yield ledger
    ledger.close()
