"""`workers` and `metrics`: the workers of a ledger, and its counters."""

from __future__ import annotations

import click

from onejob.cli.access import Access, access
from onejob.cli.printing import echo, fields_of, json_option, print_json, print_table
from onejob.cli.serve import server_installed


@click.command()
@json_option
@access
def workers(access: Access, *, as_json: bool) -> None:
    """List the workers whose latest heartbeat is still valid."""
    nodes = [fields_of(node) for node in access.ledger().store.workers()]
    if as_json:
        print_json(nodes)
    else:
        print_table(("node", "latest heartbeat"), (list(node.values()) for node in nodes))


@click.command()
@access
def metrics(access: Access) -> None:
    """Print the metrics as `GET /metrics` does, in the text format of Prometheus."""
    with server_installed():
        from onejob.api.prometheus import render_metrics
    echo(render_metrics(access.ledger()).decode(), end="")
