"""What deduplication has saved: how many submissions were duplicates, and how long their runs would have taken."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import State
from onejob.jobs.model import Outcome
from onejob.jobs.records import Query

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.ledger.reader import JobReader
    from onejob.stores.protocol import GroupBy

SAVED = frozenset({Outcome.ATTACHED, Outcome.REPLAYED, Outcome.REPLACED})
"""The outcomes of duplicates that would have run without deduplication. One that was queued next did run."""
SAMPLE = 100
"""How many completed jobs of a task its mean run time is computed from."""
SEARCHED = 10_000
"""Among how many of the newest jobs of all tasks these are found: a task may have duplicates, and no jobs any more."""


@dataclass(slots=True)
class DuplicateSummary:
    """The duplicates of one group by outcome, and what they have saved."""

    name: str
    counts: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    runs: int = 0
    """How many more runs there would have been without deduplication."""
    seconds: float | None = None
    """How long these would have taken, at the mean run time of each task; None if no task has completed jobs."""
    tasks: dict[str, int] = field(default_factory=dict)
    """Its duplicates by task, without redelivered messages."""
    redelivered: int = 0
    """How many messages came again for a job that was running or had ended. They save nothing."""


def summarize_duplicates(
    ledger: JobReader, by: GroupBy, *, limit: int = 20, mean_of: Callable[[str], float | None] | None = None
) -> list[DuplicateSummary]:
    """Return the summaries of the `limit` groups with the most duplicates, largest first.

    `mean_of`: returns the mean run time of a task in seconds, as `mean_run` does, which is the default.
    """
    summaries: dict[str, DuplicateSummary] = {}
    mean_of = mean_of or means_of(ledger)
    for group in ledger.duplicate_counts(by, limit=limit):
        summary = summaries.setdefault(group.name, DuplicateSummary(group.name))
        if group.outcome is None:
            summary.redelivered += group.count
            continue
        summary.counts[group.outcome] += group.count
        summary.tasks[group.task] = summary.tasks.get(group.task, 0) + group.count
        if group.outcome not in SAVED:
            continue
        summary.runs += group.count
        seconds = mean_of(group.task)
        if seconds is not None:
            summary.seconds = (summary.seconds or 0.0) + group.count * seconds
    return list(summaries.values())


def means_of(ledger: JobReader) -> Callable[[str], float | None]:
    """Return `mean_run` for one ledger, which reads the jobs of each task once."""
    return cache(partial(mean_run, ledger))


def mean_run(ledger: JobReader, task: str) -> float | None:
    """Return the mean seconds of the last runs of a task's newest completed jobs; None if there are none."""
    query = Query(task=task, states=frozenset({State.COMPLETED}), limit=SAMPLE, light=True)
    jobs = ledger.find(replace(query, since=ledger.edge(query, skip=SEARCHED)))
    seconds = [job.run_seconds for job in jobs if job.run_seconds is not None]
    return sum(seconds) / len(seconds) if seconds else None
