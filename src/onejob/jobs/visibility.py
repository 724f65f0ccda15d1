"""Which jobs a reader sees. All other jobs look to it as if they did not exist."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.jobs.model import Job
    from onejob.jobs.records import Query


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which jobs a reader sees: those that fulfil each condition that is not None."""

    submitter: str | None = None
    """Only the jobs of this submitter."""
    tasks: frozenset[str] | None = None
    """Only the jobs of these tasks."""
    predicate: Callable[[Job], bool] | None = None
    """Only the jobs for which this returns True."""

    @property
    def limited(self) -> bool:
        """Whether there may be jobs that the reader does not see."""
        return (self.submitter, self.tasks, self.predicate) != (None, None, None)

    def includes(self, job: Job) -> bool:
        """Return whether the reader sees a job."""
        return (
            (self.submitter is None or job.submitter == self.submitter)
            and (self.tasks is None or job.task in self.tasks)
            and (self.predicate is None or self.predicate(job))
        )

    def narrow(self, query: Query) -> Query | None:
        """Return a query for those of its jobs that the reader sees, except for `predicate`; None: it sees none.

        `predicate` gets whole jobs, so with one the query is not light.
        """
        if self.submitter is not None and query.submitter not in {None, self.submitter}:
            return None
        if self.tasks is not None and query.task is not None and query.task not in self.tasks:
            return None
        return replace(
            query,
            submitter=query.submitter if self.submitter is None else self.submitter,
            tasks=query.tasks
            if self.tasks is None
            else self.tasks & (self.tasks if query.tasks is None else query.tasks),
            light=query.light and self.predicate is None,
        )


EVERYTHING = Visibility()
