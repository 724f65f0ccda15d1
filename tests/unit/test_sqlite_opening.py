"""A ledger file can be opened and created by many processes and threads at once."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from onejob.jobs.records import Period, Query
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
    """An increment is one statement, and so is each deletion, so the file is never locked between two Python calls."""
    store = SQLiteStore(tmp_path / "ledger.db")
    store.increment({"a": 1.0})
    connection = store._connection.connection
    assert connection is not None
    executed: list[str] = []
    connection.set_trace_callback(executed.append)
    store.increment({"a": 2.0}, recent={"a": 2.0})
    connection.set_trace_callback(None)
    assert [text.split(" (")[0] for text in executed] == [
        "insert into metric_buckets", *["delete from metric_buckets where"] * len(Period),
    ]  # fmt: skip
    assert store.totals() == {"a": 3.0}
    store.close()


def test_a_new_file_is_private(tmp_path: Path) -> None:
    """Only its owner can read a ledger file that onejob creates, its write-ahead log and its shared memory."""
    before = os.umask(0)
    try:
        store = SQLiteStore(tmp_path / "ledger.db")
        store.increment({"a": 1.0})
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
        store.close()
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("ledger.db", "ledger.db-wal", "ledger.db-shm"), 0o600)


def test_the_mode_of_an_existing_file_stays(tmp_path: Path) -> None:
    """An existing ledger file keeps its mode, and its write-ahead log gets the same one."""
    path = tmp_path / "ledger.db"
    path.touch()
    path.chmod(0o660)
    store = SQLiteStore(path)
    store.increment({"a": 1.0})
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o660}
    store.close()
