"""`jobs`, `why` and `identity`: list, show, cancel and explain jobs."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from onejob.celery.options import options_of
from onejob.cli.access import Access, access
from onejob.cli.audit import audited
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
from onejob.jobs.lifecycle import State
from onejob.jobs.public_view import job_to_dict
from onejob.jobs.records import Query
from onejob.jobs.timestamps import format_timestamp, local_text, parse_duration, parse_timestamp
from onejob.ledger.explain import explain
from onejob.ledger.search import argument_text
from onejob.ledger.stuck import list_stuck

if TYPE_CHECKING:
    from collections.abc import Sequence


class Time(click.ParamType["float | timedelta"]):
    """A time with a time zone, as RFC 3339 has it, or a duration before now, such as `1h`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | timedelta:
        """Return seconds since the epoch, or the duration; fail with an example of both formats."""
        with suppress(ValueError):
            return timedelta(seconds=parse_duration(value))
        try:
            return parse_timestamp(value)
        except ValueError as error:
            self.fail(f"{error}, and no duration, such as 90s, 30m, 1h or 7d", param, ctx)


@click.group()
def jobs() -> None:
    """List, show and cancel jobs."""


@jobs.command("list")
@click.option("--state", "states", multiple=True, type=click.Choice([str(s) for s in State]), help="May be repeated.")
@click.option("--task", help="Only jobs of this task.")
@click.option("--identity", help="Only jobs of this identity, as `onejob identity` prints it.")
@click.option("--submitter", help="Only jobs that this submitter submitted first.")
@click.option("--queue", help="Only jobs of this queue.")
@click.option("--worker", "node", help="Only jobs whose latest run is, or was, on this worker.")
@click.option("--argument", help="Only jobs with this argument, as name=value, or with this text in an argument.")
@click.option("--since", type=Time(), help="Submitted at this time or later: 2026-01-31T12:00:00Z, or 1h ago.")
@click.option("--until", type=Time(), help="Submitted before this time.")
@click.option("--stuck", is_flag=True, help="Only jobs that make no progress, with the reason.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000))
@click.option("--offset", default=0, type=click.IntRange(0, 1_000_000), help="Number of the newest jobs to skip.")
@click.option("--count", is_flag=True, help="Print the number of jobs by state instead of a list.")
@json_option
@access
def list_jobs(
    access: Access,
    /,
    states: Sequence[str],
    *,
    argument: str | None,
    stuck: bool,
    count: bool,
    as_json: bool,
    **asked: Any,
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
    times = {name: now - at.total_seconds() for name, at in asked.items() if isinstance(at, timedelta)}
    arguments = None if argument is None else argument_text(argument)
    query = Query(states=frozenset(State(s) for s in states), arguments=arguments, **asked | times)
    if count:
        print_counts(ledger.counts(query), as_json=as_json)
    elif stuck:
        print_job_list(list_stuck(ledger, query), now, as_json=as_json)
    else:
        print_job_list(ledger.find(query), now, as_json=as_json)


@jobs.command()
@click.argument("job_id")
@click.option("--all", "everything", is_flag=True, help="Also show the arguments and the internal columns.")
@json_option
@access
def show(access: Access, job_id: str, *, everything: bool, as_json: bool) -> None:
    """Show one job."""
    job = access.ledger().get(job_id)
    print_job(columns_of(job) if everything else job_to_dict(job), as_json=as_json)


@jobs.command()
@click.argument("job_id")
@click.option("--force", is_flag=True, help="End a running job at once, not at its next step.")
@json_option
@access
def cancel(access: Access, job_id: str, *, force: bool, as_json: bool) -> None:
    """Cancel a job. One that runs stops at its next step or progress call."""
    ledger = access.ledger()
    with audited(ledger, "cancel", job_id, "forced" if force else ""):
        job = ledger.cancel(job_id, force=force, reason="canceled at the command line")
    if force and job.state is State.RUNNING:
        access.broadcast_cancel(job_id)
    print_job(job_to_dict(job), as_json=as_json)


# --- explaining -----------------------------------------------------------------------------------------------------


@click.command()
@click.argument("job_id")
@json_option
@access
def why(access: Access, job_id: str, *, as_json: bool) -> None:
    """Explain the state of a job: what happened, what it waits for, and what happens next."""
    format_time = format_timestamp if as_json else local_text
    job, history, duplicates, stuck, sentences = explain(access.ledger(), job_id, format_time=format_time)
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
@json_option
@access
def identity(access: Access, task: str, args: Sequence[str], *, as_json: bool) -> None:
    """Print the identity of a call, and the text whose hash it is.

    ARGS are JSON values or plain text; name=value is a keyword argument.
    """
    identifier = options_of(access.task(task)).identifier
    positional, keywords = _parse(args)
    text, result = identifier.describe(positional, keywords), identifier.identity(positional, keywords)
    if as_json:
        print_json({"hashed": text, "identity": result})
    else:
        echo(f"hashed:   {text}\nidentity: {result}")


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
