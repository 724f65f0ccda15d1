"""A ledger file is opened, and made, by many at once: every process of an application starts with it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from onejob.jobs.records import Query
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


def test_counting_is_one_statement(tmp_path: Path) -> None:
    """What is counted beside a task's body never leaves the file locked between two steps of Python."""
    store = SQLiteStore(tmp_path / "ledger.db")
    store.increment({"a": 1.0})
    connection = store._connection.connection
    assert connection is not None
    said: list[str] = []
    connection.set_trace_callback(said.append)
    store.increment({"a": 2.0})
    connection.set_trace_callback(None)
    assert len(said) == 1, said
    assert "insert into metrics" in said[0]
    assert store.totals() == {"a": 3.0}
    store.close()
