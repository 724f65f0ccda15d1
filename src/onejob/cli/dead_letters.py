"""`dead`: list, group, show, redrive, edit and drop dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from onejob.cli.access import Access, access, audited
from onejob.cli.printing import (
    columns_of,
    echo,
    fields_of,
    json_option,
    print_job,
    print_job_list,
    print_json,
    print_table,
)
from onejob.cli.selection import ORIGIN, BulkOperation, BulkOptions, bulk_options, run_bulk, selected_text
from onejob.errors import NoDeadLetterError
from onejob.jobs.lifecycle import State
from onejob.jobs.public_view import job_to_dict
from onejob.jobs.timestamps import local_text
from onejob.ledger.dead_letters import dead_letters, group_failures, select_dead_letters

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger


@click.group()
def dead() -> None:
    """List, group, show, redrive, edit and drop dead letters: jobs that failed for good."""


def chosen_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select dead letters."""
    options = (
        click.argument("job_ids", nargs=-1),
        click.option("--task", help="Only of this task."),
        click.option("--error", help="Only with this text in the reason, e.g. the name of an exception."),
        click.option("--all", "everything", is_flag=True, help="All dead letters."),
    )
    command = bulk_options(command)
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
    ledger = access.ledger()
    found = ledger.find(dead_letters(task, error, limit + 1))
    print_job_list(found, ledger.read_clock(), limit=limit, as_json=as_json)
    access.report_if_empty(ledger, found)


@dead.command("groups")
@click.option("--task", help="Only of this task.")
@click.option(
    "--limit", default=10_000, show_default=True, type=click.IntRange(1, 1_000_000), help="Maximum number of jobs."
)
@json_option
@access
def group_dead(access: Access, task: str | None, limit: int, *, as_json: bool) -> None:
    """Group dead letters by task and error.

    Messages that differ only by ids, numbers and quoted texts are in one group.
    """
    groups = group_failures(access.ledger(), task=task, limit=limit)
    if as_json:
        print_json([fields_of(group) for group in groups])
        return
    lines = (
        (group.count, group.task, group.error_type, local_text(group.first_at), local_text(group.last_at),
         group.job_ids[0], group.message)
        for group in groups
    )  # fmt: skip
    print_table(("jobs", "task", "error", "first", "last", "newest", "message"), lines)


@dead.command("show")
@click.argument("job_id")
@json_option
@access
def show_dead(access: Access, job_id: str, *, as_json: bool) -> None:
    """Show a dead letter, with its arguments and its traceback."""
    job = access.ledger().get(job_id)
    _check_failed(job)
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
    from onejob.celery.operations import Operation, operate

    ledger = access.ledger()

    def send(job: Job) -> object:
        return operate(access.app, ledger, Operation.REDRIVE, job, origin=ORIGIN, forget_steps=forget_steps)

    _do(ledger, BulkOperation("redrive", "redriven", send, _check_failed), **options)


@dead.command()
@click.argument("job_id")
@click.option("--args", "args_text", help="The new positional arguments: a JSON array, such as '[1, 2]'.")
@click.option("--kwargs", "kwargs_text", help="The new keyword arguments: a JSON object, such as '{\"order_id\": 42}'.")
@json_option
@access
def edit(access: Access, job_id: str, args_text: str | None, kwargs_text: str | None, *, as_json: bool) -> None:
    """Queue a dead letter again with other arguments; without --args or --kwargs these stay as they are.

    This is a new job with everything else of the dead letter, which is deleted. An equal job that exists may answer.
    """
    from onejob.celery import operations

    if access.app is None:
        raise click.UsageError("only an app knows the signature of its tasks: name one with -A module")
    if args_text is None and kwargs_text is None:
        raise click.UsageError("nothing to change: give --args or --kwargs")
    ledger = access.ledger()
    with audited(ledger, "edit", job_id, "args kwargs"):
        args = None if args_text is None else operations.parse_arguments(args_text, "args", list)
        kwargs = None if kwargs_text is None else operations.parse_arguments(kwargs_text, "kwargs", dict)
        admission = operations.edit(access.app, ledger, job_id, args=args, kwargs=kwargs)
    print_job({"outcome": admission.outcome} | job_to_dict(admission.job), as_json=as_json)


@dead.command()
@chosen_options
@access
def drop(access: Access, /, **options: Any) -> None:
    """Delete dead letters: JOB_IDS, or those that the options select."""
    ledger = access.ledger()
    _do(ledger, BulkOperation("drop", "dropped", lambda job: ledger.drop(job.id), _check_failed), **options)


def _do(ledger: Ledger, operation: BulkOperation, *, bulk: BulkOptions, **choice: Any) -> NoReturn:
    """Act on each selected dead letter. Raises `click.UsageError` for an empty or contradictory selection."""
    try:
        selection = select_dead_letters(**choice)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    detail = selected_text({name: value for name, value in choice.items() if name != "job_ids"})
    run_bulk(ledger, operation, selection, bulk, detail)


def _check_failed(job: Job) -> None:
    if job.state is not State.FAILED:
        raise NoDeadLetterError(job.id, job.state)
