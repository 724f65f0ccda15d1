"""The options that select jobs, for a list and for an operation on many; and such an operation."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from onejob.cli.access import audited
from onejob.cli.printing import clean, echo, json_option, print_json
from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query
from onejob.jobs.timestamps import parse_duration, parse_timestamp
from onejob.ledger.bulk import NO_LIMIT, bulk_apply
from onejob.ledger.search import argument_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from onejob.jobs.model import Job
    from onejob.ledger.bulk import Selection
    from onejob.ledger.ledger import Ledger


class Duration(click.ParamType[float]):
    """A duration such as `90d` or `12h`, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds; fail with the units."""
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Time(click.ParamType["float | timedelta"]):
    """A time with a time zone, as RFC 3339 has it, or a duration before or after now, such as `1h`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | timedelta:
        """Return seconds since the epoch, or the duration; fail with an example of both formats."""
        with suppress(ValueError):
            return timedelta(seconds=parse_duration(str(value)))
        try:
            return parse_timestamp(value)
        except ValueError as error:
            self.fail(f"{error}, nor a duration such as 90m, 1h or 1d", param, ctx)


def seconds_of(at: float | timedelta | None, now: float, sign: int = -1) -> float | None:
    """Return a time in seconds since the epoch: a duration before now, or after it with a positive sign."""
    return now + sign * at.total_seconds() if isinstance(at, timedelta) else at


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that filter jobs."""
    options = (
        click.option(
            "--state", "states", multiple=True, type=click.Choice([str(s) for s in State]), help="May be repeated."
        ),
        click.option("--task", help="Only jobs of this task."),
        click.option("--identity", help="Only jobs of this identity, as `onejob identity` prints it."),
        click.option("--submitter", help="Only jobs that this submitter submitted first."),
        click.option("--queue", help="Only jobs of this queue."),
        click.option("--worker", "node", help="Only jobs whose latest run is, or was, on this worker."),
        click.option(
            "--argument", help="Only jobs with this argument, as name=value, or with this text in an argument."
        ),
        click.option("--since", type=Time(), help="Submitted at this time or later: 2026-01-31T12:00:00Z, or 1h ago."),
        click.option("--until", type=Time(), help="Submitted before this time."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def query_of(now: float, *, states: Sequence[str], argument: str | None, **asked: Any) -> Query:
    """Return the query for the jobs that the options select; `now`: the time that durations end at."""
    times = {name: seconds_of(asked[name], now) for name in ("since", "until")}
    arguments = None if argument is None else argument_text(argument)
    return Query(states=frozenset(State(each) for each in states), arguments=arguments, **asked | times)


ORIGIN = "at the command line"


@dataclass(frozen=True, slots=True)
class BulkOptions:
    """The options of an operation on many jobs that select none."""

    dry_run: bool
    yes: bool
    as_json: bool


@dataclass(frozen=True, slots=True)
class BulkOperation:
    """What is done to each selected job."""

    name: str
    """The operation in the audit log."""
    done: str
    """The participle."""
    act: Callable[[Job], object]
    check: Callable[[Job], object]
    """Raises `OneJobError` for a job that the operation does not apply to."""


def bulk_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every operation on many jobs, which the command gets as `bulk`."""

    @wraps(command)
    def call(*args: Any, dry_run: bool, yes: bool, as_json: bool, **options: Any) -> Any:
        return command(*args, bulk=BulkOptions(dry_run, yes, as_json), **options)

    options = (
        click.option(
            "--limit", default=NO_LIMIT, show_default="all", type=click.IntRange(1), help="Maximum number of jobs."
        ),
        click.option("--dry-run", is_flag=True, help="Print what would be done, and change nothing."),
        click.option("--yes", is_flag=True, help="Do not ask for a confirmation."),
        json_option,
    )
    decorated: Callable[..., Any] = call
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def selected_text(options: Mapping[str, Any]) -> str:
    """Return the options that were given, for the audit log."""
    return " ".join(f"{name}={value}" for name, value in options.items() if value and value != NO_LIMIT)


def run_bulk(
    ledger: Ledger, operation: BulkOperation, selection: Selection, options: BulkOptions, detail: str
) -> NoReturn:
    """Act on each selected job, print the result, and exit: with 1 when a job was refused.

    For the jobs of a query it asks first, with their number, unless `--yes`. A dry run is not recorded in the audit
    log, which otherwise has `detail`.
    """
    dry_run, act, check = options.dry_run, operation.act, operation.check
    if selection.query is not None and not (options.yes or dry_run):
        count = len(bulk_apply(ledger, selection, check, check=check, dry_run=True).done)
        what = f"{count} {'job' if count == 1 else 'jobs'} will be {operation.done}"
        click.confirm(f"{what}. Continue?", abort=True, err=True)
    if dry_run:
        result = bulk_apply(ledger, selection, act, check=check, dry_run=True)
    else:
        with audited(ledger, operation.name, " ".join(selection.job_ids), detail) as attempt:
            result = bulk_apply(ledger, selection, act, check=check)
            attempt.outcome = f"{len(result.done)} done, {len(result.refused)} refused"
    more = result.next is not None
    if options.as_json:
        print_json({"dry_run": dry_run, "done": result.done, "refused": result.refused, "more": more})
    else:
        for line in (*result.done, *result.refused.values()):
            echo(clean(line))
        would, rest = "would be " if dry_run else "", "; more jobs match" if more else ""
        echo(f"{len(result.done)} {would}{operation.done}, {len(result.refused)} refused{rest}")
    raise SystemExit(1 if result.refused else 0)
