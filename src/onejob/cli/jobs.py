"""`jobs`, `dead`, `why` and `identity`: list, show, explain, operate on and edit jobs, one or many."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import click

from onejob.cli.access import NEWEST, Access, at_times, audited, filter_options, json_access, together
from onejob.cli.printing import (
    clean,
    columns_of,
    duplicate_fields,
    echo,
    print_job,
    print_job_list,
    print_json,
    print_list,
)
from onejob.client.filters import filters_text, select_matching
from onejob.client.jobs import check_duplicate, parse_arguments
from onejob.client.operation import Operation
from onejob.health.finding import count_text, names_text
from onejob.jobs.lifecycle import State
from onejob.jobs.model import JobRow
from onejob.jobs.public_view import fields_of, job_to_dict
from onejob.jobs.query import Query
from onejob.jobs.timestamps import format_timestamp, local_text
from onejob.ledger.bulk import NO_LIMIT, BulkResult, Selection, bulk_apply
from onejob.ledger.dead_letters import dead_letters, group_failures, select_dead_letters
from onejob.ledger.explain import explain
from onejob.ledger.job_filters import has_condition, query_of
from onejob.ledger.ledger import Ledger
from onejob.ledger.stuck import list_stuck

SHOWN = 10
"""The number of tasks or errors that a hint names."""
AT_LEAST_ONE = click.IntRange(1)
limit_option = click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000))


@click.group()
def jobs() -> None:
    """List, show, cancel, make due and delete jobs."""


@jobs.command("list")
@filter_options()
@click.option("--stuck", is_flag=True, help="Only jobs that make no progress, with the reason.")
@limit_option
@click.option("--offset", default=0, type=click.IntRange(0, 1_000_000), help="Number of the newest jobs to skip.")
@click.option("--count", is_flag=True, help="Print the number of jobs by state instead of a list.")
@json_access
def list_jobs(
    access: Access, /, *, stuck: bool, count: bool, limit: int, offset: int, as_json: bool, **asked: Any
) -> None:
    """List jobs, newest first: their age, when they are due, and for how long they have been running.

    A job is stuck if it is due and has not been claimed for three leases, or its message cannot be sent, or no live
    worker has its task or consumes its queue; if the lease of its run has expired; or if it has ended and its canvas
    (links, chain or chord) has not been notified for three leases.
    """
    if stuck and count:
        raise click.UsageError("--count counts all matching jobs: leave out --stuck")
    ledger = access.ledger()
    now = ledger.read_clock()
    query = query_of(at_times(asked, now), limit=limit + 1, offset=offset)
    if count:
        by_state = ledger.counts(query)
        total = sum(by_state.values())
        rows = [*by_state.items(), ("total", total)]
        print_list({"total": total, "by_state": by_state}, ("state", "jobs"), rows, as_json=as_json)
        return
    found: Sequence[Any] = list_stuck(ledger, query) if stuck else ledger.find(query)
    _print_found(access, ledger, query, found, as_json=as_json)


def _print_found(access: Access, ledger: Ledger, query: Query, found: Sequence[Any], *, as_json: bool) -> None:
    """Print a list of jobs, of which one more was read than is shown; for an empty list, print a hint."""
    print_job_list(found, ledger.read_clock(), limit=query.limit - 1, as_json=as_json)
    if not found and not any(ledger.counts(Query()).values()) and not ledger.workers():
        address = access.settings().address
        echo(f"There is no ledger here, or an empty one: {address}. Check --store and --namespace", err=True)
    if not found:
        _report_what_exists(ledger, query)


def _report_what_exists(ledger: Ledger, query: Query) -> None:
    """Print the existing tasks or errors, if a query by a task or an error matches nothing: it may be misspelled."""
    if query.task is not None:
        tasks = sorted({job.task for job in ledger.find(Query(limit=NEWEST, light=True))})
        if tasks and query.task not in tasks:
            echo(f"Nothing matches the task {query.task}. The newest jobs have: {names_text(tasks, SHOWN)}", err=True)
    if query.reason is not None:
        errors = sorted({each.error_type or each.pattern for each in group_failures(ledger, limit=NEWEST)})
        if errors:
            echo(
                f"Nothing matches the error {query.reason!r}. Dead letters have: {names_text(errors, SHOWN)}", err=True
            )


@jobs.command()
@click.argument("job_id")
@click.option("--all", "everything", is_flag=True, help="Also show the arguments and the internal columns.")
@json_access
def show(access: Access, job_id: str, *, everything: bool, as_json: bool) -> None:
    """Show one job. Of its id the beginning is enough, if it is one of the newest 1000."""
    ledger = access.ledger()
    job = ledger.get(access.find_id(ledger, job_id))
    print_job(columns_of(job) if everything else job_to_dict(job), as_json=as_json)


@jobs.command()
@click.argument("job_id")
@click.option("--attempt", type=click.IntRange(1), help="Only the log of this attempt.")
@json_access
def logs(access: Access, job_id: str, *, attempt: int | None, as_json: bool) -> None:
    """Print the logs of the attempts of a job: of each of the newest ten the last 64 K characters.

    Of the id the beginning is enough, if the job is one of the newest 1000.
    """
    ledger = access.ledger()
    job = ledger.get(access.find_id(ledger, job_id))
    found = [each for each in ledger.run_logs(job) if attempt in {None, each.attempt}]
    if as_json:
        print_json([fields_of(each) for each in found])
        return
    for each in found:
        if len(found) > 1:
            echo(f"--- attempt {each.attempt}")
        for line in each.text.splitlines():
            echo(clean(line))


# --- explaining -----------------------------------------------------------------------------------------------------


@click.command()
@click.argument("job_id")
@json_access
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
        lists = {"history": [*map(fields_of, history)], "duplicates": [*map(duplicate_fields, duplicates)]}
        print_json({"job": job_to_dict(job), "stuck": stuck, "sentences": sentences} | lists)
        return
    for sentence in sentences:
        echo(clean(sentence))


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("task")
@click.argument("args", nargs=-1)
@click.option("--check", is_flag=True, help="Also print how the call would be answered now, and by which job.")
@json_access
def identity(access: Access, task: str, args: Sequence[str], *, check: bool, as_json: bool) -> None:
    """Print the identity of a call, and the text whose hash it is.

    ARGS are JSON values or plain text; name=value is a keyword argument.
    """
    identifier = access.task(task)._onejob.identifier
    positional, keywords = _parse(args)
    digest, _, hashed = identifier.both(positional, keywords)
    found: dict[str, str | None] = {"hashed": hashed, "identity": digest}
    if check:
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
    except (ValueError, RecursionError):
        return text


# --- operations on one job ------------------------------------------------------------------------------------------


@jobs.command()
@click.argument("job_ids", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="End a running job at once, not at its next step.")
@json_access
def cancel(access: Access, job_ids: Sequence[str], *, force: bool, as_json: bool) -> None:
    """Cancel jobs. One that runs stops at its next step or progress call.

    Of several jobs, one that cannot be canceled does not stop the others; the exit code is 1 then.
    """
    operation = Operation.FORCE_CANCEL if force else Operation.CANCEL
    if len(job_ids) == 1:
        _operate(access, operation, job_ids[0], as_json=as_json)
    else:
        detail = "forced" if force else ""
        _run_bulk(_bulk_of(access, operation), Selection(job_ids=job_ids), detail, as_json=as_json)


@jobs.command("run-now")
@click.argument("job_id")
@json_access
def run_now(access: Access, job_id: str, *, as_json: bool) -> None:
    """Make a delayed or retrying job due at once."""
    _operate(access, Operation.RUN_NOW, job_id, as_json=as_json)


force_delete_option = click.option(
    "--force",
    is_flag=True,
    help="Also if an idempotency key names it, which is free then, or something waits for its end.",
)


@jobs.command()
@click.argument("job_id")
@force_delete_option
@json_access
def delete(access: Access, job_id: str, *, force: bool, as_json: bool) -> None:
    """Delete a job that has ended. One that still answers duplicates with its result is refused.

    So is, without --force, one that an idempotency key names, or whose end is still to be passed on.
    """
    _operate(access, Operation.FORCE_DELETE if force else Operation.DELETE, job_id, as_json=as_json)


def _operate(access: Access, operation: Operation, job_id: str, *, as_json: bool) -> None:
    operator = access.operator()
    job_id = access.find_id(operator.ledger, job_id)
    with audited(operator.ledger, operation.permission, job_id, "forced" if operation.is_forced else ""):
        job = operator.operate(operation, operator.ledger.get(job_id))
    if as_json:
        print_json({"done": [job_id]} if job is None else job_to_dict(job))
    elif job is None:
        echo(f"{job_id} {operation.done}")
    else:
        is_asked = job.state is State.RUNNING
        echo(f"{job_id} is {job.state}" + (": its cancellation is requested" if is_asked else " now"))
    if operation is Operation.CANCEL and job is not None and job.state is State.RUNNING:
        echo(f"It runs until its next step or progress call; `--force` ends it at once: {job.id}", err=True)


# --- operations on many jobs ----------------------------------------------------------------------------------------


bulk_options = together(
    click.option("--limit", default=NO_LIMIT, show_default="all", type=AT_LEAST_ONE, help="Maximum number of jobs."),
    click.option("--dry-run", is_flag=True, help="Print what would be done, and change nothing."),
    click.option("--yes", is_flag=True, help="Do not ask for a confirmation."),
)  # fmt: skip


@jobs.command()
@click.argument("operation", type=click.Choice([operation.value for operation in Operation]))
@filter_options()
@click.option(
    "--ended-in", metavar="URL",
    help="Only jobs that have never run here, and have ended by this result backend of Celery.",
)  # fmt: skip
@bulk_options
@json_access
def bulk(
    access: Access, /, operation: str, *, ended_in: str | None, limit: int, dry_run: bool, yes: bool, as_json: bool,
    **asked: Any,
) -> None:  # fmt: skip
    """Cancel, make due, redrive or delete the jobs that match the options, newest first.

    Without --state these are the jobs in all states that the operation applies to.
    """
    chosen = _bulk_of(access, Operation(operation))
    now = chosen.ledger.read_clock()
    given = at_times(asked, now)
    if not ended_in and not has_condition(given.items()):
        raise click.UsageError("nothing selected: give a state, a task, a time, an error or another filter")
    matches = _has_ended_in(ended_in) if ended_in else None
    selection = select_matching(Operation(operation), given, now=now, limit=limit, matches=matches)
    _run_bulk(chosen, selection, filters_text(given, limit), dry_run=dry_run, yes=yes, as_json=as_json)


def _has_ended_in(url: str) -> Callable[[JobRow], bool]:
    from celery import Celery, states

    app = Celery("onejob", backend=url.removeprefix("onejob+"), set_as_current=False)

    def has_ended(job: JobRow) -> bool:
        try:
            return job.attempt == 0 and app.backend.get_task_meta(job.id)["status"] in states.READY_STATES
        except Exception as error:
            raise click.ClickException(f"the result backend did not answer: {error}") from error

    return has_ended


class BulkOperation(NamedTuple):
    """An operation on each selected job."""

    ledger: Ledger
    name: str
    """The operation in the audit log."""
    done: str
    apply: Callable[..., BulkResult]
    """The function of the operation, of a selection and `dry_run`."""


def _bulk_of(access: Access, operation: Operation, *, forget_steps: bool = False) -> BulkOperation:
    operator = access.operator()
    apply = partial(operator.operate_many, operation, forget_steps=forget_steps)
    return BulkOperation(operator.ledger, operation.permission, operation.done, apply)


def _run_bulk(
    operation: BulkOperation, selection: Selection, detail: str, *, as_json: bool, dry_run: bool = False,
    yes: bool = False,
) -> NoReturn:  # fmt: skip
    """Act on each selected job, record the action with `detail`, print the result; exit with 1 if a job was refused."""
    result = operation.apply(selection, dry_run=True) if dry_run else _apply(operation, selection, detail, yes=yes)
    if selection.query is not None and not (result.done or result.refused):
        _report_what_exists(operation.ledger, selection.query)
    more = result.next is not None
    if as_json:
        print_json({"dry_run": dry_run, "done": result.done, "refused": result.refused, "more": more})
    else:
        for line in (*result.done, *result.refused.values()):
            echo(clean(line))
        would, rest = "would be " if dry_run else "", "; more jobs match" if more else ""
        echo(f"{len(result.done)} {would}{operation.done}, {len(result.refused)} refused{rest}")
    raise SystemExit(1 if result.refused else 0)


def _apply(operation: BulkOperation, selection: Selection, detail: str, *, yes: bool) -> BulkResult:
    """Act on each selected job, and record the action; ask before acting on the jobs of a query, unless `yes`."""
    target, found = " ".join(selection.job_ids), BulkResult()
    if selection.query is not None and not yes:
        found = operation.apply(selection, dry_run=True)
        if not found.done:
            return found
        count = count_text(len(found.done), "job")
        click.confirm(f"{count} will be {operation.done}. Continue?", abort=True, err=True)
        selection = Selection(job_ids=found.done)  # the jobs of the preview, not jobs that match later
    with audited(operation.ledger, operation.name, target, detail) as attempt:
        result = operation.apply(selection)
        result = BulkResult(result.done, found.refused | result.refused, result.next or found.next)
        attempt.outcome = f"{len(result.done)} done, {len(result.refused)} refused"
    return result


# --- dead letters ---------------------------------------------------------------------------------------------------


@click.group()
def dead() -> None:
    """List, group, show, redrive, edit and drop dead letters: jobs that failed for good."""


@dead.command("list")
@filter_options("state")
@limit_option
@json_access
def list_dead(access: Access, /, limit: int, *, as_json: bool, **asked: Any) -> None:
    """List dead letters, newest first."""
    ledger = access.ledger()
    query = dead_letters(at_times(asked, ledger.read_clock()), limit + 1)
    _print_found(access, ledger, query, ledger.find(query), as_json=as_json)


@dead.command("groups")
@click.option("--task", help="Only of this task.")
@click.option(
    "--limit", default=10_000, show_default=True, type=click.IntRange(1, 1_000_000), help="Maximum number of jobs."
)
@json_access
def group_dead(access: Access, task: str | None, limit: int, *, as_json: bool) -> None:
    """Group dead letters by task and error.

    Messages that differ only by ids, numbers and quoted texts are in one group.
    """
    groups = group_failures(access.ledger(), task=task, limit=limit)
    lines = (
        (group.count, group.task, group.error_type, local_text(group.first_at), local_text(group.last_at),
         group.job_ids[0], group.message)
        for group in groups
    )  # fmt: skip
    headings = ("jobs", "task", "error", "first", "last", "newest", "message")
    print_list([*map(fields_of, groups)], headings, lines, as_json=as_json)


@dead.command("show")
@click.argument("job_id")
@json_access
def show_dead(access: Access, job_id: str, *, as_json: bool) -> None:
    """Show a dead letter, with its arguments and its traceback."""
    ledger = access.ledger()
    job = ledger.get(access.find_id(ledger, job_id))
    Operation.REDRIVE.check(job)
    columns = columns_of(job)
    fields = job_to_dict(job) | {"payload": columns["payload"]}
    print_job(fields | {"error": columns["error"]} if as_json else fields, as_json=as_json)
    if not as_json and job.error:
        echo(f"\n{columns['error']['traceback']}", end="")


chosen_options = together(
    click.argument("job_ids", nargs=-1),
    filter_options("state"),
    click.option("--all", "everything", is_flag=True, help="All dead letters."),
    bulk_options,
)
"""The options that select dead letters for an operation on many."""


@dead.command()
@chosen_options
@json_access
@click.option("--forget-steps", is_flag=True, help="Delete the results of completed steps, so that they run again.")
def redrive(access: Access, /, *, forget_steps: bool, **options: Any) -> None:
    """Queue dead letters again: JOB_IDS, or those that the options select."""
    _operate_on_dead(_bulk_of(access, Operation.REDRIVE, forget_steps=forget_steps), **options)


@dead.command()
@chosen_options
@force_delete_option
@json_access
def drop(access: Access, /, *, force: bool, **options: Any) -> None:
    """Delete dead letters: JOB_IDS, or those that the options select."""
    ledger = access.ledger()

    def apply(selection: Selection, **more: Any) -> BulkResult:
        act = partial(ledger.drop, force=force)
        return bulk_apply(ledger, selection, lambda job: act(job.id), check=Operation.REDRIVE.check, **more)

    _operate_on_dead(BulkOperation(ledger, "drop", "dropped", apply), **options)


def _operate_on_dead(
    operation: BulkOperation, *, job_ids: Sequence[str], everything: bool, limit: int, dry_run: bool, yes: bool,
    as_json: bool, **asked: Any,
) -> NoReturn:  # fmt: skip
    """Act on each selected dead letter. Raises `click.UsageError` for an empty or contradictory selection."""
    filters = at_times(asked, operation.ledger.read_clock())
    try:
        selection = select_dead_letters(job_ids=job_ids, everything=everything, limit=limit, **filters)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    detail = filters_text(filters, limit, everything=everything)
    _run_bulk(operation, selection, detail, dry_run=dry_run, yes=yes, as_json=as_json)


@dead.command()
@click.argument("job_id")
@click.option("--args", "args_text", help="The new positional arguments: a JSON array, such as '[1, 2]'.")
@click.option("--kwargs", "kwargs_text", help="The new keyword arguments: a JSON object, such as '{\"order_id\": 42}'.")
@json_access
def edit(access: Access, job_id: str, args_text: str | None, kwargs_text: str | None, *, as_json: bool) -> None:
    """Queue a dead letter again with other arguments; without --args or --kwargs these stay as they are.

    This is a new job with everything else of the dead letter, which is deleted. An equal job that exists may answer.
    """
    if args_text is None and kwargs_text is None:
        raise click.UsageError("nothing to change: give --args or --kwargs")
    operator = access.submitting("the signature of its tasks")
    job_id = access.find_id(operator.ledger, job_id)
    with audited(operator.ledger, "edit", job_id, "args kwargs"):
        args = None if args_text is None else parse_arguments(args_text, "args", list)
        kwargs = None if kwargs_text is None else parse_arguments(kwargs_text, "kwargs", dict)
        admission = operator.edit(job_id, args=args, kwargs=kwargs)
    print_job({"outcome": admission.outcome} | job_to_dict(admission.job), as_json=as_json)
