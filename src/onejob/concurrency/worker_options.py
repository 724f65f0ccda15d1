"""Gives `celery worker` the options of onejob: `celery -A shop worker -P onejob --processes 4`."""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

NAME, POOL = "onejob", "onejob.celery.worker.coroutines.pool:TaskPool"
PROCESSES = "processes"
ABOUT_PROCESSES = "Run this worker in so many processes, each with its own pool and node name: one for each core."


def register_pool() -> None:
    """Register the pool of coroutines, if this process has the pools of Celery: an app that only submits has none.

    Repeating the call changes nothing.
    """
    pools: Any = sys.modules.get("celery.concurrency")
    command: Any = sys.modules.get("celery.bin.worker")
    if pools is not None:
        pools.ALIASES.setdefault(NAME, POOL)
    if pools is not None and command is not None:  # its options have got the names of the pools before
        command.WORKERS_POOL.choices = pools.get_available_pool_names()


def register_processes() -> None:
    """Add the option `--processes`, if this process is a `celery` command. Repeating the call changes nothing."""
    module: Any = sys.modules.get("celery.bin.worker")
    if module is None or any(param.name == PROCESSES for param in module.worker.params):
        return
    import click

    number = click.IntRange(min=1)
    module.worker.params.append(click.Option([f"--{PROCESSES}"], type=number, default=1, help=ABOUT_PROCESSES))
    start = module.worker.callback

    @wraps(start)
    def start_processes(*args: Any, processes: int = 1, **options: Any) -> Any:
        if processes == 1:
            return start(*args, **options)
        from onejob.concurrency.worker_processes import run

        return run(processes, options, sys.argv[1:])

    module.worker.callback = start_processes
