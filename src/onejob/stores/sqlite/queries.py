"""Listing and counting jobs: each statement has variants, of which each uses one index."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from onejob.jobs.lifecycle import State
from onejob.jobs.model import values_of
from onejob.jobs.records import group_backlog
from onejob.stores.state_index import indexed_state

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from onejob.jobs.records import Backlog, Query
    from onejob.stores.sqlite.transaction import Transaction


def find(tx: Transaction, query: Query) -> list[Job]:
    """Return jobs, newest first."""
    return tx.jobs("_".join(["find_light" if query.light else "find", *_narrowed(query)]), **_values(query))


def counts(tx: Transaction, query: Query, limit: int | None) -> dict[State, int]:
    """Return how many jobs match, by state; with `limit` of the newest so many."""
    name = "_".join(["count_jobs" if limit is None else "count_newest", *_narrowed(query)])
    return {State(row["state"]): row["count"] for row in tx.rows(name, **(_values(query) | {"limit": limit}))}


def count_states(tx: Transaction, limit: int) -> dict[State, int]:
    """Return how many jobs are in each state, each up to `limit`."""
    (row,) = tx.rows("count_states", limit=limit)
    return {state: min(max(row[state], 0), limit) for state in State}


def edge(tx: Transaction, query: Query, skip: int) -> float | None:
    """Return when the job was created that is `skip` places after the position of a query."""
    rows = tx.rows("edge", **_values(query), skip=skip)
    return rows[0]["created_at"] if rows else None


def backlog(tx: Transaction, tasks: frozenset[str], limit: int, submitter: str | None) -> list[Backlog]:
    """Return the waiting jobs by task, queue and state."""
    rows = tx.rows("backlog", tasks=names_to_json(tasks), limit=limit, submitter=submitter)
    return group_backlog(row.values() for row in rows)


def names_to_json(names: frozenset[str] | None) -> str | None:
    """Return names as a JSON array."""
    return None if names is None else json.dumps(sorted(names))


def _narrowed(query: Query) -> list[str]:
    """Return the name of the condition by which an index finds the jobs of a query, or nothing."""
    state = indexed_state(query)
    if state is State.RUNNING:
        return ["of_runs"]
    if query.submitter:
        return ["of_submitter"]
    return [] if state is None else ["of_state"]


def _values(query: Query) -> dict[str, Any]:
    lists = {"states": names_to_json(query.states), "tasks": names_to_json(query.tasks)}
    return values_of(query) | lists | {"state": indexed_state(query)}
