"""The values of all metrics at one time: the totals of all processes, and gauges that are read from the ledger."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query
from onejob.observability.metrics import BOUNDS, OTHER, key_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onejob.ledger.ledger import Ledger
    from onejob.observability.metrics import Key

OLDEST_OF = 100
"""Of how many jobs of a task the oldest is looked for: those that a sweep handles next."""


def read_metrics(ledger: Ledger) -> dict[str, dict[Key, float]]:
    """Return the values by series, and by key; a series without values may be missing. Reads the store."""
    values = _group_by_series(ledger.store.totals())
    jobs, workers = ledger.counts(Query()), ledger.store.workers()
    values["jobs"] = {("jobs", state.value): float(count) for state, count in jobs.items()}
    values["dead_letters"] = {("dead_letters",): float(jobs[State.FAILED])}
    values["workers"] = {("workers",): float(len(workers))}
    counted = {key[1] for key in values["submissions_total"]} - {OTHER}
    tasks = counted.union(*(worker.tasks for worker in workers))
    values["oldest_due_seconds"] = {("oldest_due_seconds", task): age for task, age in _oldest(ledger, tasks).items()}
    return values


def accumulate(buckets: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return cumulative buckets, as Prometheus requires, from separate ones."""
    total = 0.0
    return [(bound, total := total + buckets.get(bound, 0.0)) for bound in BOUNDS]


def _oldest(ledger: Ledger, tasks: set[str]) -> dict[str, float]:
    """Return by task for how many seconds the oldest of its waiting jobs has been due; 0 without one."""
    ages = dict.fromkeys(sorted(tasks), 0.0)
    backlog, now = ledger.store.backlog(tasks=frozenset(tasks), limit=OLDEST_OF), ledger.read_clock()
    for group in backlog:
        ages[group.task] = max(ages.get(group.task, 0.0), now - group.oldest_run_at)
    return ages


def _group_by_series(totals: Mapping[str, float]) -> defaultdict[str, dict[Key, float]]:
    grouped: defaultdict[str, dict[Key, float]] = defaultdict(dict)
    for name, total in sorted(totals.items()):
        key = key_of(name)
        if key is not None:
            grouped[key[0]][key] = total
    return grouped
