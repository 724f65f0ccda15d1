"""The fixtures of the tests of the command line: a ledger in a file, and the command for it, or for an app on it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from onejob.ledger.ledger import Ledger
from onejob.stores import open_store
from tests.cli.command import APP, Shell


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def ledger(url: str, tmp_path: Path, blank_ledger: Path) -> Iterator[Ledger]:
    shutil.copy(blank_ledger, tmp_path / "ledger.db")
    ledger = Ledger(open_store(url))
    yield ledger
    ledger.close()


@pytest.fixture
def shell(url: str) -> Shell:
    return Shell(("--store", url))


@pytest.fixture
def app_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Return the command for an app on this ledger, whose module has a name of its own and a task `invoice`."""
    name = f"shop_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(APP.format(path=tmp_path / "ledger.db"))
    monkeypatch.syspath_prepend(str(tmp_path))
    return Shell(("-A", name))
