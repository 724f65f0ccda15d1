"""What the guard has saved: how often submissions met a job instead of starting a run, and what the runs would cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import State
from onejob.jobs.model import Outcome, Query

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import GroupBy

SAMPLE = 100
"""From how many completed jobs of a task the length of its runs is known."""


@dataclass(slots=True)
class DuplicateStats:
    """What came of the submissions that are counted under one name, and what that has saved."""

    name: str
    counts: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    runs: int = 0
    """How many runs there would have been without the guard."""
    seconds: float | None = None
    """How long they would have taken, by the mean of the newest completed jobs of their tasks; None: there are none."""


def duplicate_stats(ledger: Ledger, by: GroupBy, *, limit: int = 20) -> list[DuplicateStats]:
    """Return the `limit` names under which most submissions have met jobs, these first."""
    found: dict[str, DuplicateStats] = {}
    lengths: dict[str, float | None] = {}
    for tally in ledger.duplicate_counts(by, limit=limit):
        saving = found.setdefault(tally.name, DuplicateStats(tally.name))
        saving.counts[tally.outcome] += tally.count
        if tally.outcome is Outcome.QUEUED_NEXT:
            continue  # it did run
        saving.runs += tally.count
        if tally.task not in lengths:
            lengths[tally.task] = mean_run(ledger, tally.task)
        length = lengths[tally.task]
        if length is not None:
            saving.seconds = (saving.seconds or 0.0) + tally.count * length
    return list(found.values())


def mean_run(ledger: Ledger, task: str) -> float | None:
    """Return how long the last runs of a task's newest completed jobs took, in seconds; None if none is kept."""
    jobs = ledger.find(Query(task=task, states=frozenset({State.COMPLETED}), limit=SAMPLE))
    lengths = [job.finished_at - job.started_at for job in jobs if job.finished_at and job.started_at]
    return sum(lengths) / len(lengths) if lengths else None
