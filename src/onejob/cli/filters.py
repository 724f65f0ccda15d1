"""The options that filter jobs, the same for a list and for a bulk operation."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from onejob.cli.completions import QUEUE, TASK, WORKER
from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query
from onejob.jobs.timestamps import parse_duration, parse_timestamp
from onejob.ledger.search import argument_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that filter jobs."""
    options = (
        click.option(
            "--state", "states", multiple=True, type=click.Choice([str(s) for s in State]), help="May be repeated."
        ),
        click.option("--task", type=TASK, help="Only jobs of this task."),
        click.option("--identity", help="Only jobs of this identity, as `onejob identity` prints it."),
        click.option("--submitter", help="Only jobs that this submitter submitted first."),
        click.option("--queue", type=QUEUE, help="Only jobs of this queue."),
        click.option("--worker", "node", type=WORKER, help="Only jobs whose latest run is, or was, on this worker."),
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
    times = {name: now - at.total_seconds() for name, at in asked.items() if isinstance(at, timedelta)}
    arguments = None if argument is None else argument_text(argument)
    return Query(states=frozenset(State(each) for each in states), arguments=arguments, **asked | times)
