"""What docs/backup.md says of a restored ledger, on SQLite."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from onejob.jobs.lifecycle import State, Transition
from tests.contract.support import LEASE, ManualClock, StoreAddress, change, claim, end, get, run, start, submit


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
