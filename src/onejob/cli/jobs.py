"""`jobs`, `why` and `identity`: looking at jobs, canceling them, and understanding them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from onejob.celery.options import options_of
from onejob.cli.access import Access, access
from onejob.cli.printing import job_as_json, json_option, print_counts, print_job, print_jobs, print_json
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Query
from onejob.jobs.timestamps import parse_timestamp
from onejob.ledger.explain import explain

if TYPE_CHECKING:
    from collections.abc import Sequence


class Moment(click.ParamType[float]):
    """A moment with a time zone."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds since the epoch, or tell how a moment is written."""
        try:
            return parse_timestamp(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.group()
def jobs() -> None:
    """List, show and cancel jobs."""


@jobs.command("list")
@click.option("--state", "states", multiple=True, type=click.Choice([str(s) for s in State]), help="May be repeated.")
@click.option("--task", help="Name of a task.")
@click.option("--identity", help="Identity, as `onejob identity` prints it.")
@click.option("--submitter", help="Who asked for them first, as the caller calls itself.")
@click.option("--since", type=Moment(), help="Submitted at this moment or later, e.g. 2026-01-31T12:00:00Z.")
@click.option("--until", type=Moment(), help="Submitted before this moment.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000))
@click.option("--offset", default=0, type=click.IntRange(0, 1_000_000), help="Pass over so many, the newest.")
@click.option("--count", is_flag=True, help="Print how many there are, by state, instead of listing them.")
@json_option
@access
def list_jobs(access: Access, /, states: Sequence[str], *, count: bool, as_json: bool, **asked: Any) -> None:
    """List jobs, newest first."""
    query = Query(states=frozenset(State(s) for s in states), **asked)
    if count:
        print_counts(access.ledger().counts(query), as_json=as_json)
    else:
        print_jobs(access.ledger().find(query), as_json=as_json)


@jobs.command()
@click.argument("job_id")
@json_option
@access
def show(access: Access, job_id: str, *, as_json: bool) -> None:
    """Show one job."""
    print_job(access.ledger().get(job_id), as_json=as_json)


@jobs.command()
@click.argument("job_id")
@click.option("--force", is_flag=True, help="End a running job at once instead of asking it to stop.")
@json_option
@access
def cancel(access: Access, job_id: str, *, force: bool, as_json: bool) -> None:
    """Cancel a job: at once before it runs, by asking it to stop otherwise."""
    job = access.ledger().cancel(job_id, force=force, reason="canceled at the command line")
    if force and job.state is State.RUNNING:
        access.broadcast_cancel(job_id)
    print_job(job, as_json=as_json)


# --- understanding --------------------------------------------------------------------------------------------------


@click.command()
@click.argument("job_id")
@json_option
@access
def why(access: Access, job_id: str, *, as_json: bool) -> None:
    """Tell the history of a job in sentences."""
    ledger = access.ledger()
    job, history, duplicates = ledger.get(job_id), ledger.history(job_id), ledger.duplicates(job_id)
    if as_json:
        lists = {"history": [asdict(entry) for entry in history], "duplicates": [asdict(each) for each in duplicates]}
        print_json({"job": job_as_json(job)} | lists)
        return
    for sentence in explain(job, history, duplicates):
        click.echo(sentence)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("task")
@click.argument("args", nargs=-1)
@json_option
@access
def identity(access: Access, task: str, args: Sequence[str], *, as_json: bool) -> None:
    """Print what is hashed to make the identity of a call, and the identity.

    ARGS are JSON values or plain text; name=value gives a keyword argument.
    """
    identifier = options_of(access.task(task)).identifier
    positional, keywords = _parse(args)
    text, result = identifier.describe(positional, keywords), identifier.identity(positional, keywords)
    if as_json:
        print_json({"hashed": text, "identity": result})
    else:
        click.echo(f"hashed:   {text}\nidentity: {result}")


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
