"""Runs a bulk operation, records it in the audit log, and prints its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from onejob.cli.audit import audited
from onejob.cli.printing import clean, echo, json_option, print_json
from onejob.ledger.bulk import NO_LIMIT, bulk_apply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn

    from onejob.jobs.model import Job
    from onejob.ledger.bulk import Selection
    from onejob.ledger.ledger import Ledger

ORIGIN = "at the command line"


def bulk_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every operation on many jobs."""
    options = (
        click.option(
            "--limit", default=NO_LIMIT, show_default="all", type=click.IntRange(1), help="Maximum number of jobs."
        ),
        click.option("--dry-run", is_flag=True, help="Print what would be done, and change nothing."),
        click.option("--yes", is_flag=True, help="Do not ask for a confirmation."),
        json_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


def selected_text(options: Mapping[str, Any]) -> str:
    """Return the options that were given, for the audit log."""
    return " ".join(f"{name}={value}" for name, value in options.items() if value and value != NO_LIMIT)


def run_bulk(
    ledger: Ledger, action: str, done: str, selection: Selection, act: Callable[[Job], object], *,
    check: Callable[[Job], object], dry_run: bool, yes: bool, as_json: bool, detail: str,
) -> NoReturn:  # fmt: skip
    """Act on each selected job, print the result, and exit: with 1 when a job was refused.

    For the jobs of a query it asks first, with their number, unless `yes`. `action` names the operation in the audit
    log, where a dry run is not recorded; `done` is a participle.
    """
    if selection.query is not None and not (yes or dry_run):
        count = len(bulk_apply(ledger, selection, check, check=check, dry_run=True).done)
        click.confirm(f"{count} {'job' if count == 1 else 'jobs'} will be {done}. Continue?", abort=True, err=True)
    if dry_run:
        result = bulk_apply(ledger, selection, act, check=check, dry_run=True)
    else:
        with audited(ledger, action, " ".join(selection.job_ids), detail) as attempt:
            result = bulk_apply(ledger, selection, act, check=check)
            attempt.outcome = f"{len(result.done)} done, {len(result.refused)} refused"
    if as_json:
        print_json(
            {"dry_run": dry_run, "done": result.done, "refused": result.refused, "more": result.next is not None}
        )
    else:
        for line in (*result.done, *result.refused.values()):
            echo(clean(line))
        would = "would be " if dry_run else ""
        more = "; more jobs match" if result.next is not None else ""
        echo(f"{len(result.done)} {would}{done}, {len(result.refused)} refused{more}")
    raise SystemExit(1 if result.refused else 0)
