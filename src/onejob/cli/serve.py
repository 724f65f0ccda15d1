"""`serve` and `keys`: the HTTP API, and its keys."""

import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import click

from onejob.cli.access import DURATION, TIME, Access, access, audited, find_app, json_option, needs_extra
from onejob.cli.printing import echo, print_list
from onejob.jobs.public_view import fields_of
from onejob.jobs.submitter import Quotas
from onejob.jobs.timestamps import format_timestamp, seconds_of

ROLES = ("read", "submit", "operate", "edit")
KEY_COLUMNS = ("name", "role", "created_at", "expires_at", "own_jobs", "tasks", "quota", "identity_quota")
limit_option = partial(click.option, show_default=True, type=click.IntRange(1))
file_option = click.option("--file", "file", required=True, type=click.Path(dir_okay=False), help="The file of keys.")
server_installed = partial(needs_extra, "server", "the server")


@click.command()
@click.argument("app", required=False, metavar="[MODULE:CELERY_APP]")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to bind to.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535))
@click.option("--root-path", default="", metavar="/PATH", help="The path below which a proxy publishes the server.")
@click.option("--keys", type=click.Path(dir_okay=False), help="The file of API keys; without it, loopback only.")
@click.option("--log-json", is_flag=True, help="Log each record as one line of JSON.")
@limit_option("--limit-concurrency", default=1000, help="Connections at once.")
@limit_option("--limit-waits", default=250, help="Event streams and long polls per key.")
@limit_option("--limit-checks", "checks", default=600, help="Checks for duplicates per key and minute.")
@access
def serve(
    access: Access, /, app: str | None, keys: str | None, *, host: str, port: int, log_json: bool, limit_waits: int,
    checks: int, root_path: str, limit_concurrency: int,
) -> None:  # fmt: skip
    """Serve the HTTP API of a Celery app, by default that of -A, and the dashboard below /dashboard."""
    with server_installed():
        from onejob.api.server import Limits, check_host
        from onejob.api.server import serve as serve_app
        from onejob.pages.app import create_app_with_dashboard
    served = replace(access, bare_app=find_app(app)) if app else access
    celery_app = served.app_for("the tasks to serve")
    served.check_own()
    check_host(host, keys, root_path)
    if keys is None:
        echo("No API keys: bound to loopback only, and every request from this machine is accepted.", err=True)
    web = create_app_with_dashboard(celery_app, keys, waits_per_caller=limit_waits, checks_per_minute=checks)
    limits = Limits(connections=limit_concurrency)
    serve_app(web, limits=limits, host=host, port=port, log_json=log_json, root_path=root_path)


@click.group()
def keys() -> None:
    """Add, list, rotate and revoke the API keys in a file, and end their sessions of the dashboard."""


def _future(_context: click.Context, _parameter: click.Parameter, at: float | timedelta | None) -> float | None:
    """Return a future time, in seconds since the epoch; a duration begins now."""
    now = time.time()
    seconds = seconds_of(at, now, sign=1)
    if seconds is not None and seconds <= now:
        raise click.BadParameter(f"{format_timestamp(seconds)} is over")
    return seconds


expires_option = click.option(
    "--expires", "expires_at", type=TIME, callback=_future, help="A duration (90d, 12h) or an RFC 3339 time."
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
@access
def add(
    access: Access, /, name: str, *, role: str, file: str, quota: str | None, identity_quota: str | None, **limits: Any
) -> None:
    """Add a key for NAME and print it. It cannot be printed again, since the file has only its hash."""
    with server_installed():
        from onejob.api.api_keys import KeyFile, Role
    quotas, tasks = Quotas.parse(quota, identity_quota), limits.pop("tasks")
    permissions = [*(["own jobs"] if limits["own_jobs"] else []), *(f"task {task}" for task in tasks)]
    detail = ", ".join([f"{file}: role {role}", *permissions])
    with audited(access.ledger_or_none(), "keys add", name, detail):
        text = KeyFile(file).add(name, Role(role), quotas, tasks=frozenset(tasks) or None, **limits)
    echo(text)


@keys.command()
@click.argument("name")
@click.option("--overlap", default="24h", show_default=True, type=DURATION, help="How long the former key still works.")
@expires_option
@file_option
@access
def rotate(access: Access, name: str, *, overlap: float, expires_at: float | None, file: str) -> None:
    """Print a new key for NAME with the same permissions; the former one works until the overlap ends.

    Without --expires the new key is valid for as long as the former one was.
    """
    with server_installed():
        from onejob.api.api_keys import KeyFile
    with audited(access.ledger_or_none(), "keys rotate", name, file):
        text = KeyFile(file).rotate(name, overlap, expires_at)
    echo(text)


@keys.command("list")
@file_option
@json_option
def list_keys(file: str, *, as_json: bool) -> None:
    """List the keys: their names, roles, times of expiry, limits and quotas."""
    with server_installed():
        from onejob.api.api_keys import KeyFile
    found = [
        key.row() | fields_of(key, "created_at", "expires_at", "own_jobs") for key in KeyFile(file).read(manages=True)
    ]
    rows = [{name: fields.get(name) for name in KEY_COLUMNS} for fields in found]
    print_list(rows, KEY_COLUMNS, [(*row.values(),) for row in rows], as_json=as_json)


@keys.command("end-sessions")
@click.argument("name")
@file_option
@access
def end_sessions(access: Access, name: str, file: str) -> None:
    """End all sessions of the dashboard that the key of NAME, and its former ones, have opened; the key works on."""
    with server_installed():
        from onejob.api.api_keys import KeyFile
    with audited(access.ledger_or_none(), "keys end-sessions", name, file):
        KeyFile(file).end_sessions(name)


@keys.command()
@click.argument("name")
@file_option
@access
def revoke(access: Access, name: str, file: str) -> None:
    """Revoke the key of NAME, and its former ones; running servers refuse it from their next request on."""
    with server_installed():
        from onejob.api.api_keys import KeyFile
    with audited(access.ledger_or_none(), "keys revoke", name, file):
        KeyFile(file).revoke(name)
