"""Bulk operations on dead letters: a selection, and the result for each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onejob.errors import NoDeadLetterError, OneJobError, StoreUnavailableError
from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from onejob.jobs.model import Job
    from onejob.ledger.reader import JobReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which dead letters: those with some ids, or those that match a filter, newest first."""

    job_ids: Sequence[str] = ()
    task: str | None = None
    error: str | None = None
    """A substring of the reason."""
    everything: bool = False
    """All of them, without a filter."""
    limit: int = 100
    """How many dead letters a filter selects at most."""

    def __post_init__(self) -> None:
        """Raise `ValueError` unless there are either ids or a filter: nothing is selected by accident."""
        filters = bool(self.task or self.error or self.everything)
        if self.job_ids and filters:
            raise ValueError("give job ids or a filter, not both")
        if not self.job_ids and not filters:
            raise ValueError("nothing selected: give job ids, a task, a part of the error, or select everything")


@dataclass(frozen=True, slots=True)
class BulkResult:
    """The results of a bulk operation."""

    done: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """The error messages, by id."""


def dead_letters(task: str | None, error: str | None, limit: int) -> Query:
    """Return the query for dead letters, newest first; `error` is a substring of the reason."""
    return Query(states=frozenset({State.FAILED}), task=task, reason=error, limit=limit)


def bulk_apply(
    ledger: JobReader, selection: Selection, action: Callable[[Job], object], *, dry_run: bool = False
) -> BulkResult:
    """Apply `action` to each selected dead letter; a refused one does not stop the others.

    `dry_run`: only select. Raises `StoreUnavailableError`, after which the whole can be repeated.
    """
    result = BulkResult()
    for job_id, job in _select(ledger, selection):
        try:
            job = job or ledger.get(job_id)  # noqa: PLW2901 - raises the reason why it does not exist
            if job.state is not State.FAILED:
                raise NoDeadLetterError(job_id, job.state)
            if not dry_run:
                action(job)
        except StoreUnavailableError:
            raise
        except OneJobError as error:
            result.refused[job_id] = str(error)
        else:
            result.done.append(job_id)
    return result


def _select(ledger: JobReader, selection: Selection) -> Iterator[tuple[str, Job | None]]:
    if selection.job_ids:
        found = ledger.get_many(selection.job_ids)
        yield from ((job_id, found.get(job_id)) for job_id in dict.fromkeys(selection.job_ids))
    else:
        yield from (
            (job.id, job) for job in ledger.find(dead_letters(selection.task, selection.error, selection.limit))
        )
