"""The selections of dead letters: jobs that failed for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query
from onejob.ledger.bulk import NO_LIMIT, Selection

if TYPE_CHECKING:
    from collections.abc import Sequence


def dead_letters(task: str | None, error: str | None, limit: int = NO_LIMIT) -> Query:
    """Return the query for dead letters, newest first; `error` is a substring of the reason."""
    return Query(states=frozenset({State.FAILED}), task=task, reason=error, limit=limit)


def select_dead_letters(
    *,
    job_ids: Sequence[str] = (),
    task: str | None = None,
    error: str | None = None,
    everything: bool = False,
    limit: int = NO_LIMIT,
) -> Selection:
    """Return the selection of dead letters by id or by a filter, or with `everything` of all, up to `limit`.

    Raises `ValueError` unless there are either ids or a filter.
    """
    has_filter = bool(task or error or everything)
    if not job_ids and not has_filter:
        raise ValueError("nothing selected: give job ids, a task, a part of the error, or select everything")
    return Selection(job_ids=job_ids, query=dead_letters(task, error, limit) if has_filter else None)
