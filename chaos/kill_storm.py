"""Submit every identity twice while whole workers are killed with SIGKILL; count what was lost, doubled or blocked.

The two submissions of an identity follow each other at once, as a double click does. An effect is a row. With a ledger
in PostgreSQL it is written in one transaction with the completion: it must be there once. With the other stores it is
the last act of a body, outside the ledger: a worker killed between the effect and its completion runs the body again,
which `applied_twice` counts.

    python -m chaos.kill_storm --jobs 1500 --kills 20 --store postgresql
    python -m chaos.kill_storm --pool onejob --concurrency 50 --store redis

With `--pool onejob` the bodies are coroutines.
With `--pauses` the task is paused and resumed so often meanwhile, and no run may start within a pause, from one second
after its beginning on.

Exit code 0 only when no job was never applied, none completed twice, none holds its identity at the end, none started
within a pause, and with PostgreSQL none was applied twice.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onejob
from chaos.command import STORES, add_broker, add_pool, add_workers, parser, report
from chaos.effects import APPLIED, STARTED, counted
from chaos.outcome import all_jobs, await_rest, count_events, print_histories, recovery_delays
from chaos.testbed import start_testbed
from chaos.workers import Workers
from onejob.celery.app_state import app_state_of
from onejob.jobs.lifecycle import State, Transition

if TYPE_CHECKING:
    from collections import Counter

    from chaos.testbed import Testbed
    from onejob.ledger.ledger import Ledger


OBEYED_SECONDS = 1.0
"""Seconds after the beginning of a pause from which on no run starts."""


@dataclass(frozen=True, slots=True)
class Storm:
    """The parameters of a run."""

    jobs: int
    kills: int
    workers: int
    concurrency: int
    store: str
    lease: float
    seed: int
    period: float
    broker: str
    pauses: int
    pool: str


@dataclass(frozen=True, slots=True)
class Count:
    """The counts of a run."""

    together: bool
    """Whether effects and completions were one transaction."""
    never_applied: int
    applied_twice: int
    started_twice: int
    completed_twice: int
    blocked: int
    not_completed: int
    started_paused: int
    parked: int
    admitted: int
    attached: int
    kills: int
    runs_lost: int
    noticed_p50: float
    noticed_max: float
    seconds: float

    @property
    def held(self) -> bool:
        """Whether the promise held."""
        broken = self.never_applied or self.completed_twice or self.blocked or self.not_completed or self.started_paused
        return not (broken or (self.together and self.applied_twice))


def run(storm: Storm) -> Count:
    """Run the storm and count."""
    began = time.monotonic()
    with start_testbed(storm.store) as testbed:
        environment = testbed.environment(lease=storm.lease, broker=testbed.broker_url(storm.broker))
        os.environ.update(environment)
        from chaos import storm_app

        verb = "await" if storm.pool == "onejob" else "apply"
        task = getattr(storm_app, f"{verb}_{'together' if storm.store == 'postgresql' else 'apart'}")
        ledger = testbed.ledger()
        options = {"count": storm.workers, "concurrency": storm.concurrency}
        with Workers("chaos.storm_app", environment, testbed.folder, storm.pool, **options) as workers:
            pauses: list[tuple[float, float]] = []
            outcomes = _drive(storm, workers, task, pauses)
            await_rest(ledger, 60 + 8 * storm.lease)
            return _count(storm, ledger, testbed, outcomes, pauses, time.monotonic() - began)


def _drive(storm: Storm, workers: Workers, task: Any, pauses: list[tuple[float, float]]) -> dict[str, int]:
    """Submit everything twice while workers are killed, and the task is paused; note the times of the pauses."""
    outcomes = {"admitted": 0, "attached": 0}
    submitter = threading.Thread(target=_submit, args=(storm, task, outcomes))
    operator = threading.Thread(target=_pause, args=(storm, task, pauses))
    for each in (submitter, operator):
        each.start()
    rng = random.Random(storm.seed)
    for _ in range(storm.kills):
        time.sleep(storm.period)
        workers.kill_one(rng)
    for each in (submitter, operator):
        each.join()
    return outcomes


def _pause(storm: Storm, task: Any, pauses: list[tuple[float, float]]) -> None:
    """Pause the task for random times, one after the other, during the storm."""
    rng, client = random.Random(storm.seed), onejob.Client(task.app)
    for _ in range(storm.pauses):
        period = storm.kills * storm.period / storm.pauses
        length = rng.uniform(0.4, 0.8) * period
        pause = client.pause(task=task.name)
        time.sleep(length)
        pauses.append((pause.created_at.timestamp(), app_state_of(task.app).ledger.read_clock()))
        client.resume(pause.id)
        time.sleep(period - length)


def _submit(storm: Storm, task: Any, outcomes: dict[str, int]) -> None:
    began = time.monotonic()
    for number in range(storm.jobs):
        for _ in range(2):
            outcomes[str(task.delay(number).outcome)] += 1
        ahead = began + storm.kills * storm.period * number / storm.jobs - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)


def _count(
    storm: Storm, ledger: Ledger, testbed: Testbed, outcomes: dict[str, int], pauses: list[tuple[float, float]],
    seconds: float,
) -> Count:  # fmt: skip
    jobs = all_jobs(ledger)
    histories = [ledger.history(job.id) for job in jobs]
    delays = sorted(delay for history in histories for delay in recovery_delays(history)) or [0.0]
    applied = counted(testbed.effects, APPLIED)
    print_histories(ledger, [job for job in jobs if job.state is not State.COMPLETED], "was not completed")
    return Count(
        together=testbed.server is not None,
        never_applied=storm.jobs - len(applied),
        applied_twice=_twice(applied),
        started_twice=_twice(counted(testbed.effects, STARTED)),
        completed_twice=sum(count_events(h) > 1 for h in histories) + len(jobs) - len({job.identity for job in jobs}),
        blocked=sum(job.holds_identity for job in jobs),
        not_completed=sum(job.state is not State.COMPLETED for job in jobs),
        started_paused=sum(
            begin + OBEYED_SECONDS < entry.at < end
            for history in histories
            for entry in history
            for begin, end in pauses
            if entry.event == Transition.CLAIM
        ),
        parked=sum(count_events(history, "park") for history in histories),
        admitted=outcomes["admitted"],
        attached=outcomes["attached"],
        kills=storm.kills,
        runs_lost=sum(count_events(history, "crash") for history in histories),
        noticed_p50=round(delays[len(delays) // 2], 2),
        noticed_max=round(delays[-1], 2),
        seconds=round(seconds, 1),
    )


def _twice(counts: Counter[int]) -> int:
    return sum(count > 1 for count in counts.values())


def main() -> int:
    """Parse the command line, run, and print the counts. The exit code is 0 if the promise held."""
    options = parser(__doc__)
    options.add_argument("--jobs", type=int, default=1500)
    options.add_argument("--kills", type=int, default=20)
    add_workers(options, 2)
    options.add_argument("--store", choices=STORES, default="sqlite")
    add_broker(options)
    options.add_argument("--period", type=float, default=3.0, help="seconds between kills")
    add_pool(options)
    options.add_argument("--pauses", type=int, default=0, help="how often the task is paused")
    return report(Storm(**vars(options.parse_args())), run)


if __name__ == "__main__":
    sys.exit(main())
