"""The states whose jobs every store finds by an index, and which lists need no other filter than an index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import State

if TYPE_CHECKING:
    from onejob.jobs.records import Query

INDEXED_STATES = (State.CANCELED, State.FAILED, State.RETRYING)
"""The states that have an index in the order of `created_at`. Running jobs are found by their leases."""


def indexed_state(query: Query) -> State | None:
    """Return the state of all jobs of a query if that has an index, and None otherwise."""
    (state,) = query.states if len(query.states) == 1 else (None,)
    return state if state is State.RUNNING or state in INDEXED_STATES else None


def is_indexed(query: Query, *, of_submitter: bool) -> bool:
    """Return whether an index has the jobs of a query and no others. `of_submitter`: there is one of submitters."""
    filters = query.filters
    if of_submitter and query.submitter:
        return filters == {"submitter"}
    return not filters or (filters == {"states"} and indexed_state(query) is not None)
