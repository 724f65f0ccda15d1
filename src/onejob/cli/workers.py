"""`workers` and `metrics`: the workers of a ledger, and its counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from onejob.cli.access import Access, access, needs_extra
from onejob.cli.printing import echo, fields_of, json_option, print_json, print_table

if TYPE_CHECKING:
    from onejob.jobs.records import WorkerInfo


@click.command()
@json_option
@access
def workers(access: Access, *, as_json: bool) -> None:
    """List the workers whose latest heartbeat is still valid."""
    found = access.ledger().store.workers()
    if as_json:
        print_json([fields_of(worker) for worker in found])
    else:
        headings = ("node", "latest heartbeat", "pool", "concurrency", "queues", "tasks")
        print_table(headings, map(_row, found))


def _row(worker: WorkerInfo) -> list[object]:
    seen_at = fields_of(worker)["seen_at"]
    return [worker.name, seen_at, worker.pool, worker.concurrency, " ".join(worker.queues), len(worker.tasks)]


@click.command()
@access
def metrics(access: Access) -> None:
    """Print the metrics as `GET /metrics` does, in the text format of Prometheus."""
    with needs_extra("metrics", "`onejob metrics`"):
        from onejob.celery.prometheus import render_metrics
    echo(render_metrics(access.ledger()).decode(), end="")
