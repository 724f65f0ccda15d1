"""Run the same work with limits by key: those of onejob, of Docket and of DBOS, by turns, on servers of our own.

    python -m bench.limits peers --rounds 3 --jobs 400

All jobs are queued; then two worker processes with 16 places each run them, at most 3 of a key at once. Each
measurement has new databases. A table has the medians, with the least and the most, of the jobs a second, between the
ends of the first and the last tenth of them, and of the part of the time of the slots in which a body ran meanwhile;
there are as many slots as the limit permits, but no more than places. It has also the most bodies of one key that ran
at once, by what they recorded themselves, and how many jobs a second were submitted.
"""

from __future__ import annotations

import os
import shutil
import statistics
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from bench.contenders import Contender, FailedError
from bench.peers import slots
from bench.rounds import orders
from bench.runs import Runner
from bench.servers import Servers
from bench.table import aligned

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.peers.slots import Run

PLACES = 16
"""Of each worker process."""
LONGEST = 120.0
EDGE = 0.1
"""The part of the jobs at the beginning, and at the end, that is not measured: workers start, and keys run out."""
CONTENDERS = (
    Contender("onejob on redis", "limited", "redis"),
    Contender("onejob on postgresql", "limited", "postgresql"),
    Contender("onejob on postgresql alone", "limited", "postgresql", broker="ledger"),
    Contender("Docket", "docket", "redis", on_celery=False),
    Contender("DBOS", "dbos_limited", "postgresql", on_celery=False),
    Contender("DBOS, polls each 50 ms", "dbos_limited", "postgresql", on_celery=False),
)
POLLS = {"DBOS, polls each 50 ms": "0.05"}
"""How often processes look at the queue, by the name of the contender; else as often as by default."""


class Work(NamedTuple):
    """The jobs of a measurement."""

    keys: int
    seconds: float

    @property
    def name(self) -> str:
        """What the jobs do."""
        return f"{1e3 * self.seconds:g} ms, {self.keys} keys" if self.seconds else f"nothing, {self.keys} keys"

    @property
    def slots(self) -> int:
        """How many jobs run at once, at most."""
        return min(self.keys * slots.RUNNING, slots.PROCESSES * PLACES)


WORKS = (Work(20, 0.05), Work(4, 0.05), Work(20, 0.0))


class Found(NamedTuple):
    """The figures of a measurement."""

    submitted: float
    """Jobs a second."""
    ran: float
    """Jobs a second."""
    used: float
    """The part of the time of the slots in which a body ran."""
    at_once: int
    """The most bodies of one key that ran at once."""


@dataclass(slots=True)
class Series:
    """The figures of one contender with one work, in each round."""

    found: list[Found] = field(default_factory=list)
    failure: str = ""


def measure(rounds: int, jobs: int) -> None:
    """Measure all contenders in each round, in another order each time, and print a table."""
    table = {(work, one.name): Series(failure=one.missing) for work in WORKS for one in CONTENDERS}
    with ExitStack() as stack:
        servers = Servers(stack)
        for order in orders(CONTENDERS, rounds):
            for work in WORKS:
                for contender in order:
                    _add(table[work, contender.name], contender, servers, work, jobs)
            print(f"a round, load {os.getloadavg()[0]:.1f}", flush=True)
    head = ("work", "contender", "submitted/s", "run/s", "used", "at once")
    print(aligned([head, *(_row(work, name, series) for (work, name), series in table.items())]))


def _add(series: Series, contender: Contender, servers: Servers, work: Work, jobs: int) -> None:
    """Measure once more, unless the contender has failed."""
    if series.failure:
        return
    try:
        series.found.append(_measured(contender, servers, work, jobs))
    except FailedError as error:
        series.failure = str(error)


def _measured(contender: Contender, servers: Servers, work: Work, jobs: int) -> Found:
    """Queue the jobs in a new database, run them, and return the figures. Raises `FailedError`."""
    folder = servers.folder / "records"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    runner = Runner(contender, servers, _variables(contender, work, folder))
    try:
        runner.prepare()
        taken = runner.submit(jobs)
        runner.run_all(jobs, LONGEST)
    finally:
        runner.close()
    runs = slots.read_runs(folder)
    if len({run.number for run in runs}) != jobs or len(runs) != jobs:
        raise FailedError(f"{len(runs)} runs of {jobs} jobs")
    return Found(jobs / taken, *_used(runs, work.slots), max(map(most_at_once, _by_key(runs))))


def _variables(contender: Contender, work: Work, folder: Path) -> dict[str, str]:
    found = {slots.KEYS: str(work.keys), slots.SECONDS: str(work.seconds), slots.PLACES: str(PLACES)}
    found[slots.RECORDS] = str(folder)
    return found | {slots.POLL: POLLS[contender.name]} if contender.name in POLLS else found


def _used(runs: Sequence[Run], places: int) -> tuple[float, float]:
    """Return the jobs a second and the used part of the slots, without what is at the edges."""
    ends = sorted(run.ended for run in runs)
    edge = max(1, int(EDGE * len(ends)))
    start, stop = ends[edge - 1], ends[-edge]
    busy = sum(max(0.0, min(run.ended, stop) - max(run.began, start)) for run in runs)
    return (len(ends) - 2 * edge + 1) / (stop - start), busy / places / (stop - start)


def _by_key(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs of each key."""
    return [list(group) for _, group in groupby(sorted(runs, key=attrgetter("key")), attrgetter("key"))]


def most_at_once(runs: Sequence[Run]) -> int:
    """Return how many of some runs were going on at the same moment, at most."""
    changes = sorted([(run.ended, -1) for run in runs] + [(run.began, 1) for run in runs])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def _row(work: Work, name: str, series: Series) -> tuple[str, ...]:
    if series.failure:
        return work.name, name, f"- {series.failure}"
    submitted, ran, used, at_once = zip(*series.found, strict=True)
    share = _spread(used, "{:.2f}") if work.seconds else ""
    return work.name, name, _spread(submitted, "{:.0f}"), _spread(ran, "{:.0f}"), share, str(max(at_once))


def _spread(numbers: Sequence[float], form: str) -> str:
    """Return the median of some numbers, the least and the most."""
    middle, low, high = (form.format(each) for each in (statistics.median(numbers), min(numbers), max(numbers)))
    return f"{middle} ({low} to {high})"
