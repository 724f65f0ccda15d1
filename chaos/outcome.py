"""Reads the states and histories of the jobs from the ledger at the end of a script."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import FINAL, State
from onejob.jobs.query import Query
from tests.services import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onejob.jobs.history import Entry
    from onejob.jobs.model import JobRow
    from onejob.ledger.ledger import Ledger

LIVE = frozenset(State) - FINAL


def await_rest(ledger: Ledger, seconds: float) -> None:
    """Wait until no job is live, or until so many seconds have passed; then print which jobs are."""
    try:
        eventually(partial(_at_rest, ledger), timeout=seconds)
    except AssertionError:
        print_histories(ledger, ledger.find(Query(states=LIVE, limit=5)), "did not come to an end")


def _at_rest(ledger: Ledger) -> bool:
    return not ledger.find(Query(states=LIVE, limit=1))


def all_jobs(ledger: Ledger) -> list[JobRow]:
    """Return every job of the ledger."""
    return ledger.find(Query(limit=1_000_000))


def print_histories(ledger: Ledger, jobs: Sequence[JobRow], what: str) -> None:
    """Print the histories of a few jobs that are not as they must be."""
    for job in jobs[:5]:
        lines = [f"{e.at:.3f} {e.event} {e.state} attempt {e.attempt} {e.detail}" for e in ledger.history(job.id)]
        now = f"{job.state} {job.reason} {(job.error or '')[:400]}"
        print(f"job {job.id} {what}:", now, *lines, sep="\n  ", file=sys.stderr)


def count_events(history: Sequence[Entry], event: str = "complete") -> int:
    """Return how many events of a kind a history has."""
    return sum(entry.event == event for entry in history)


def recovery_delays(history: Sequence[Entry]) -> Iterator[float]:
    """Yield, for each run that was lost, the seconds from its claim until its job was queued again."""
    claimed = 0.0
    for entry in history:
        if entry.event == "claim":
            claimed = entry.at
        elif entry.event == "crash":
            yield entry.at - claimed
