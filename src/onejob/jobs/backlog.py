"""The backlog of a ledger: how many jobs wait for a run, or run, by task, queue and state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Any

from onejob.jobs.lifecycle import State
from onejob.jobs.route import Route


@dataclass(frozen=True, slots=True)
class Backlog:
    """The jobs of a task that wait for a run, or run, in one queue and one state."""

    task: str
    queue: str
    """The queue of the jobs' route; "" if the route was not resolved."""
    state: State
    count: int
    due: int
    """How many of the jobs wait, and may run by now."""
    oldest_run_at: float
    """The earliest `run_at` of these jobs."""


def group_backlog(rows: Iterable[Iterable[Any]]) -> list[Backlog]:
    """Return the backlog, sorted, of rows of task, route, state, count, due and oldest `run_at`.

    Several rows may have the same task, queue and state.
    """
    found: dict[tuple[str, str, State], tuple[int, int, float]] = {}
    for task, route, state, count, due, oldest in rows:
        group = (task, Route.decode(route).queue, State(state))
        total, total_due, earliest = found.get(group, (0, 0, inf))
        found[group] = (total + int(count), total_due + int(due), min(earliest, float(oldest)))
    return [Backlog(*group, *numbers) for group, numbers in sorted(found.items())]
