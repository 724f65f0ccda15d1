"""`probe`: whether the worker of this machine, or of this container, is alive."""

from __future__ import annotations

import time
from pathlib import Path

import click

from onejob.celery.worker.probe_file import MAX_AGE, find_fault
from onejob.cli.printing import echo


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--ready", is_flag=True, help="Also require that it has reached the store.")
@click.option(
    "--max-age", default=MAX_AGE, show_default=True, type=click.FloatRange(min=0, min_open=True), metavar="SECONDS"
)
def probe(file: Path, max_age: float, *, ready: bool) -> None:
    """Tell whether the worker that writes FILE (its onejob_probe_file) is alive. Exit code 1: it is not.

    It reads the file, and needs neither the app nor the store. With --ready the worker must also have sent a heartbeat
    to the store within --max-age, which has to be longer than a third of onejob_lease.
    """
    fault = find_fault(file, time.time(), max_age=max_age, ready=ready)
    if fault is not None:
        raise click.ClickException(fault)
    echo("ok")
