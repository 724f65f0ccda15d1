"""Parameters that are times or durations."""

from __future__ import annotations

import time
from typing import Any

import click

from onejob.jobs.timestamps import parse_duration, parse_timestamp


class Duration(click.ParamType[float]):
    """A duration such as `90d` or `12h`, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds; fail with the units."""
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Time(click.ParamType[float]):
    """A time with a time zone, or a duration: before now, or with `future` after now."""

    name = "time"

    def __init__(self, *, future: bool = False) -> None:
        self._sign = 1.0 if future else -1.0

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds since the epoch; fail with an example of both formats."""
        try:
            return time.time() + self._sign * parse_duration(str(value))
        except ValueError:
            pass
        try:
            return parse_timestamp(value)
        except ValueError as error:
            self.fail(f"{error}, nor a duration such as 90m or 1d", param, ctx)
