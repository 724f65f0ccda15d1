"""Gives Celery's option `--pool` the name of the pool of coroutines: `celery -A shop worker -P onejob`."""

from __future__ import annotations

import sys
from typing import Any

from celery import concurrency

NAME = "onejob"


def register_pool() -> None:
    """Register the pool with Celery. Repeating the call changes nothing."""
    aliases: Any = concurrency.ALIASES
    aliases.setdefault(NAME, "onejob.celery.coroutines.pool:TaskPool")
    command: Any = sys.modules.get("celery.bin.worker")
    if command is not None:  # its options have got the names of the pools before the app was imported
        command.WORKERS_POOL.choices = concurrency.get_available_pool_names()
