"""What docs/operations/backup.md says of a restored ledger, on SQLite."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
from pathlib import Path

from onejob.jobs.lifecycle import State, Transition
from tests.services import client_program
from tests.stores.support import LEASE, ManualClock, StoreAddress, change, claim, end, get, run, start, submit
from website.navigation import DOCS


def copy(source: Path, target: Path) -> None:
    """Copy a SQLite file while it is open, as the command `.backup` does."""
    with sqlite3.connect(source) as old, sqlite3.connect(target) as new:
        old.backup(new)
    old.close()
    new.close()


def test_a_restored_ledger_repeats_what_had_not_ended(tmp_path: Path) -> None:
    """After a restore, later jobs are unknown, ended ones wait or run again with a larger token, earlier ends stay."""
    clock = ManualClock()
    backup = tmp_path / "backup.db"
    with StoreAddress(f"sqlite:///{tmp_path / 'ledger.db'}", "unused").opened(clock) as store:
        end(store, run(store, "ended-before", identity="a"))
        submit(store, "waiting", identity="b")
        running = run(store, "running", identity="c")
        copy(tmp_path / "ledger.db", backup)
        later = start(store, "waiting")
        end(store, later)
        end(store, running)
        submit(store, "later", identity="d")
    clock.advance(LEASE * 2)
    with StoreAddress(f"sqlite:///{backup}", "unused").opened(clock) as restored:
        assert get(restored, "later") is None
        kept = {name: get(restored, name) for name in ("ended-before", "waiting", "running")}
        states = {name: job.state for name, job in kept.items() if job is not None}
        assert states == {"ended-before": State.COMPLETED, "waiting": State.QUEUED, "running": State.RUNNING}
        again = claim(restored, "waiting").job
        assert again is not None
        assert again.token > later.token
        assert not restored.apply(change(later, Transition.COMPLETE)).applied


def test_a_backup_replaces_what_a_killed_worker_left(tmp_path: Path) -> None:
    """The commands of the page back up a ledger in use, and restore it where a killed worker left newer commits."""
    program = client_program("sqlite3")
    page = (DOCS / "operations" / "backup.md").read_text(encoding="utf-8")
    backup, restore = (
        line.removeprefix("sqlite3") for line in re.findall(r"^sqlite3 ledger\.db .*", page, re.MULTILINE)
    )
    (left := tmp_path / "left").mkdir()
    with StoreAddress(f"sqlite:///{tmp_path / 'ledger.db'}", "unused").opened() as store:
        submit(store, "kept", identity="a")
        subprocess.run(f"{program} {backup}", shell=True, cwd=tmp_path, check=True)  # noqa: S602 - of the page
        for number in range(50):
            submit(store, f"later-{number}", identity=str(number))
        for name in ("ledger.db", "ledger.db-wal", "ledger-backup.db"):
            shutil.copy(tmp_path / name, left)
    subprocess.run(f"{program} {restore}", shell=True, cwd=left, check=True)  # noqa: S602 - of the page
    with StoreAddress(f"sqlite:///{left / 'ledger.db'}", "unused").opened() as restored:
        assert get(restored, "kept") is not None
        assert get(restored, "later-0") is None
        submit(restored, "next", identity="b")
    with sqlite3.connect(left / "ledger.db") as connection:
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    connection.close()
