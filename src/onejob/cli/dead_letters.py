"""`dead`: list, show, redrive and drop dead letters."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from onejob.cli.access import Access, access
from onejob.cli.audit import audited
from onejob.cli.printing import clean, columns_of, echo, json_option, print_job, print_jobs, print_json
from onejob.errors import NoDeadLetterError
from onejob.jobs.lifecycle import State
from onejob.jobs.public_view import job_to_dict
from onejob.ledger.dead_letters import Selection, bulk_apply, dead_letters

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger


@click.group()
def dead() -> None:
    """List, show, redrive and drop dead letters: jobs that failed for good."""


def chosen_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select dead letters."""
    options = (
        click.argument("job_ids", nargs=-1),
        click.option("--task", help="Only of this task."),
        click.option("--error", help="Only with this text in the reason, e.g. the name of an exception."),
        click.option("--all", "everything", is_flag=True, help="All dead letters, up to the limit."),
        click.option(
            "--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Maximum number of jobs."
        ),
        click.option("--dry-run", is_flag=True, help="Print what would be done, and change nothing."),
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
    """Show a dead letter, with its arguments and its traceback."""
    job = access.ledger().get(job_id)
    if job.state is not State.FAILED:
        raise NoDeadLetterError(job_id, job.state)
    columns = columns_of(job)
    fields = job_to_dict(job) | {"payload": columns["payload"]}
    print_job(fields | {"error": columns["error"]} if as_json else fields, as_json=as_json)
    if not as_json and job.error:
        echo(f"\n{columns['error']['traceback']}", end="")


@dead.command()
@chosen_options
@click.option("--forget-steps", is_flag=True, help="Delete the results of completed steps, so that they run again.")
@access
def redrive(access: Access, /, *, forget_steps: bool, **options: Any) -> None:
    """Queue dead letters again: JOB_IDS, or those that the options select."""
    from onejob.celery.control import redrive as redrive_job

    ledger = access.ledger()

    def send(job: Job) -> None:
        redrive_job(ledger, job, forget_steps=forget_steps, reason="redriven at the command line")

    _do("redrive", "redriven", ledger, send, **options)


@dead.command()
@chosen_options
@access
def drop(access: Access, /, **options: Any) -> None:
    """Delete dead letters: JOB_IDS, or those that the options select."""
    ledger = access.ledger()
    _do("drop", "dropped", ledger, lambda job: ledger.drop(job.id), **options)


def _do(
    action: str, done: str, ledger: Ledger, act: Callable[[Job], object], *, dry_run: bool, as_json: bool, **choice: Any
) -> None:
    """Act on each selected job, and print the result. Exit code 1 when one was refused.

    Raises `click.UsageError` for an empty or contradictory selection.
    """
    try:
        chosen = Selection(**choice)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if dry_run:
        result = bulk_apply(ledger, chosen, act, dry_run=True)
    else:
        selected = " ".join(f"{name}={value}" for name, value in choice.items() if value and name != "job_ids")
        with audited(ledger, action, " ".join(choice["job_ids"]), selected) as attempt:
            result = bulk_apply(ledger, chosen, act)
            attempt.outcome = f"{len(result.done)} done, {len(result.refused)} refused"
    if as_json:
        print_json({"dry_run": dry_run} | asdict(result))
    else:
        for line in (*result.done, *result.refused.values()):
            echo(clean(line))
        would = "would be " if dry_run else ""
        echo(f"{len(result.done)} {would}{done}, {len(result.refused)} refused")
    raise SystemExit(1 if result.refused else 0)
