"""A ledger file can be opened and created by many processes and threads at once."""

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
    """Opening a ledger file never fails because another thread is creating or closing it."""
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
    """An increment is one statement, so it never leaves the file locked between two Python calls."""
    store = SQLiteStore(tmp_path / "ledger.db")
    store.increment({"a": 1.0})
    connection = store._connection.connection
    assert connection is not None
    executed: list[str] = []
    connection.set_trace_callback(executed.append)
    store.increment({"a": 2.0})
    connection.set_trace_callback(None)
    assert len(executed) == 1, executed
    assert "insert into metrics" in executed[0]
    assert store.totals() == {"a": 3.0}
    store.close()
