"""`jobs`, `why` and `identity`: list, show, cancel and explain jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from onejob.celery.options import options_of
from onejob.cli.access import Access, access, audited
from onejob.cli.printing import (
    clean,
    columns_of,
    duplicate_fields,
    echo,
    fields_of,
    json_option,
    print_counts,
    print_job,
    print_job_list,
    print_json,
)
from onejob.cli.selection import (
    ORIGIN,
    BulkOperation,
    BulkOptions,
    bulk_options,
    filter_options,
    query_of,
    run_bulk,
    selected_text,
)
from onejob.jobs.public_view import job_to_dict
from onejob.jobs.timestamps import format_timestamp, local_text
from onejob.ledger.bulk import Selection
from onejob.ledger.explain import explain
from onejob.ledger.stuck import list_stuck

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from onejob.jobs.model import Job


@click.group()
def jobs() -> None:
    """List, show, cancel, make due and delete jobs."""


@jobs.command("list")
@filter_options
@click.option("--stuck", is_flag=True, help="Only jobs that make no progress, with the reason.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000))
@click.option("--offset", default=0, type=click.IntRange(0, 1_000_000), help="Number of the newest jobs to skip.")
@click.option("--count", is_flag=True, help="Print the number of jobs by state instead of a list.")
@json_option
@access
def list_jobs(access: Access, /, *, stuck: bool, count: bool, limit: int, as_json: bool, **asked: Any) -> None:
    """List jobs, newest first: their age, when they are due, and for how long they have been running.

    A job is stuck if it is due and has not been claimed for three leases, or its message cannot be sent, or no live
    worker has its task or consumes its queue; if the lease of its run has expired; or if it has ended and its canvas
    (links, chain or chord) has not been notified for three leases.
    """
    if stuck and count:
        raise click.UsageError("--count counts all matching jobs: leave out --stuck")
    ledger = access.ledger()
    now = ledger.read_clock()
    query = query_of(now, limit=limit + 1, **asked)
    if count:
        print_counts(ledger.counts(query), as_json=as_json)
        return
    found: Sequence[Any] = list_stuck(ledger, query) if stuck else ledger.find(query)
    print_job_list(found, now, limit=limit, as_json=as_json)
    access.report_if_empty(ledger, found)


@jobs.command()
@click.argument("job_id")
@click.option("--all", "everything", is_flag=True, help="Also show the arguments and the internal columns.")
@json_option
@access
def show(access: Access, job_id: str, *, everything: bool, as_json: bool) -> None:
    """Show one job. Of its id the beginning is enough, if it is one of the newest 1000."""
    ledger = access.ledger()
    job = ledger.get(access.find_id(ledger, job_id))
    print_job(columns_of(job) if everything else job_to_dict(job), as_json=as_json)


@jobs.command()
@click.argument("job_ids", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="End a running job at once, not at its next step.")
@json_option
@access
def cancel(access: Access, job_ids: Sequence[str], *, force: bool, as_json: bool) -> None:
    """Cancel jobs. One that runs stops at its next step or progress call.

    Of several jobs, one that cannot be canceled does not stop the others; the exit code is 1 then.
    """
    name, first = "force_cancel" if force else "cancel", job_ids[0]
    if len(job_ids) == 1:
        _operate(access, name, first, as_json=as_json)
    else:
        options = BulkOptions(dry_run=False, yes=False, as_json=as_json)
        _operate_on_many(access, name, Selection(job_ids=job_ids), options, "forced" if force else "")


@jobs.command("run-now")
@click.argument("job_id")
@json_option
@access
def run_now(access: Access, job_id: str, *, as_json: bool) -> None:
    """Make a delayed or retrying job due at once."""
    _operate(access, "run_now", job_id, as_json=as_json)


@jobs.command()
@click.argument("job_id")
@json_option
@access
def delete(access: Access, job_id: str, *, as_json: bool) -> None:
    """Delete a job that has ended. One that still answers duplicates with its result is refused."""
    _operate(access, "delete", job_id, as_json=as_json)


def _operate(access: Access, name: str, job_id: str, *, as_json: bool) -> None:
    from onejob.celery.operations import Operation, operate

    ledger, operation = access.ledger(), Operation(name)
    with audited(ledger, operation.permission, job_id, "forced" if operation is Operation.FORCE_CANCEL else ""):
        job = operate(access.app, ledger, operation, ledger.get(job_id), origin=ORIGIN)
    if job is not None:
        print_job(job_to_dict(job), as_json=as_json)
    elif as_json:
        print_json({"done": [job_id]})
    else:
        echo(f"{job_id} {operation.done}")


@jobs.command()
@click.argument("operation", type=click.Choice(["cancel", "force_cancel", "run_now", "redrive", "delete"]))
@filter_options
@click.option("--error", "reason", help="Only with this text in the reason, e.g. the name of an exception.")
@click.option(
    "--ended-in",
    metavar="URL",
    help="Only jobs that have never run here, and have ended by this result backend of Celery.",
)
@bulk_options
@access
def bulk(access: Access, /, operation: str, *, ended_in: str | None, bulk: BulkOptions, **asked: Any) -> None:
    """Cancel, make due, redrive or delete the jobs that match the options, newest first.

    Without --state these are the jobs in all states that the operation applies to.
    """
    from onejob.celery.operations import Operation

    if not ended_in and not any(value for name, value in asked.items() if name != "limit"):
        raise click.UsageError("nothing selected: give a state, a task, an identity, a submitter, a time or an error")
    ledger, chosen = access.ledger(), Operation(operation)
    now = ledger.read_clock()
    query = query_of(now, **asked)
    query = replace(query, states=query.states or chosen.states, until=now if query.until is None else query.until)
    matches = _has_ended_in(ended_in) if ended_in else None
    _operate_on_many(access, operation, Selection(query=query, matches=matches), bulk, selected_text(asked))


def _has_ended_in(url: str) -> Callable[[Job], bool]:
    from celery import Celery, states

    app = Celery("onejob", backend=url, set_as_current=False)

    def has_ended(job: Job) -> bool:
        try:
            return job.attempt == 0 and app.backend.get_task_meta(job.id)["status"] in states.READY_STATES
        except Exception as error:
            msg = f"the result backend did not answer: {error}"
            raise click.ClickException(msg) from error

    return has_ended


def _operate_on_many(access: Access, name: str, selection: Selection, options: BulkOptions, detail: str) -> NoReturn:
    from onejob.celery.operations import Operation, operate

    ledger, operation = access.ledger(), Operation(name)

    def act(job: Job) -> object:
        return operate(access.app, ledger, operation, job, origin=ORIGIN)

    bulk = BulkOperation(operation.permission, operation.done, act, operation.check)
    run_bulk(ledger, bulk, selection, options, detail)


# --- explaining -----------------------------------------------------------------------------------------------------


@click.command()
@click.argument("job_id")
@json_option
@access
def why(access: Access, job_id: str, *, as_json: bool) -> None:
    """Explain the state of a job: what happened, what it waits for, and what happens next.

    Of the id the beginning is enough, if the job is one of the newest 1000.
    """
    ledger = access.ledger()
    format_time = format_timestamp if as_json else local_text
    job, history, duplicates, stuck, sentences = explain(
        ledger, access.find_id(ledger, job_id), format_time=format_time
    )
    if as_json:
        lists = {"history": map(fields_of, history), "duplicates": map(duplicate_fields, duplicates)}
        explained = {"job": job_to_dict(job), "stuck": stuck, "sentences": sentences}
        print_json(explained | {name: list(each) for name, each in lists.items()})
        return
    for sentence in sentences:
        echo(clean(sentence))


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("task")
@click.argument("args", nargs=-1)
@click.option("--check", is_flag=True, help="Also print how the call would be answered now, and by which job.")
@json_option
@access
def identity(access: Access, task: str, args: Sequence[str], *, check: bool, as_json: bool) -> None:
    """Print the identity of a call, and the text whose hash it is.

    ARGS are JSON values or plain text; name=value is a keyword argument.
    """
    identifier = options_of(access.task(task)).identifier
    positional, keywords = _parse(args)
    found: dict[str, str | None] = {
        "hashed": identifier.describe(positional, keywords), "identity": identifier.identity(positional, keywords),
    }  # fmt: skip
    if check:
        from onejob.celery.operations import check_duplicate

        checked = check_duplicate(access.app, task, positional, keywords, ledger=access.ledger())
        job_id = checked.existing.id if checked.existing is not None else None
        found |= {"outcome": checked.outcome, "job": job_id, "reason": checked.reason}
    if as_json:
        print_json(found)
        return
    for name, text in found.items():
        if text is not None:
            echo(f"{name + ':':<10}{clean(text)}")


def _parse(args: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Split words into positional and keyword arguments, each JSON or plain text."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for word in args:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            keywords[name] = _value(value)
        else:
            positional.append(_value(word))
    return positional, keywords


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
