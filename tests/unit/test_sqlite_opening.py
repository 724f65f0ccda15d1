"""A ledger file is opened, and made, by many at once: every process of an application starts with it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from onejob.job import Query
from onejob.stores.sqlite import SQLiteStore

if TYPE_CHECKING:
    from pathlib import Path

OPENERS = 8


def test_many_open_a_new_file_at_once(tmp_path: Path) -> None:
    """Nobody who opens a ledger file is refused because somebody else is just making or leaving it."""
    for number in range(30):
        path, gate = tmp_path / f"ledger{number}.db", threading.Barrier(OPENERS)

        def use(_: int, path: Path = path, gate: threading.Barrier = gate) -> list[object]:
            gate.wait()
            store = SQLiteStore(path)
            found: list[object] = []
            for _round in range(5):
                found += store.find(Query())
                store.close()
            return found

        with ThreadPoolExecutor(OPENERS) as crowd:
            assert list(crowd.map(use, range(OPENERS))) == [[]] * OPENERS
