"""`dead`: the jobs that failed for good."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from onejob.cli.access import Access, access
from onejob.cli.printing import json_option, print_job, print_jobs, print_json
from onejob.errors import NoDeadLetterError, OneJobError
from onejob.job import Query
from onejob.lifecycle import State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onejob.job import Job
    from onejob.ledger import Ledger


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
    print_jobs(access.ledger().find(_dead(task, error, limit)), as_json=as_json)


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
def redrive(access: Access, /, *, forget_steps: bool, dry_run: bool, as_json: bool, **choice: Any) -> None:
    """Send dead letters again: JOB_IDS, or those that the options choose."""
    from onejob.celery.message import waits_for_end

    ledger = access.ledger()

    def send(job: Job) -> None:
        canvas = waits_for_end(job.options)
        ledger.redrive(job.id, forget_steps=forget_steps, canvas=canvas, reason="redriven at the command line")

    _do("sent again", send, _choose(ledger, **choice), dry_run=dry_run, as_json=as_json)


@dead.command()
@chosen_options
@access
def drop(access: Access, /, *, dry_run: bool, as_json: bool, **choice: Any) -> None:
    """Remove dead letters: JOB_IDS, or those that the options choose."""
    ledger = access.ledger()
    chosen = _choose(ledger, **choice)
    _do("dropped", lambda job: ledger.drop(job.id), chosen, dry_run=dry_run, as_json=as_json)


def _dead(task: str | None, error: str | None, limit: int) -> Query:
    return Query(states=frozenset({State.FAILED}), task=task, reason=error, limit=limit)


def _choose(
    ledger: Ledger, job_ids: Sequence[str], task: str | None, error: str | None, limit: int, *, everything: bool
) -> list[Job]:
    """Return the dead letters that a command line chooses. Raises `click.UsageError` for none or both ways."""
    if job_ids and (task or error or everything):
        raise click.UsageError("give job ids or a filter, not both")
    if job_ids:
        return [ledger.get(job_id) for job_id in job_ids]
    if not (task or error or everything):
        raise click.UsageError("which? Give job ids, --task, --error, or --all")
    return ledger.find(_dead(task, error, limit))


def _do(done: str, act: Callable[[Job], None], chosen: Sequence[Job], *, dry_run: bool, as_json: bool) -> None:
    """Act on each job, go on after a refusal, and tell what became of each. Exit code 1 when one was refused."""
    refused: dict[str, str] = {}
    for job in chosen:
        try:
            if not dry_run:
                act(job)
        except OneJobError as error:
            refused[job.id] = str(error)
    moved = [job.id for job in chosen if job.id not in refused]
    if as_json:
        print_json({"dry_run": dry_run, "done": moved, "refused": refused})
    else:
        for line in (*moved, *refused.values()):
            click.echo(line)
        would = "would be " if dry_run else ""
        click.echo(f"{len(moved)} {would}{done}, {len(refused)} refused")
    raise SystemExit(1 if refused else 0)
