"""The commands on an installation: `doctor` examines it, `migrate` changes the schema, `probe` checks a worker."""

import time
from collections import Counter
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

import click

from onejob.celery.worker.probe import MAX_AGE, find_fault
from onejob.cli.access import SECONDS, Access, access, json_access, json_option
from onejob.cli.printing import echo, print_json
from onejob.doctor import examine
from onejob.doctor.leftovers import find_leftovers
from onejob.health.finding import Finding, Installation, Level, count_text
from onejob.stores import display_url, kind_of
from onejob.stores import migrate as migrations
from onejob.stores.migrate import Status
from onejob.transactions.fence import TABLE

LIMITS = (Level.WARNING, Level.ERROR)


@click.command()
@json_option
@click.option(
    "--fail-on", type=click.Choice([str(level) for level in LIMITS]), default=str(Level.ERROR), show_default=True,
    help="The lowest level with which the exit code is 1.",
)  # fmt: skip
@click.option("--keys", type=click.Path(path_type=Path, dir_okay=False), help="The file of API keys, to examine it.")
@click.option(
    "--migrate", is_flag=True,
    help="Find what is left of celery-singleton and celery-once in the app, the PATHS and Redis, and locks by SET NX.",
)  # fmt: skip
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path, exists=True))
@access
def doctor(
    access: Access, fail_on: str, keys: Path | None, paths: tuple[Path, ...], *, migrate: bool, as_json: bool
) -> None:
    """Examine the ledger, the app's settings, the broker and the workers. Nothing is changed.

    Every finding says what was found, what it means, and what to do. With -A module the app's settings are examined,
    too. Exit code 1: there is an error (or a warning, with --fail-on warning).

    With --migrate only the leftovers of other libraries are looked for, and the exit code is 1 if there are any above
    level info. PATHS are Python files, or folders of them.
    """
    if paths and not migrate:
        raise click.UsageError("PATHS are read with --migrate only")
    if migrate and access.app is None and not paths:
        raise click.UsageError("--migrate examines an app (-A module), source files (PATHS), or both: name one")
    if migrate:
        findings, limit = find_leftovers(access.app, paths), Level.WARNING
    else:
        app_name = "" if access.store or access.namespace else access.app_name
        findings, limit = examine(Installation(
            settings=access.settings(), ledger=access.ledger(), app=access.app, app_name=app_name, keys=keys
        )), Level(fail_on)  # fmt: skip
    _show(findings, as_json=as_json)
    fails = any(finding.level.rank >= limit.rank for finding in findings)
    if migrate and not fails and not as_json:
        echo("nothing is left of celery-singleton or celery-once")
    raise SystemExit(1 if fails else 0)


def _show(findings: list[Finding], *, as_json: bool) -> None:
    if as_json:
        print_json([asdict(finding) for finding in findings])
        return
    for finding in sorted(findings, key=lambda finding: -finding.level.rank):
        echo(f"{finding.level:<8} {finding.subject}: {finding.problem}")
        for heading, text in (("means", finding.meaning), ("to do", finding.remedy)):
            if text:
                echo(f"{'':<8} {heading}: {text}")
    counts = Counter(finding.level for finding in findings)
    texts = {
        level: count_text(count, level) if level in LIMITS else f"{count} {level}" for level, count in counts.items()
    }
    if findings:
        echo(", ".join(texts[level] for level in reversed(Level) if level in texts))


@click.group()
def migrate() -> None:
    """Create or upgrade the ledger's tables in PostgreSQL or SQLite, or its indexes in Redis."""


@migrate.command()
@access
def up(access: Access) -> None:
    """Upgrade the ledger to the newest schema; create it where there is none. In Redis, add what indexes lack."""
    url, namespace = access.address()
    if kind_of(url) == "redis":
        added = migrations.index_redis(url, namespace)
        echo(f"the ledger in {display_url(url)}, prefix {namespace}: {added} jobs were added to lists of submitters")
        return
    before, after = migrations.status(url, namespace), migrations.upgrade(url, namespace)
    for repair in before.repairs:
        echo(f"repaired: {repair}")
    if not before.pending:
        _print_status(after, as_json=False)
        return
    what = f"upgraded from {before.current} to" if before.current else "created with"
    schema = f", schema {namespace}" if kind_of(url) == "postgresql" else ""
    echo(f"the ledger in {display_url(url)}{schema} was {what} {before.head}: {', '.join(before.pending)}")


@migrate.command()
@json_access
def status(access: Access, *, as_json: bool) -> None:
    """Print the version of the ledger's schema. Exit code 1 when `up` has something to do."""
    found = migrations.status(*access.address(may_create=False))
    _print_status(found, as_json=as_json)
    raise SystemExit(1 if found.pending or found.repairs else 0)


@migrate.command()
@click.option("--from", "start", help="The present schema version.  [default: none]")
@access
def sql(access: Access, start: str | None) -> None:
    """Print the SQL of `up` without a connection to the database."""
    echo(migrations.sql(*access.address(), start), end="")


@migrate.command("fence")
def fence_table() -> None:
    """Print the table that onejob.fence needs in a database other than the ledger's."""
    echo(f"{TABLE};")


@migrate.command()
def roles() -> None:
    """Print SQL for psql that makes two roles of PostgreSQL: one that migrates the ledger, and one for the services.

    A superuser runs it, connected to the database: onejob migrate roles | psql URL -v schema=onejob. The beginning of
    the output names the other variables: the names of the roles, and their passwords.
    """
    echo(files("onejob.cli").joinpath("roles.sql").read_text(encoding="utf-8"), end="")


def _print_status(status: Status, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(status))
        return
    todo = status.pending + status.repairs
    pending = f"to do: {', '.join(todo)}" if todo else "nothing to do"
    echo(f"schema version {status.current or 'none'}, newest {status.head}: {pending}")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--ready", is_flag=True, help="Also require that it reaches the store and hears its broker.")
@click.option("--max-age", default=MAX_AGE, show_default=True, type=SECONDS)
def probe(file: Path, max_age: float, *, ready: bool) -> None:
    """Return whether the worker that writes FILE (its onejob_probe_file) is alive. Exit code 1: it is not.

    It reads the file, and needs neither the app nor the store. With --ready the worker must also have sent a heartbeat
    to the store within --max-age, which has to be longer than a third of onejob_lease.
    """
    fault = find_fault(file, time.time(), max_age=max_age, ready=ready)
    if fault is not None:
        raise click.ClickException(fault)
    echo("ok")
