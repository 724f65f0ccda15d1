"""Bulk operations: a selection of jobs, processed in bounded portions, and the result for each job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from onejob.errors import OneJobError, StoreUnavailableError, StoreUnusableError
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.ledger.reader import JobReader
from onejob.ledger.search import PAGE_SIZE, read_window, windows

NO_LIMIT = sys.maxsize
"""The limit of a selection that has all matching jobs."""
NOT_REACHED = "it was not reached in time: repeat the request with this id"
"""The reason why a job that was selected by its id was not processed before the portion ended."""


class Position(NamedTuple):
    """The end of a portion: `before` and `before_id` of the query for the next portion.

    It is the job that was processed last, or without an id the time back to which all jobs were searched.
    """

    created_at: float
    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A selection of jobs: by their ids, in the given order, or by a query, newest first.

    Jobs that are submitted later do not match a query with `until`. The query's `limit` is the number of jobs of a
    portion; `before`, with `before_id`, is its beginning; `offset` and `light` are ignored.
    """

    job_ids: Sequence[str] = ()
    query: Query | None = None
    matches: Callable[[JobRow], bool] | None = None
    """A function that selects among the jobs of a query; it gets them without their `LARGE_FIELDS`."""

    def __post_init__(self) -> None:
        """Raise `ValueError` unless there are either ids or a query: nothing is selected by accident."""
        if self.job_ids and self.query is not None:
            raise ValueError("give job ids or a filter, not both")
        if not self.job_ids and self.query is None:
            raise ValueError("nothing selected: give job ids or a filter")


@dataclass(slots=True)
class BulkResult:
    """The results of one portion of a bulk operation."""

    done: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """The error messages by the ids of the refused jobs."""
    next: Position | None = None
    """The beginning of the next portion of a query; None after the last portion."""


def bulk_apply(
    ledger: JobReader, selection: Selection, action: Callable[[JobRow], object], *,
    check: Callable[[JobRow], object] | None = None, dry_run: bool = False, is_over: Callable[[], bool] | None = None,
) -> BulkResult:  # fmt: skip
    """Apply `action` to each selected job; an `OneJobError` refuses its job, and does not stop the others.

    `action` gets jobs of a query without their `LARGE_FIELDS`, and any job may have changed since it was read.
    `check` is called before it, also in a `dry_run`, which only selects. `is_over`: whether the portion ends,
    asked before each job but the first, and after each window of `search`; those of the ids that are left are refused
    as `NOT_REACHED`. Each job is processed once, whatever is submitted meanwhile.

    Raises `StoreUnavailableError` and `StoreUnusableError`, after which the whole can be repeated.
    """
    result = BulkResult()
    for job_id, found in _read_portion(ledger, selection, result, is_over):
        try:
            job = found or ledger.get(job_id)  # `get` raises the reason why the job does not exist
            if check is not None:
                check(job)
            if not dry_run:
                action(job)
        except (StoreUnavailableError, StoreUnusableError):
            raise
        except OneJobError as error:
            result.refused[job_id] = str(error)
        else:
            result.done.append(job_id)
    return result


def _read_portion(
    ledger: JobReader, selection: Selection, result: BulkResult, is_over: Callable[[], bool] | None
) -> Iterator[tuple[str, JobRow | None]]:
    """Yield the ids of one portion, each with its job or None; set `next` of the result at its end."""
    if selection.query is None:
        for job_id, found in _read_by_id(ledger, selection.job_ids):
            if (result.done or result.refused) and is_over is not None and is_over():
                result.refused[job_id] = NOT_REACHED
            else:
                yield job_id, found
        return
    count, limit = 0, selection.query.limit
    for window, since in windows(ledger, selection.query):
        for job in read_window(ledger, window, min(limit + 1, PAGE_SIZE)):
            if result.next is not None and (count >= limit or (is_over is not None and is_over())):
                return
            result.next = Position(job.created_at, job.id)
            if selection.matches is None or selection.matches(job):
                count += 1
                yield job.id, job
        if since is not None and is_over is not None and is_over():
            result.next = Position(since, "")
            return
    result.next = None


def _read_by_id(ledger: JobReader, job_ids: Sequence[str]) -> Iterator[tuple[str, JobRow | None]]:
    ids = list(dict.fromkeys(job_ids))
    for page in (ids[start : start + PAGE_SIZE] for start in range(0, len(ids), PAGE_SIZE)):
        found = ledger.get_many(page)
        yield from ((job_id, found.get(job_id)) for job_id in page)
