"""`serve` and `keys`: the HTTP API, and its keys."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from onejob.cli.access import Access, access, find_app
from onejob.cli.audit import audited
from onejob.cli.printing import echo, json_option, print_json, print_table
from onejob.jobs.timestamps import to_datetime

if TYPE_CHECKING:
    from collections.abc import Iterator

ROLES = ("read", "submit", "operate")
POSITIVE = click.IntRange(1)
SECONDS = click.FloatRange(0, min_open=True)
file_option = click.option("--file", "file", required=True, type=click.Path(dir_okay=False), help="The file of keys.")


@contextmanager
def server_installed() -> Iterator[None]:
    """Raise `click.ClickException` if a package of the server is missing."""
    try:
        yield
    except ImportError as error:
        msg = f'the server needs additional packages ({error.name} is missing): pip install "onejob[server]"'
        raise click.ClickException(msg) from error


@click.command()
@click.argument("app", metavar="MODULE:CELERY_APP")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to bind to.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535))
@click.option("--keys", type=click.Path(dir_okay=False), help="The file of API keys; without it, loopback only.")
@click.option("--log-json", is_flag=True, help="Log each record as one line of JSON.")
@click.option("--limit-concurrency", default=1000, show_default=True, type=POSITIVE, help="Connections at once.")
@click.option(
    "--limit-waits", default=250, show_default=True, type=POSITIVE, help="Event streams and long polls per key."
)
@click.option(
    "--head-timeout", default=10.0, show_default=True, type=SECONDS, help="Seconds for the headers of a request."
)
@click.option(
    "--body-timeout", default=30.0, show_default=True, type=SECONDS, help="Seconds for the body of a request."
)
def serve(
    app: str,
    keys: str | None,
    *,
    limit_concurrency: int,
    limit_waits: int,
    head_timeout: float,
    body_timeout: float,
    **options: Any,
) -> None:
    """Serve the HTTP API of a Celery app."""
    with server_installed():
        from onejob.api.http_limits import Limits
        from onejob.api.server import serve as serve_app
    celery_app = find_app(app)
    if keys is None:
        echo("No API keys: bound to loopback only, and every request from this machine is accepted.", err=True)
    limits = Limits(connections=limit_concurrency, head=head_timeout, body=body_timeout)
    serve_app(celery_app, keys=keys, limits=limits, waits_per_caller=limit_waits, **options)


@click.group()
def keys() -> None:
    """Add, list and revoke the API keys in a file."""


@keys.command()
@click.argument("name")
@click.option("--role", required=True, type=click.Choice(ROLES), help="Each role includes those before it.")
@click.option("--quota", metavar="N/PERIOD", help="Limit of new jobs: 1000/day, 5/90 (seconds).")
@click.option("--identity-quota", metavar="N/PERIOD", help="Limit of new jobs with the same identity.")
@file_option
@access
def add(access: Access, name: str, role: str, quota: str | None, identity_quota: str | None, file: str) -> None:
    """Add a key for NAME and print it. It cannot be printed again, since the file has only its hash."""
    with server_installed():
        from onejob.api.api_keys import KeyFile, Role
        from onejob.api.quotas import Quotas
    quotas = Quotas.parse(quota, identity_quota)
    with audited(access.ledger_or_none(), "keys add", name, f"{file}: role {role}"):
        text = KeyFile(file).add(name, Role(role), quotas)
    echo(text)


@keys.command("list")
@file_option
@json_option
def list_keys(file: str, *, as_json: bool) -> None:
    """List the keys: their names, roles and quotas."""
    with server_installed():
        from onejob.api.api_keys import KeyFile
    rows = [
        (key.name, key.role, to_datetime(key.created_at), *key.quotas.texts().values()) for key in KeyFile(file).read()
    ]
    heading = ("name", "role", "created_at", "quota", "identity_quota")
    if as_json:
        print_json([dict(zip(heading, row, strict=True)) for row in rows])
    else:
        print_table(heading, rows)


@keys.command()
@click.argument("name")
@file_option
@access
def revoke(access: Access, name: str, file: str) -> None:
    """Revoke the key of NAME; running servers refuse it from their next request on."""
    with server_installed():
        from onejob.api.api_keys import KeyFile
    with audited(access.ledger_or_none(), "keys revoke", name, file):
        KeyFile(file).revoke(name)
