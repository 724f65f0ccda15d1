"""The options that several commands have: times, filters of jobs, and what belongs to an operation on many."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query
from onejob.jobs.timestamps import parse_duration, parse_timestamp
from onejob.ledger.search import argument_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def together(*options: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return one decorator that adds several options, in this order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


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


STATES = [state.value for state in State]
filter_options = together(
    click.option(
        "--state", "states", multiple=True, type=click.Choice([state.value for state in State]), help="May be repeated."
    ),
    click.option("--task", help="Only jobs of this task."),
    click.option("--identity", help="Only jobs of this identity, as `onejob identity` prints it."),
    click.option("--submitter", help="Only jobs that this submitter submitted first."),
    click.option("--tag", help="Only jobs that have this tag."),
    click.option("--queue", help="Only jobs of this queue."),
    click.option("--worker", "node", help="Only jobs whose latest run is, or was, on this worker."),
    click.option("--argument", help="Only jobs with this argument, as name=value, or with this text in an argument."),
    click.option("--since", type=Time(), help="Submitted at this time or later: 2026-01-31T12:00:00Z, or 1h ago."),
    click.option("--until", type=Time(), help="Submitted before this time."),
)
"""The options that filter jobs; `query_of` makes a query of them."""


def query_of(now: float, *, states: Sequence[str], argument: str | None, **asked: Any) -> Query:
    """Return the query for the jobs that the options select; `now`: the time that durations end at."""
    times = {name: seconds_of(asked[name], now) for name in ("since", "until")}
    arguments = None if argument is None else argument_text(argument)
    return Query(states=frozenset(State(each) for each in states), arguments=arguments, **asked | times)
