"""Gives Celery's option `--pool` the name of the pool of coroutines: `celery -A shop worker -P onejob`."""

from __future__ import annotations

import sys
from typing import Any

from celery import concurrency

NAME = "onejob"
_celery: Any = concurrency  # whose published types lack the names of pools


def register_pool() -> None:
    """Register the pool with Celery. Repeating the call changes nothing."""
    _celery.ALIASES.setdefault(NAME, "onejob.celery.coroutines.pool:TaskPool")
    command: Any = sys.modules.get("celery.bin.worker")
    if command is not None:  # its options have got the names of the pools before the app was imported
        command.WORKERS_POOL.choices = _celery.get_available_pool_names()
