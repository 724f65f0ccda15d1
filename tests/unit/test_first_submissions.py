"""A task is bound lazily, at its first use: many threads may use it first."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import celery

import onejob

if TYPE_CHECKING:
    from pathlib import Path

THREADS = 32


def test_first_submissions_from_many_threads_are_one_job(tmp_path: Path) -> None:
    """The concurrent first submissions of a process are one job, also while its task is being bound."""
    for attempt in range(10):
        app = celery.Celery(f"shop{attempt}", broker="memory://", set_as_current=False)
        app.conf.onejob_store = f"sqlite:///{tmp_path / f'ledger{attempt}.db'}"

        @app.task(base=onejob.Task, name="shop.invoice", shared=False)
        def invoice(order_id: int) -> None:
            """Do nothing."""

        gate = threading.Barrier(THREADS)

        def click(_: int, gate: threading.Barrier = gate, task: onejob.Task = invoice) -> str:
            gate.wait()
            return str(task.delay(42).outcome)

        with ThreadPoolExecutor(THREADS) as crowd:
            assert Counter(crowd.map(click, range(THREADS))) == {"admitted": 1, "attached": THREADS - 1}
