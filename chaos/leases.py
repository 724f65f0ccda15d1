"""The times at which runs had a valid lease, from the histories of jobs and a watch of their leases."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Self

from onejob.errors import StoreError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.query import Query

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from onejob.jobs.history import Entry
    from onejob.jobs.model import JobRow
    from onejob.ledger.ledger import Ledger

INTERVAL = 0.1
"""Seconds between two looks at the leases."""
MOST_RUNS = 1_000
ENDS = frozenset(
    {
        Transition.COMPLETE, Transition.FAIL, Transition.RETRY, Transition.RELEASE, Transition.CRASH,
        Transition.DEAD_LETTER, Transition.CANCEL,
    }
)  # fmt: skip
"""The events that end a run."""


class Lease(NamedTuple):
    """The time of a valid lease: of one run, by the clock of the store."""

    start: float
    end: float
    job_id: str
    attempt: int
    is_lost: bool
    """Whether the lease ended before the run did."""


class Watch:
    """A thread that reads the leases of all runs all the time; a `with` block ends it.

    A run that is lost keeps its row until its lease has ended, so the last lease that was seen is its last lease.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ends: dict[tuple[str, int], float] = {}
        """The latest end of the lease of each run that was seen, by job and attempt."""
        self.longest_gap = 0.0
        """The longest time between two looks, in seconds."""
        self._ledger = ledger
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        last = time.monotonic()
        while not self._is_over.wait(INTERVAL):
            with suppress(StoreError):
                found = self._ledger.find(Query(states=frozenset({State.RUNNING}), limit=MOST_RUNS, light=True))
                self.ends |= {(job.id, job.attempt): job.lease_until for job in found if job.lease_until is not None}
                self.longest_gap = max(self.longest_gap, time.monotonic() - last)
                last = time.monotonic()


def leases_of(job: JobRow, history: Sequence[Entry], watch: Watch) -> list[Lease]:
    """Return the leases of the runs of a job: each to the end of its run, or of its lease if that was before."""
    found: list[Lease] = []
    start, attempt = None, 0
    for entry in history:
        if entry.event == Transition.CLAIM:
            start, attempt = entry.at, entry.attempt
        elif start is not None and entry.event in ENDS:
            lease_end = watch.ends.get((job.id, attempt), entry.at)
            found.append(Lease(start, min(entry.at, lease_end), job.id, attempt, lease_end < entry.at))
            start = None
    if start is not None:
        found.append(Lease(start, watch.ends.get((job.id, attempt), start), job.id, attempt, is_lost=True))
    return found


def most_at_once(leases: Iterable[Lease]) -> tuple[int, list[Lease]]:
    """Return how many leases were valid at the same moment, at most, and those of that moment."""
    valid: list[Lease] = []
    most: list[Lease] = []
    for lease in sorted(leases):
        valid = [each for each in valid if each.end > lease.start]
        valid.append(lease)
        if len(valid) > len(most):
            most = [*valid]
    return len(most), most


def most_in_window(starts: Sequence[float], seconds: float) -> int:
    """Return how many starts a window of so many seconds has, at most; the starts are in order."""
    most = first = 0
    for last, at in enumerate(starts):
        while starts[first] <= at - seconds:
            first += 1
        most = max(most, last - first + 1)
    return most
