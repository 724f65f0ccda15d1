"""`dead`: the jobs that failed for good."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from onejob.cli.access import Access, access
from onejob.cli.printing import json_option, print_job, print_jobs, print_json
from onejob.errors import NoDeadLetterError
from onejob.jobs.lifecycle import State
from onejob.ledger.dead_letters import Selection, bulk_apply, dead_letters

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger


@click.group()
def dead() -> None:
    """Look at the jobs that failed for good, send them again, or drop them."""


def chosen_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose dead letters in bulk."""
    options = (
        click.argument("job_ids", nargs=-1),
        click.option("--task", help="Only of this task."),
        click.option("--error", help="Only with this text in the reason, e.g. the name of an exception."),
        click.option("--all", "everything", is_flag=True, help="Without a filter: all of them, up to the limit."),
        click.option(
            "--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="At most so many."
        ),
        click.option("--dry-run", is_flag=True, help="Only tell what would be done."),
        json_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


@dead.command("list")
@click.option("--task", help="Only of this task.")
@click.option("--error", help="Only with this text in the reason.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000))
@json_option
@access
def list_dead(access: Access, task: str | None, error: str | None, limit: int, *, as_json: bool) -> None:
    """List dead letters, newest first."""
    print_jobs(access.ledger().find(dead_letters(task, error, limit)), as_json=as_json)


@dead.command("show")
@click.argument("job_id")
@json_option
@access
def show_dead(access: Access, job_id: str, *, as_json: bool) -> None:
    """Show a dead letter: its arguments, its reason, and where it was raised."""
    job = access.ledger().get(job_id)
    if job.state is not State.FAILED:
        raise NoDeadLetterError(job_id, job.state)
    print_job(job, as_json=as_json)
    if not as_json and job.error:
        click.echo(f"\n{json.loads(job.error)['traceback']}", nl=False)


@dead.command()
@chosen_options
@click.option("--forget-steps", is_flag=True, help="Begin from nothing instead of keeping the steps that are done.")
@access
def redrive(access: Access, /, *, forget_steps: bool, **options: Any) -> None:
    """Send dead letters again: JOB_IDS, or those that the options choose."""
    from onejob.celery import control as operating

    ledger = access.ledger()

    def send(job: Job) -> None:
        operating.redrive(ledger, job, forget_steps=forget_steps, reason="redriven at the command line")

    _do("sent again", ledger, send, **options)


@dead.command()
@chosen_options
@access
def drop(access: Access, /, **options: Any) -> None:
    """Remove dead letters: JOB_IDS, or those that the options choose."""
    ledger = access.ledger()
    _do("dropped", ledger, lambda job: ledger.drop(job.id), **options)


def _do(
    done: str, ledger: Ledger, act: Callable[[Job], object], *, dry_run: bool, as_json: bool, **choice: Any
) -> None:
    """Act on each chosen job, and tell what became of it. Exit code 1 when one was refused.

    Raises `click.UsageError` for a choice that is none.
    """
    try:
        chosen = Selection(**choice)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    result = bulk_apply(ledger, chosen, act, dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run} | asdict(result))
    else:
        for line in (*result.done, *result.refused.values()):
            click.echo(line)
        would = "would be " if dry_run else ""
        click.echo(f"{len(result.done)} {would}{done}, {len(result.refused)} refused")
    raise SystemExit(1 if result.refused else 0)
