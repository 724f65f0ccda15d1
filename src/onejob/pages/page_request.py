"""The parameters of a page's URL, read and checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo

from starlette.datastructures import QueryParams

from onejob.api.problems import Problem
from onejob.jobs.lifecycle import State
from onejob.jobs.timestamps import parse_time, seconds_of

TEXT_LIMIT = 500
"""Characters of a parameter at most."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The request for a page: the parameters of its URL and its path, the store's clock, the viewer's zone.

    Each method returns a parameter, and raises `Problem` for an invalid value.
    """

    parameters: QueryParams
    now: float
    path: Mapping[str, str] = field(default_factory=dict)
    zone: tzinfo = UTC

    def text(self, name: str) -> str | None:
        """Return a text, None without one."""
        value = self.parameters.get(name, "").strip()
        if len(value) > TEXT_LIMIT or "\x00" in value:
            raise _invalid(name, f"a text of at most {TEXT_LIMIT} characters")
        return value or None

    def states(self, name: str) -> list[State]:
        """Return the states in all values of a parameter."""
        try:
            return sorted({State(text) for text in self.parameters.getlist(name)[:100] if text})
        except ValueError:
            raise _invalid(name, f"one of {', '.join(State)}") from None

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of the choices, the first one without a value."""
        value = self.parameters.get(name) or choices[0]
        if value not in choices:
            raise _invalid(name, f"one of {', '.join(choices)}")
        return value

    def number(self, name: str) -> int | None:
        """Return a positive integer, None without one."""
        value = self.parameters.get(name, "")
        if value and not (value.isdecimal() and 0 < len(value) < 19):  # noqa: PLR2004 - fits into 64 bits
            raise _invalid(name, "a positive number")
        return int(value) if value else None

    def at(self, name: str) -> float | None:
        """Return a time: RFC 3339, or a duration before now, such as 1h."""
        value = self.parameters.get(name, "").strip()
        try:
            return seconds_of(parse_time(value), self.now) if value else None
        except ValueError:
            raise _invalid(name, "a time such as 2026-01-31T12:00:00Z, or a duration such as 90m, 1h or 7d") from None


def _invalid(name: str, expected: str) -> Problem:
    return Problem("invalid-request", f"the parameter {name} must be {expected}")
