"""The parameters of a URL, and the filter of the list of jobs among them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from onejob.api.problems import Problem
from onejob.api.response_models import Cursor, decode_cursor
from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query
from onejob.jobs.timestamps import parse_duration, parse_timestamp
from onejob.ledger.search import argument_text
from onejob.pages.context import fields_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import tzinfo

    from starlette.datastructures import QueryParams

    from onejob.jobs.model import Job
    from onejob.pages.context import Context

TEXT_LIMIT = 500
"""Characters of a parameter at most."""
PAGE_SIZES = ("50", "20", "100", "200")


class Parameters:
    """The parameters of a URL. Each method raises `Problem` for an invalid value."""

    def __init__(self, values: QueryParams, now: float) -> None:
        self._values = values
        self._now = now

    def text(self, name: str) -> str | None:
        """Return a text, None without one."""
        value = self._values.get(name, "").strip()
        if len(value) > TEXT_LIMIT or "\x00" in value:
            raise _invalid(name, f"a text of at most {TEXT_LIMIT} characters")
        return value or None

    def texts(self, name: str) -> list[str]:
        """Return all values of a parameter."""
        return [value for value in self._values.getlist(name)[:100] if value]

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of the choices, the first one without a value."""
        value = self._values.get(name) or choices[0]
        if value not in choices:
            raise _invalid(name, f"one of {', '.join(choices)}")
        return value

    def number(self, name: str) -> int | None:
        """Return a positive integer, None without one."""
        value = self._values.get(name, "")
        if value and not (value.isdecimal() and 0 < len(value) < 19):  # noqa: PLR2004 - fits into 64 bits
            raise _invalid(name, "a positive number")
        return int(value) if value else None

    def at(self, name: str) -> float | None:
        """Return a time: RFC 3339, or a duration before now, such as 1h."""
        value = self._values.get(name, "").strip()
        if not value:
            return None
        with suppress(ValueError):
            return self._now - parse_duration(value)
        try:
            return parse_timestamp(value)
        except ValueError:
            raise _invalid(name, "a time such as 2026-01-31T12:00:00Z, or a duration such as 90m, 1h or 7d") from None


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What a page is built from: the parameters of its URL and its path, the store's clock, the viewer's zone."""

    parameters: Parameters
    path: Mapping[str, str]
    now: float
    zone: tzinfo


def _invalid(name: str, expected: str) -> Problem:
    return Problem("invalid-request", f"the parameter {name} must be {expected}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs are listed; None or empty for any."""

    state: tuple[State, ...] = ()
    task: str | None = None
    queue: str | None = None
    worker: str | None = None
    submitter: str | None = None
    tag: str | None = None
    identity: str | None = None
    argument: str | None = None
    """A part of the arguments, or name=value."""
    reason: str | None = None
    """A part of the reason or error, case-insensitive."""
    since: float | None = None
    until: float | None = None

    @classmethod
    def parse(cls, parameters: Parameters, context: Context) -> Self:
        """Read the filter of a URL. Raises `Problem` for an invalid value, and for one that finds what is redacted."""
        try:
            states = tuple(sorted({State(text) for text in parameters.texts("state")}))
        except ValueError:
            names = ", ".join(State)
            raise Problem("invalid-request", f"the parameter state must be one of {names}") from None
        texts = {name: parameters.text(name) for name in TEXTS}
        if texts["argument"] or texts["reason"] or texts["identity"]:
            context.check_values_shown("searching them by argument, reason or identity")
        return cls(state=states, since=parameters.at("since"), until=parameters.at("until"), **texts)

    def query(self, *, limit: int, cursor: str | None = None, light: bool = True) -> Query:
        """Return the query for a page of jobs that begins at a cursor. Raises `Problem` for an invalid cursor."""
        argument = None if self.argument is None else argument_text(self.argument)
        return Query(
            states=frozenset(self.state), task=self.task, queue=self.queue, node=self.worker, submitter=self.submitter,
            identity=self.identity, tag=self.tag, arguments=argument, reason=self.reason, since=self.since,
            until=self.until, limit=limit, light=light, **decode_cursor(cursor),
        )  # fmt: skip

    @property
    def is_empty(self) -> bool:
        """Whether it matches every job."""
        return self == type(self)()

    def to_dict(self) -> dict[str, Any]:
        """Return its fields."""
        return fields_of(self)


TEXTS = ("task", "queue", "worker", "submitter", "tag", "identity", "argument", "reason")
"""The fields that are texts."""


def cursor_after(job: Job) -> str:
    """Return the cursor of the page after a job."""
    return Cursor(job.created_at, job.id).encode()


def cursor_before(at: float) -> str:
    """Return the cursor of the jobs that were created before a time."""
    return Cursor(at, "").encode()
