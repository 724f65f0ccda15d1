"""The filter of the list of jobs, as the parameters of its URL and as a query of the ledger."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from onejob.api.problems import Problem
from onejob.api.response_models import Cursor, decode_cursor
from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query
from onejob.jobs.timestamps import to_datetime
from onejob.ledger.search import argument_text

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from onejob.pages.site import Parameters, Site

PAGE_SIZES = ("50", "20", "100", "200")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs are listed; None or empty for any."""

    state: tuple[State, ...] = ()
    task: str | None = None
    queue: str | None = None
    worker: str | None = None
    submitter: str | None = None
    identity: str | None = None
    argument: str | None = None
    """A part of the arguments, or name=value."""
    reason: str | None = None
    """A part of the reason or error, case-insensitive."""
    since: float | None = None
    until: float | None = None

    @classmethod
    def parse(cls, parameters: Parameters, site: Site) -> Self:
        """Read the filter of a URL. Raises `Problem` for an invalid value, and for one that finds what is redacted."""
        try:
            states = tuple(sorted({State(text) for text in parameters.texts("state")}))
        except ValueError:
            names = ", ".join(State)
            raise Problem("invalid-request", f"the parameter state must be one of {names}") from None
        texts = {name: parameters.text(name) for name in TEXTS}
        if texts["argument"] or texts["reason"] or texts["identity"]:
            site.check_values_shown("searching them by argument, reason or identity")
        return cls(state=states, since=parameters.at("since"), until=parameters.at("until"), **texts)

    def query(self, *, limit: int, cursor: str | None = None, light: bool = True) -> Query:
        """Return the query for a page of jobs that begins at a cursor. Raises `Problem` for an invalid cursor."""
        argument = None if self.argument is None else argument_text(self.argument)
        return Query(
            states=frozenset(self.state), task=self.task, queue=self.queue, node=self.worker, submitter=self.submitter,
            identity=self.identity, arguments=argument, reason=self.reason, since=self.since, until=self.until,
            limit=limit, light=light, **decode_cursor(cursor),
        )  # fmt: skip

    @property
    def is_empty(self) -> bool:
        """Whether it matches every job."""
        return self == type(self)()

    def to_dict(self) -> dict[str, Any]:
        """Return its fields."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return values | {name: None if (at := values[name]) is None else to_datetime(at) for name in ("since", "until")}


TEXTS = ("task", "queue", "worker", "submitter", "identity", "argument", "reason")
"""The fields that are texts."""


def cursor_after(job: Job) -> str:
    """Return the cursor of the page after a job."""
    return Cursor(job.created_at, job.id).encode()


def cursor_before(at: float) -> str:
    """Return the cursor of the jobs that were created before a time."""
    return Cursor(at, "").encode()
