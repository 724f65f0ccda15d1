"""`serve` and `keys`: the HTTP API, and its keys."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from onejob.cli.access import find_app
from onejob.cli.printing import json_option, print_json, print_table
from onejob.jobs.timestamps import parse_duration, parse_timestamp, to_datetime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onejob.api.api_keys import Key

ROLES = ("read", "submit", "operate")
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
def serve(app: str, host: str, port: int, keys: str | None, *, log_json: bool) -> None:
    """Serve the HTTP API of a Celery app."""
    with server_installed():
        from onejob.api.app import serve as serve_app
    celery_app = find_app(app)
    if keys is None:
        click.echo("No API keys: bound to loopback only, and every request from this machine is accepted.", err=True)
    serve_app(celery_app, host=host, port=port, keys=keys, log_json=log_json)


@click.group()
def keys() -> None:
    """Add, list, rotate and revoke the API keys in a file."""


def _parse_duration(_context: click.Context, _parameter: click.Parameter, text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _parse_expiry(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    """Return when a key expires: at a time, or after a duration from now."""
    if text is None:
        return None
    try:
        at = parse_timestamp(text) if "T" in text.upper() else time.time() + parse_duration(text)
    except ValueError as error:
        msg = f"{error}; or write a time such as 2026-12-31T12:00:00Z"
        raise click.BadParameter(msg) from error
    if at <= time.time():
        msg = f"{text} is over"
        raise click.BadParameter(msg)
    return at


expires_option = click.option(
    "--expires", "expires_at", callback=_parse_expiry, metavar="TIME", help="A duration (90d, 12h) or an RFC 3339 time."
)


@keys.command()
@click.argument("name")
@click.option("--role", required=True, type=click.Choice(ROLES), help="Each role includes those before it.")
@click.option("--quota", metavar="N/PERIOD", help="Limit of new jobs: 1000/day, 5/90 (seconds).")
@click.option("--identity-quota", metavar="N/PERIOD", help="Limit of new jobs with the same identity.")
@expires_option
@click.option("--own-jobs", is_flag=True, help="It sees and operates only the jobs that it has submitted.")
@click.option("--task", "tasks", multiple=True, metavar="NAME", help="It may use only this task; may be repeated.")
@file_option
def add(
    name: str,
    *,
    role: str,
    quota: str | None,
    identity_quota: str | None,
    expires_at: float | None,
    own_jobs: bool,
    tasks: tuple[str, ...],
    file: str,
) -> None:
    """Add a key for NAME and print it. It cannot be printed again, since the file has only its hash."""
    with server_installed():
        from onejob.api.api_keys import KeyFile, Role
        from onejob.jobs.quota import Quotas
    quotas = Quotas.parse(quota, identity_quota)
    text = KeyFile(file).add(
        name, Role(role), quotas, expires_at=expires_at, own_jobs=own_jobs, tasks=frozenset(tasks) or None
    )
    click.echo(text)


@keys.command()
@click.argument("name")
@click.option(
    "--overlap", default="24h", show_default=True, callback=_parse_duration, help="How long the former key still works."
)
@expires_option
@file_option
def rotate(name: str, overlap: float, expires_at: float | None, file: str) -> None:
    """Print a new key for NAME with the same permissions; the former one works until the overlap ends.

    Without --expires the new key is valid for as long as the former one was.
    """
    with server_installed():
        from onejob.api.api_keys import KeyFile
    click.echo(KeyFile(file).rotate(name, overlap, expires_at))


@keys.command("list")
@file_option
@json_option
def list_keys(file: str, *, as_json: bool) -> None:
    """List the keys: their names, roles, times of expiry, limits and quotas."""
    with server_installed():
        from onejob.api.api_keys import KeyFile
    rows = [_columns_of(key) for key in KeyFile(file).read()]
    if as_json:
        print_json(rows)
    else:
        heading = ("name", "role", "created_at", "expires_at", "own_jobs", "tasks", "quota", "identity_quota")
        print_table(heading, [(*row.values(),) for row in rows])


def _columns_of(key: Key) -> dict[str, Any]:
    return {
        "name": key.name,
        "role": key.role,
        "created_at": to_datetime(key.created_at),
        "expires_at": None if key.expires_at is None else to_datetime(key.expires_at),
        "own_jobs": key.own_jobs,
        "tasks": None if key.tasks is None else sorted(key.tasks),
        **key.quotas.texts(),
    }


@keys.command()
@click.argument("name")
@file_option
def revoke(name: str, file: str) -> None:
    """Revoke the key of NAME, and its former ones; running servers refuse it from their next request on."""
    with server_installed():
        from onejob.api.api_keys import KeyFile
    KeyFile(file).revoke(name)
