"""Freeze processes that run jobs beyond their lease, thaw them, and count what they still get written.

Plain processes claim jobs and run them with the handle that a Celery body has; each renews its lease. At a random point
of its run one is frozen (SIGSTOP) until a sweeper has queued its job again, and thawed (SIGCONT) before the next run
begins, while it runs, or after it has completed the job. The thawed process ignores refusals: it goes on
with every write that there is. A run that is frozen in its last transaction locks the row of its job: no run gets the
job until it is thawed or its session is ended; this script does one or the other at random.

    python -m chaos.freezes --freezes 500 --store postgresql

Exit code 0 only when no write of a run was accepted whose token was no longer the job's, and each job completed once
and was applied once.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chaos.command import STORES, parser, report
from chaos.freezer import Freeze, Lane, Sweeper
from chaos.frozen_run import POINTS
from chaos.outcome import count_events, print_histories
from chaos.testbed import start_testbed
from onejob.celery.messages.payload import loads
from onejob.jobs.lifecycle import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onejob.jobs.model import JobRow
    from onejob.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Freezes:
    """The parameters of a run."""

    freezes: int
    lanes: int
    store: str
    lease: float
    seed: int


@dataclass(slots=True)
class Count:
    """The counts of a run."""

    freezes: int = 0
    points: Counter[str] = field(default_factory=Counter)
    """Where the runs were frozen."""
    thawed: Counter[str] = field(default_factory=Counter)
    """When they were thawed."""
    too_late: int = 0
    """Runs that had ended before the freeze from outside reached them; not counted as freezes."""
    held_up: int = 0
    """Freezes in which no other run could claim the job, since the frozen one locked its row."""
    sessions_ended: int = 0
    """Of those, how often the script ended the session instead of thawing the run."""
    stale_accepted: int = 0
    stale_accepted_as: Counter[str] = field(default_factory=Counter)
    stale_refused: int = 0
    """Writes of runs that were over, and were refused."""
    refused_but_written: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Writes that raised an error, by kind."""
    lost: int = 0
    applied_twice: int = 0
    late_effects: int = 0
    """Effects that an earlier run got through a fence: once only, which is all that a fence promises."""
    stale_effects: int = 0
    """Effects in one transaction with the completion, by another run than the one that completed the job."""
    completed_twice: int = 0
    wrong_results: int = 0
    blocked: int = 0
    runs_lost: int = 0
    sweeps_failed: int = 0
    seconds: float = 0

    @property
    def held(self) -> bool:
        """Whether the promise held."""
        stale = self.stale_accepted or self.refused_but_written or self.stale_effects or self.wrong_results
        return not (stale or self.lost or self.applied_twice or self.completed_twice or self.blocked)


def run(freezes: Freezes) -> Count:
    """Freeze and count."""
    began = time.monotonic()
    count = Count()
    with start_testbed(freezes.store) as testbed, Sweeper(testbed.ledger()) as sweeper:
        rng = random.Random(freezes.seed)
        lanes = [Lane(testbed, sweeper, freezes.lease, random.Random(rng.random())) for _ in range(freezes.lanes)]
        try:
            with ThreadPoolExecutor(freezes.lanes) as pool:
                shares = [range(index, freezes.freezes, freezes.lanes) for index in range(freezes.lanes)]
                done = [freeze for some in pool.map(_freeze_all, lanes, shares) for freeze in some]
        finally:
            for lane in lanes:
                lane.end()
        for freeze in done:
            _add(count, freeze, sweeper)
            _look(count, freeze, sweeper.ledger, together=testbed.server is not None)
        count.sweeps_failed = sweeper.failed
    count.seconds = round(time.monotonic() - began, 1)
    return count


def _freeze_all(lane: Lane, share: range) -> list[Freeze]:
    """Freeze once for every number of a share; a freeze that was too late is repeated with another number."""
    done: list[Freeze] = []
    for number in share:
        done.append(lane.freeze(number, lane.rng.choice(POINTS)))
        while done[-1].too_late:
            done.append(lane.freeze(done[-1].number + 1_000_000, lane.rng.choice(POINTS)))
    return done


def _add(count: Count, freeze: Freeze, sweeper: Sweeper) -> None:
    """Count what happened in one freeze, and which writes were stale when they began."""
    count.freezes += not freeze.too_late
    count.too_late += freeze.too_late
    count.held_up += freeze.held_up
    count.sessions_ended += freeze.session_ended
    if not freeze.too_late:
        count.points[freeze.point] += 1
        count.thawed[freeze.thaw_time] += 1
    for token, write in freeze.writes():
        stale = write["began"] > sweeper.over.get((freeze.job_id, token), float("inf"))
        count.stale_refused += stale and write["answer"] == "refused"
        if write["answer"] == "error":
            count.errors[write["error"].partition("\n")[0][:80]] += 1
        elif write["answer"] == "accepted" and (stale or write["write"].startswith("late")):
            count.stale_accepted += 1
            count.stale_accepted_as[f"{write['write']} (frozen at {freeze.point}, thawed {freeze.thaw_time})"] += 1


def _look(count: Count, freeze: Freeze, ledger: Ledger, *, together: bool) -> None:
    """Look at what is written of one job."""
    job, history = ledger.get(freeze.job_id), ledger.history(freeze.job_id)
    wrong = Counter[str](
        lost=job.state is not State.COMPLETED or not freeze.effects,
        applied_twice=len(freeze.effects) > 1,
        stale_effects=together and any(token != job.token for token in freeze.effects),
        completed_twice=count_events(history) > 1,
        wrong_results=job.result != str(job.token),
        blocked=job.holds_identity,
        refused_but_written=len(set(_refused(freeze)) & set(ledger.steps(job))) + (_progress(job) != job.token),
    )
    for name, number in wrong.items():
        setattr(count, name, getattr(count, name) + number)
    count.late_effects += not together and any(token != job.token for token in freeze.effects)
    count.runs_lost += count_events(history, "crash")
    if wrong.total():
        print_histories(ledger, [job], f"has {+wrong} after {freeze}")


def _refused(freeze: Freeze) -> Iterator[str]:
    """Yield the names of the steps that were refused."""
    for token, write in freeze.writes():
        if write["answer"] == "refused" and write["write"] in {"step", "late step"}:
            yield f"{'of' if write['write'] == 'step' else 'late'}-{token}"


def _progress(job: JobRow) -> Any:
    """Return the token in the progress of a job."""
    progress = loads(job.progress or "null")
    return progress["done"] if isinstance(progress, dict) else progress


def main() -> int:
    """Parse the command line, run, and print the counts. The exit code is 0 if the promise held."""
    options = parser(__doc__)
    options.add_argument("--freezes", type=int, default=500)
    options.add_argument("--lanes", type=int, default=6, help="freezes at the same time")
    options.add_argument("--store", choices=STORES, default="postgresql")
    options.add_argument("--lease", type=float, default=1.0, help="seconds")
    return report(Freezes(**vars(options.parse_args())), run)


if __name__ == "__main__":
    sys.exit(main())
