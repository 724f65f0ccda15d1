"""`migrate`: the schema of the ledger's tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from onejob.cli.access import Access, access
from onejob.cli.printing import echo, json_option, print_json
from onejob.stores import display_url, kind_of

if TYPE_CHECKING:
    from onejob.stores.migrate import Status


@click.group()
def migrate() -> None:
    """Create or upgrade the ledger's tables in PostgreSQL or SQLite."""


@migrate.command()
@access
def up(access: Access) -> None:
    """Upgrade the ledger to the newest schema; create it where there is none."""
    from onejob.stores import migrate as migrations

    url, namespace = access.place()
    before, after = migrations.status(url, namespace), migrations.upgrade(url, namespace)
    if not before.pending:
        _print_status(after, as_json=False)
        return
    what = f"upgraded from {before.current} to" if before.current else "created with"
    schema = f", schema {namespace}" if kind_of(url) == "postgresql" else ""
    echo(f"the ledger in {display_url(url)}{schema} was {what} {before.head}: {', '.join(before.pending)}")


@migrate.command()
@json_option
@access
def status(access: Access, *, as_json: bool) -> None:
    """Print the version of the ledger's schema. Exit code 1 when `up` has something to do."""
    from onejob.stores import migrate as migrations

    found = migrations.status(*access.place(may_create=False))
    _print_status(found, as_json=as_json)
    raise SystemExit(1 if found.pending else 0)


@migrate.command()
@click.option("--from", "start", help="The present schema version.  [default: none]")
@access
def sql(access: Access, start: str | None) -> None:
    """Print the SQL of `up` without a connection to the database."""
    from onejob.stores import migrate as migrations

    echo(migrations.sql(*access.place(), start), end="")


@migrate.command("fence")
def fence_table() -> None:
    """Print the table that onejob.fence needs in a database other than the ledger's."""
    from onejob.transactions.fence import TABLE

    echo(f"{TABLE};")


def _print_status(status: Status, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(status))
        return
    pending = f"to do: {', '.join(status.pending)}" if status.pending else "nothing to do"
    echo(f"schema version {status.current or 'none'}, newest {status.head}: {pending}")
