"""The Celery app of the storm: one task whose only effect is a row of its own, written as its last act."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from celery import Celery

import onejob

FOLDER = Path(os.environ.get("STORM_FOLDER", "."))

app = Celery("storm", broker=os.environ.get("STORM_BROKER", "memory://"))
app.conf.update(
    onejob_store=os.environ.get("STORM_STORE", ""),
    onejob_key_prefix="storm",
    onejob_lease=float(os.environ.get("STORM_LEASE", "6")),
    onejob_heartbeat=float(os.environ.get("STORM_LEASE", "6")) / 3,
    # The storm kills whole workers at random: no job is to blame, so none may be buried for it.
    onejob_crash_limit=1000,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)


def record(table: str, number: int) -> None:
    """Add a row to a table of effects, durably."""
    with sqlite3.connect(FOLDER / "effects.db", timeout=30) as effects:
        effects.execute(f"insert into {table} values (?, ?)", (number, onejob.current_job().attempt))  # noqa: S608


@app.task(base=onejob.Task)
def apply_once(number: int) -> int:
    """Start, take a moment, apply."""
    record("started", number)
    time.sleep(0.15)
    record("applied", number)
    return number
