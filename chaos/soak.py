"""A soak test of delivery by the ledger: an hour of jobs while workers, connections and the server are killed.

The broker is `onejob://` on PostgreSQL. Jobs are submitted at a steady rate: most are short, one in 20 takes up to 3
seconds, one in 10 has a countdown, and one in 5 is submitted twice. All the time a random worker is killed with
SIGKILL and another one is started, a random connection of the app is ended by the server every second, and the server
is restarted, once as after a crash. One transaction is open all the time, so that no vacuum removes a dead row.

    python -m chaos.soak --minutes 60

Exit code 0 only when each accepted job completed and was applied once, no identity had two jobs, and within the lease
and a margin a lost run was noticed, a due job was run before those that were due later, and some due job was run. How
long a job waits beyond this is up to the machine: a busy one starts workers slowly, and has a backlog meanwhile.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg

from chaos.command import add_workers, parser, report
from chaos.effects import APPLIED, counted
from chaos.outcome import LIVE, all_jobs, await_rest, count_events, print_histories, recovery_delays
from chaos.restarts import insist
from chaos.testbed import NAMESPACE, start_testbed
from chaos.workers import Workers
from onejob.jobs.lifecycle import State
from onejob.jobs.query import Query
from tests.services import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from chaos.testbed import Testbed
    from onejob.jobs.history import Entry
    from onejob.jobs.model import JobRow
    from onejob.ledger.ledger import Ledger

SETTINGS = ("fsync=on", "autovacuum=on", "wal_level=replica", "max_wal_size=1GB")
OWN = "chaos"
"""The name of the connections that are not the app's."""
RETRY_SECONDS = 1.0
"""The delay of a retry of the task."""


@dataclass(frozen=True, slots=True)
class Soak:
    """The parameters of a run."""

    minutes: float
    rate: float
    workers: int
    concurrency: int
    lease: float
    margin: float
    kill_period: float
    restart_period: float
    down: float
    seed: int


@dataclass(frozen=True, slots=True)
class Count:
    """The counts of a run."""

    jobs: int
    outcomes: dict[str, int]
    raised: dict[str, int]
    """What submissions raised that were repeated, by class."""
    faults: dict[str, int]
    lost: int
    """Accepted jobs that did not complete."""
    applied_twice: int
    completed_twice: int
    late: int
    """What took longer than the lease and the margin."""
    retries: int
    runs_lost: int
    due_to_start: Latency
    submission_to_start: Latency
    submission_to_end: Latency
    overtaken: Latency
    """By how much later a job was due that was run before."""
    pauses: Latency
    """For how long a job was due and none was run."""
    detection: Latency
    """From the claim of a run whose worker was lost until its job was queued again, without the time of the body."""
    due_to_start_by_quarter: list[Latency]
    dead_rows_max: int
    table_bytes: int
    wal_bytes_per_job: int
    backlog: int
    """Jobs that had not ended when the faults were over."""
    drain_seconds: float
    seconds: float

    @property
    def held(self) -> bool:
        """Whether the promise held."""
        return not (self.lost or self.applied_twice or self.completed_twice or self.late)


class Latency(str):
    """Median, 99th percentile and maximum of some seconds."""

    __slots__ = ()

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency:
        """Return the latency of at least one wait."""
        found = sorted(seconds) or [0.0]
        p50, p99 = (found[int(len(found) * share)] for share in (0.5, 0.99))
        return cls(f"p50 {p50:.3f} p99 {p99:.3f} max {found[-1]:.3f}")


def body_seconds(number: int) -> float:
    """Return how long the body of a job takes."""
    return 1 + number // 20 % 3 if number % 20 == 0 else 0.02


def countdown(number: int) -> int:
    """Return after how many seconds a job is due."""
    return 1 + number % 5 if number % 10 == 7 else 0


def run(soak: Soak) -> Count:
    """Run the soak test and count."""
    began = time.monotonic()
    with start_testbed("postgresql", *SETTINGS) as testbed:
        environment = testbed.environment(lease=soak.lease, broker="onejob://")
        os.environ.update(environment)
        options = {"count": soak.workers, "concurrency": soak.concurrency}
        with Workers("chaos.storm_app", environment, testbed.folder, **options) as workers:
            ledger = testbed.ledger()
            eventually(lambda: len(ledger.workers()) == soak.workers)
            faults = Faults(soak, testbed, workers)
            lsn = faults.ask("select pg_current_wal_lsn()::text")
            submissions = Submissions(soak)
            submissions.start()
            faults.cause()
            ended = time.monotonic()
            submissions.join()
            backlog = len(ledger.find(Query(states=LIVE, limit=10**6)))
            await_rest(ledger, 120 + 8 * soak.lease + backlog)  # a busy machine runs one job per second at least
            now = time.monotonic()
            wal = faults.ask("select pg_current_wal_lsn() - %s::pg_lsn", lsn)
            faults.sample()
            return _count(soak, ledger, testbed, submissions, faults, int(wal), backlog, now - ended, now - began)


class Submissions(threading.Thread):
    """Submits at a steady rate; what a fault has delayed is made up for."""

    def __init__(self, soak: Soak) -> None:
        super().__init__()
        self._soak = soak
        self.jobs = int(soak.minutes * 60 * soak.rate)
        self.raised = Counter[str]()
        self.outcomes = Counter[str]()

    def run(self) -> None:
        """Submit."""
        from chaos.storm_app import apply_once

        began = time.monotonic()
        for number in range(self.jobs):
            args, delay = (number, body_seconds(number)), countdown(number) or None
            options = [{"task_id": str(UUID(int=number + 1))}, *([{}] if number % 5 == 0 else [])]
            for each in options:
                accepted = insist(self.raised, apply_once, args, countdown=delay, **each)
                self.outcomes[str(accepted.outcome)] += 1
            time.sleep(max(0.0, began + number / self._soak.rate - time.monotonic()))


class Faults:
    """Kills workers and connections, and restarts the server, from the thread that their processes watch."""

    def __init__(self, soak: Soak, testbed: Testbed, workers: Workers) -> None:
        self._soak = soak
        self._server = testbed.postgres
        self._workers = workers
        self._rng = random.Random(soak.seed)
        self._open: psycopg.Connection[Any] | None = None
        self.caused = Counter[str]()
        self.dead_rows = self.table_bytes = 0

    def cause(self) -> None:
        """Cause faults until the time is over."""
        end = time.monotonic() + 60 * self._soak.minutes
        periodic = [
            Periodic(1.0, self._each_second),
            Periodic(self._soak.kill_period, self._kill),
            Periodic(self._soak.restart_period, self._restart),
            Periodic(60.0, self.sample),
        ]
        while time.monotonic() < end:
            for each in periodic:
                each.act_if_due()
            time.sleep(0.05)

    def ask(self, query: str, *values: Any) -> Any:
        """Return the first column of the first row of a query."""
        with psycopg.connect(self._server.url, autocommit=True, application_name=OWN) as connection:
            row = connection.execute(query.encode(), values).fetchone()
            return row and row[0]

    def sample(self) -> None:
        """Print how large the table of jobs is."""
        table = f"{NAMESPACE}.jobs"
        dead = self.ask("select n_dead_tup from pg_stat_user_tables where relid = %s::regclass", table) or 0
        self.table_bytes = self.ask("select pg_total_relation_size(%s::regclass)", table)
        self.dead_rows = max(self.dead_rows, dead)
        live = self.ask(f"select count(*) from {table} where state = any(%s)", [str(state) for state in LIVE])  # noqa: S608 - a constant
        print(f"{dead} dead rows, {self.table_bytes} bytes, {live} live jobs, {dict(self.caused)}", flush=True)

    def _each_second(self) -> None:
        self._keep_transaction_open()
        ended = self.ask(
            "select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'client backend'"
            " and application_name <> %s order by random() limit 1", OWN,
        )  # fmt: skip
        self.caused["connections"] += bool(ended)
        self._workers.print_gone()
        self.caused["workers that ended"] += self._workers.start_ended()

    def _keep_transaction_open(self) -> None:
        """Open a transaction that keeps its snapshot, unless it is open."""
        if self._open is not None:
            with suppress(psycopg.OperationalError):
                self._open.execute("select 1")
                return
            self._open.close()
        self._open = psycopg.connect(self._server.url, application_name=OWN)
        self._open.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self._open.execute("select txid_current()")
        self.caused["long transactions"] += 1

    def _kill(self) -> None:
        self._workers.kill_one(self._rng)
        self.caused["workers"] += 1

    def _restart(self) -> None:
        self.caused["restarts"] += 1
        (self._server.kill if self.caused["restarts"] == 2 else self._server.stop)()
        time.sleep(self._rng.uniform(0, self._soak.down))
        self._server.start()


@dataclass(slots=True)
class Periodic:
    """Something that is done at a period, first after one."""

    period: float
    act: Callable[[], None]
    done_at: float = field(default_factory=time.monotonic)

    def act_if_due(self) -> None:
        """Act if it is time."""
        if time.monotonic() - self.done_at >= self.period:
            self.done_at = time.monotonic()
            self.act()


def _count(  # noqa: PLR0917 - what was seen, each by itself
    soak: Soak, ledger: Ledger, testbed: Testbed, submissions: Submissions, faults: Faults, wal: int,
    backlog: int, drain: float, seconds: float,
) -> Count:  # fmt: skip
    jobs = sorted(all_jobs(ledger), key=lambda job: job.created_at)
    histories = [ledger.history(job.id) for job in jobs]
    lost = [job for job in jobs if job.state is not State.COMPLETED]
    print_histories(ledger, lost, "was accepted and lost")
    applied = counted(testbed.effects, APPLIED)
    runs = sorted(run for job, history in zip(jobs, histories, strict=True) for run in _runs(job, history))
    overtaken, pauses = _overtaken(runs), _pauses(runs)
    longest = soak.lease + soak.margin
    late = [run.job for run, seconds in zip(runs, overtaken, strict=True) if seconds > longest]
    print_histories(ledger, late, "was run after others that were due later")
    detections = [each for job, history in zip(jobs, histories, strict=True) for each in _detections(job, history)]
    quarter = -(-len(runs) // 4)
    return Count(
        jobs=len(jobs),
        outcomes=dict(submissions.outcomes),
        raised=dict(submissions.raised),
        faults=dict(faults.caused),
        lost=submissions.jobs - (len(jobs) - len(lost)),
        applied_twice=sum(count > 1 for count in applied.values()),
        completed_twice=sum(count_events(h) > 1 for h in histories) + len(jobs) - len({job.identity for job in jobs}),
        late=sum(each > longest for each in (*overtaken, *pauses, *detections)),
        retries=sum(count_events(history, "retry") for history in histories),
        runs_lost=len(detections),
        due_to_start=Latency.of([run.wait for run in runs]),
        overtaken=Latency.of(overtaken),
        pauses=Latency.of(pauses),
        submission_to_start=Latency.of([job.started_at - job.created_at for job in jobs if job.started_at]),
        submission_to_end=Latency.of([job.finished_at - job.created_at for job in jobs if job.finished_at]),
        detection=Latency.of(detections),
        due_to_start_by_quarter=[
            Latency.of([run.wait for run in runs[first : first + quarter]]) for first in range(0, len(runs), quarter)
        ],
        dead_rows_max=faults.dead_rows,
        table_bytes=faults.table_bytes,
        wal_bytes_per_job=round(wal / len(jobs)),
        backlog=backlog,
        drain_seconds=round(drain, 1),
        seconds=round(seconds, 1),
    )


@dataclass(frozen=True, slots=True, order=True)
class Run:
    """When a run began."""

    at: float
    due: float
    """The place of its job in the queue, which a lost run does not change."""
    waited_since: float
    job: JobRow = field(compare=False)

    @property
    def wait(self) -> float:
        """For how many seconds the job had waited for it."""
        return self.at - self.waited_since


def _runs(job: JobRow, history: Sequence[Entry]) -> Iterator[Run]:
    due = since = job.created_at + countdown(_number(job))
    for entry in history:
        if entry.event == "claim":
            yield Run(entry.at, due, since, job)
        elif entry.event == "retry":
            due = since = entry.at + RETRY_SECONDS
        elif entry.event in {"crash", "release"}:
            since = entry.at


def _overtaken(runs: Sequence[Run]) -> list[float]:
    latest = accumulate((run.due for run in runs), max)
    return [due - run.due for run, due in zip(runs, latest, strict=True)]


def _pauses(runs: Sequence[Run]) -> list[float]:
    return [run.at - max(before.at, run.waited_since) for before, run in pairwise(runs)]


def _detections(job: JobRow, history: Sequence[Entry]) -> Iterator[float]:
    return (delay - body_seconds(_number(job)) for delay in recovery_delays(history))


def _number(job: JobRow) -> int:
    return UUID(job.id).int - 1


def main() -> int:
    """Parse the command line, run, and print the counts. The exit code is 0 if the promise held."""
    options = parser(__doc__)
    options.add_argument("--minutes", type=float, default=60)
    options.add_argument("--rate", type=float, default=20, help="jobs per second")
    add_workers(options, 4, concurrency=2)
    options.add_argument("--margin", type=float, default=15.0, help="seconds that a job may wait beyond its lease")
    options.add_argument("--kill-period", type=float, default=10.0, help="seconds between kills of a worker")
    options.add_argument("--restart-period", type=float, default=300.0, help="seconds between restarts of the server")
    options.add_argument("--down", type=float, default=1.5, help="seconds that the server stays away, at most")
    return report(Soak(**vars(options.parse_args())), run)


if __name__ == "__main__":
    sys.exit(main())
