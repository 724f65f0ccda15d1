"""Kill and freeze whole workers while jobs with limits run; prove from the history that each limit held.

The keys have very different sizes, and the jobs of the large ones wait for their slots. The same storm runs twice, at
first without limits: the jobs of small keys must not wait much longer with them. A worker is killed with SIGKILL, or
stopped for half a lease or for one and a half, and goes on afterwards.

    python -m chaos.limits_storm --jobs 3000 --kills 8 --freezes 3 --store postgresql
    python -m chaos.limits_storm --rate 600/minute --keys 2 --jobs 1600 --broker ledger

With `--pool onejob` the bodies are coroutines. With `--rate` the limit is a rate, all jobs are submitted at once, and
there is no run without limits.

Exit code 0 only when at no moment more leases of one key were valid than the limit permits (of a rate: no minute had
more starts than it permits, and most of the rate was used), every job has completed, no job of a small key waited much
longer, and no key has a slot or a parked job at the end.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chaos.command import STORES, add_broker, add_pool, add_workers, parser, report
from chaos.leases import Lease, Watch, leases_of, most_at_once, most_in_window
from chaos.outcome import all_jobs, await_rest, count_events, print_histories
from chaos.testbed import start_testbed
from chaos.workers import Workers
from onejob.celery.messages.payload import loads
from onejob.jobs.lifecycle import State
from onejob.jobs.limits import rate_value
from tests.services import eventually

if TYPE_CHECKING:
    from chaos.testbed import Testbed
    from onejob.jobs.model import JobRow
    from onejob.ledger.ledger import Ledger

STEEPNESS = 1.5
"""How fast the sizes of the keys decrease: that of the n-th is proportional to 1 / n ** STEEPNESS."""
SUBMITTING = 0.8
"""The part of the storm in which jobs are submitted."""
BATCH = 500
"""How many jobs one call submits, at most."""
WAIT_RATIO = 3.0
"""How many times longer than without limits 99 % of the jobs of small keys may wait, at most."""
LEAST_WAIT = 0.5
"""Seconds below which no such wait counts as long: on a busy machine a process may not run for as long."""
MINUTE = 60.0
USED = 0.95
"""How much of a rate must be used while jobs wait."""


@dataclass(frozen=True, slots=True)
class Storm:
    """The parameters of a run."""

    jobs: int
    keys: int
    kills: int
    freezes: int
    workers: int
    concurrency: int
    store: str
    lease: float
    seed: int
    period: float
    broker: str
    body: float
    pool: str
    rate: str
    burst: float

    @property
    def seconds(self) -> float:
        """How long workers are killed and frozen."""
        return (self.kills + self.freezes) * self.period

    def sizes(self) -> dict[str, int]:
        """Return how many jobs each key has: with a rate all the same."""
        shares = [1.0 if self.rate else 1 / number**STEEPNESS for number in range(1, self.keys + 1)]
        return {f"key-{at}": max(2, round(self.jobs * share / sum(shares))) for at, share in enumerate(shares)}


@dataclass(frozen=True, slots=True)
class Count:
    """The counts of a run."""

    jobs: int
    not_completed: int
    valid_at_once: int
    """How many leases of one key were valid at the same moment, at most; of a rate: 0."""
    permitted: int
    in_a_minute: int
    """How many jobs of one key started in a minute, at most; without a rate: 0."""
    permitted_in_a_minute: int
    used: float
    """How much of the rate was used by the key that used least."""
    holders_left: int
    parked_left: int
    parked: int
    """How often a claim was refused, so that its job was parked."""
    runs_lost: int
    leases_outlived: int
    """Runs that were over for others before they had ended: lost ones, and those of frozen workers."""
    small_wait_p99_free: float
    """Seconds for which 99 % of the jobs of small keys waited without limits, at most."""
    small_wait_p99: float
    small_wait_ratio: float
    wait_p50: float
    wait_max: float
    longest_free: float
    """Seconds from the submission of a job to its end, at most, without limits."""
    longest: float
    free_seconds: float
    """Seconds until all had completed, without limits."""
    seconds: float
    longest_gap: float
    """The longest time between two looks at the leases; shorter than a lease: no end of a lease was missed."""
    load: float

    @property
    def held(self) -> bool:
        """Whether the limits held."""
        broken = self.not_completed or self.holders_left or self.parked_left or self.valid_at_once > self.permitted
        too_fast = self.in_a_minute > self.permitted_in_a_minute or self.used < USED
        too_late = self.small_wait_ratio > WAIT_RATIO and self.small_wait_p99 > LEAST_WAIT
        return not (broken or too_fast or too_late)


@dataclass(frozen=True, slots=True)
class Done:
    """The jobs of one task after its storm."""

    jobs: list[JobRow]
    leases: dict[str, list[Lease]]
    """The leases of all runs by key, in order."""
    waits: dict[str, list[float]]
    """The seconds between the submission and the first run of each job, by key."""
    parked: int
    lost: int
    gap: float
    seconds: float


def run(storm: Storm) -> Count:
    """Run the storm without limits and with them, and count."""
    with start_testbed(storm.store) as testbed:
        environment = testbed.environment(
            lease=storm.lease, broker=testbed.broker_url(storm.broker), body=storm.body, pool=storm.pool,
            rate=storm.rate or "600/minute", burst=storm.burst,
        )  # fmt: skip
        os.environ.update(environment)
        from chaos.limits_app import free, limited, rated

        ledger = testbed.ledger()
        done = [
            _storm(storm, task, ledger, testbed, environment) for task in ((rated,) if storm.rate else (free, limited))
        ]
        return _count(storm, ledger, done[0], done[-1])


def _storm(storm: Storm, task: Any, ledger: Ledger, testbed: Testbed, environment: dict[str, str]) -> Done:
    """Kill and freeze workers while the jobs of a task are submitted and run."""
    options = {"count": storm.workers, "concurrency": storm.concurrency}
    earlier = {worker.name for worker in ledger.workers()}
    with (
        Workers("chaos.limits_app", environment, testbed.folder, storm.pool, **options) as workers,
        Watch(ledger) as watch,
    ):
        eventually(lambda: len({worker.name for worker in ledger.workers()} - earlier) >= storm.workers, timeout=120)
        began = time.monotonic()
        submitter = threading.Thread(target=_submit, args=(storm, task))
        submitter.start()
        _disturb(storm, workers)
        submitter.join()
        await_rest(ledger, 120 + 8 * storm.lease)
        seconds = time.monotonic() - began
    return _read(task.name, ledger, watch, seconds)


def _submit(storm: Storm, task: Any) -> None:
    """Submit the jobs of all keys in a random order: at an even pace, late ones together; with a rate at once."""
    keys = [key for key, size in storm.sizes().items() for _ in range(size)]
    random.Random(storm.seed).shuffle(keys)
    began, done = time.monotonic(), 0
    while done < len(keys):
        share = 1.0 if storm.rate else (time.monotonic() - began) / (SUBMITTING * storm.seconds)
        due = min(1 + int(share * len(keys)), len(keys), done + BATCH)
        if due == done:
            time.sleep(0.01)
        elif due == done + 1:
            task.delay(done, keys[done])
        else:
            task.submit_many([(number, keys[number]) for number in range(done, due)])
        done = due


def _disturb(storm: Storm, workers: Workers) -> None:
    """Kill and freeze random workers, one in each period."""
    rng = random.Random(storm.seed)
    kinds = ["kill"] * storm.kills + ["freeze"] * storm.freezes
    rng.shuffle(kinds)
    thaws: list[tuple[float, int]] = []
    lengths = (0.5 * storm.lease, 1.5 * storm.lease)
    for kind in kinds:
        _sleep(storm.period, workers, thaws)
        if kind == "kill":
            workers.kill_one(rng)
        else:
            length = lengths[len(thaws) % 2 - 1]  # the first one past the lease
            thaws.append((time.monotonic() + length, workers.freeze_one(rng)))
    _sleep(max(lengths), workers, thaws)


def _sleep(seconds: float, workers: Workers, thaws: list[tuple[float, int]]) -> None:
    """Sleep, and thaw meanwhile those whose time it is."""
    until = time.monotonic() + seconds
    while (now := time.monotonic()) < until:
        for at, pid in thaws:
            if at - 0.2 <= now <= at + 0.2:
                workers.thaw(pid)
        time.sleep(0.05)


def _read(name: str, ledger: Ledger, watch: Watch, seconds: float) -> Done:
    jobs = [job for job in all_jobs(ledger) if job.task == name]
    leases, waits = defaultdict[str, list[Lease]](list), defaultdict[str, list[float]](list)
    parked = lost = 0
    for job in jobs:
        key, history = key_of(job), ledger.history(job.id)
        found = leases_of(job, history, watch)
        leases[key] += found
        waits[key] += [lease.start - job.created_at for lease in found[:1]]
        parked += count_events(history, "park")
        lost += count_events(history, "crash")
    return Done(
        jobs, {key: sorted(each) for key, each in leases.items()}, waits, parked, lost, watch.longest_gap, seconds
    )


def key_of(job: JobRow) -> str:
    """Return the key of a job, its second argument."""
    key: str = loads(job.payload)["args"][1]
    return key


def _count(storm: Storm, ledger: Ledger, free: Done, done: Done) -> Count:
    most, together = max((most_at_once(leases) for leases in done.leases.values()), key=lambda each: each[0])
    from chaos.limits_app import RUNNING

    if not storm.rate and most > RUNNING:
        print(*together, sep="\n", file=sys.stderr)
        print_histories(ledger, ledger.get_each([lease.job_id for lease in together]), "ran beside too many")
    print_histories(ledger, [job for job in done.jobs if job.state is not State.COMPLETED], "was not completed")
    print_histories(ledger, sorted(done.jobs, key=_age)[-2:], "took longest")
    prefix = "provider" if storm.rate else "key"
    uses = [ledger.store.limit_use(f"{prefix}={key}") for key in storm.sizes()]
    small = [*storm.sizes()][storm.keys // 2 :]
    before, after = (_p99([wait for key in small for wait in each.waits[key]]) for each in (free, done))
    waits = sorted(wait for each in done.waits.values() for wait in each)
    in_a_minute, permitted, used = _rate(storm, done) if storm.rate else (0, 0, 1.0)
    with suppress(OSError):
        load = round(os.getloadavg()[0], 1)
    return Count(
        jobs=len(done.jobs),
        not_completed=sum(job.state is not State.COMPLETED for job in done.jobs + free.jobs),
        valid_at_once=0 if storm.rate else most,
        permitted=RUNNING,
        in_a_minute=in_a_minute,
        permitted_in_a_minute=permitted,
        used=round(used, 3),
        holders_left=sum(len(use.holders) for use in uses),
        parked_left=sum(use.waiting for use in uses),
        parked=done.parked,
        runs_lost=done.lost,
        leases_outlived=sum(lease.is_lost for leases in done.leases.values() for lease in leases),
        small_wait_p99_free=round(before, 3),
        small_wait_p99=round(after, 3),
        small_wait_ratio=round(after / before, 2),
        wait_p50=round(waits[len(waits) // 2], 3),
        wait_max=round(waits[-1], 2),
        longest_free=round(max(map(_age, free.jobs)), 2),
        longest=round(max(map(_age, done.jobs)), 2),
        free_seconds=round(free.seconds, 1),
        seconds=round(done.seconds, 1),
        longest_gap=round(max(free.gap, done.gap), 2),
        load=load,
    )


def _rate(storm: Storm, done: Done) -> tuple[int, int, float]:
    """Return the most starts of a key in a minute, those that are permitted, and the part of the rate that was used."""
    value = rate_value("provider", storm.rate, storm.burst)
    per_second = 1 / (value.interval or 1.0)
    starts = [[lease.start for lease in leases] for leases in done.leases.values()]
    used = min(len(each) / (per_second * (each[-1] - each[0]) + value.burst) for each in starts)
    return max(most_in_window(each, MINUTE) for each in starts), int(per_second * MINUTE + value.burst), used


def _age(job: JobRow) -> float:
    """Return the seconds from the submission of a job to its end."""
    return (job.finished_at or float("inf")) - job.created_at


def _p99(waits: list[float]) -> float:
    return sorted(waits)[int(0.99 * (len(waits) - 1))]


def main() -> int:
    """Parse the command line, run, and print the counts. The exit code is 0 if the limits held."""
    options = parser(__doc__)
    options.add_argument("--jobs", type=int, default=3000)
    options.add_argument("--keys", type=int, default=50)
    options.add_argument("--kills", type=int, default=8)
    options.add_argument("--freezes", type=int, default=3)
    add_workers(options, 4)
    add_pool(options)
    options.add_argument("--store", choices=STORES, default="sqlite")
    add_broker(options)
    options.add_argument("--period", type=float, default=3.0, help="seconds between kills and freezes")
    options.add_argument("--body", type=float, default=0.02, help="seconds that a job takes")
    options.add_argument("--rate", default="", help="such as 600/minute: a rate, and no limit of running jobs")
    options.add_argument("--burst", type=float, default=10.0, help="of the rate")
    return report(Storm(**vars(options.parse_args())), run)


if __name__ == "__main__":
    sys.exit(main())
