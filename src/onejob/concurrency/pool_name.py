"""Gives Celery's option `--pool` the name of the pool of coroutines: `celery -A shop worker -P onejob`."""

from __future__ import annotations

import sys
from typing import Any

NAME, POOL = "onejob", "onejob.celery.worker.coroutines.pool:TaskPool"


def register_pool() -> None:
    """Register the pool, if this process has the pools of Celery: an app that only submits has none.

    Repeating the call changes nothing.
    """
    pools: Any = sys.modules.get("celery.concurrency")
    command: Any = sys.modules.get("celery.bin.worker")
    if pools is not None:
        pools.ALIASES.setdefault(NAME, POOL)
    if pools is not None and command is not None:  # its options have got the names of the pools before
        command.WORKERS_POOL.choices = pools.get_available_pool_names()
