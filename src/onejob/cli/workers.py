"""`workers` and `metrics`: which workers keep house for a ledger, and what has been counted in it."""

from __future__ import annotations

from dataclasses import asdict

import click

from onejob.cli.access import Access, access
from onejob.cli.printing import json_option, moment, print_json, print_table
from onejob.cli.serve import server_installed


@click.command()
@json_option
@access
def workers(access: Access, *, as_json: bool) -> None:
    """List the worker nodes that have given a sign of life lately."""
    nodes = access.ledger().store.workers()
    if as_json:
        print_json([asdict(node) for node in nodes])
    else:
        print_table(("node", "seen at (UTC)"), ((node.name, moment(node.seen_at)) for node in nodes))


@click.command()
@access
def metrics(access: Access) -> None:
    """Print the metrics as `GET /metrics` does, in the text format of Prometheus."""
    with server_installed():
        from onejob.api.prometheus import render_metrics
    click.echo(render_metrics(access.ledger()).decode(), nl=False)
