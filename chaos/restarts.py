"""Restart PostgreSQL again and again under submissions and workers; count what was lost or doubled.

Every second restart is a crash (what was not in the write-ahead log is gone), the others are fast shutdowns. The server
is down for a random time, so that one call of a body can fail and its next one succeed. A COMMIT waits for the disk.
A submission that raises is repeated under the same id until it is accepted. The effect is a row in one transaction with
the completion, and a body retries after an error. No worker is restarted.

    python -m chaos.restarts --restarts 20 --period 3

Exit code 0 only when every accepted job completed and was applied once, none holds its identity, and the workers of the
beginning are those of the end.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chaos.command import add_broker, add_workers, parser, report
from chaos.effects import APPLIED, counted
from chaos.outcome import all_jobs, await_rest, count_events, print_histories
from chaos.testbed import start_testbed
from chaos.workers import Workers
from onejob.errors import StoreError
from onejob.jobs.lifecycle import State
from tests.services import eventually

if TYPE_CHECKING:
    from chaos.testbed import Testbed
    from onejob.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Restarts:
    """The parameters of a run."""

    jobs: int
    restarts: int
    period: float
    down: float
    workers: int
    concurrency: int
    broker: str
    lease: float
    seed: int


@dataclass(frozen=True, slots=True)
class Count:
    """The counts of a run."""

    submitted: int
    raised: int
    """Submissions that raised, and were repeated."""
    errors: dict[str, int]
    """What they raised, by class."""
    lost: int
    """Accepted jobs that did not complete."""
    lost_as: dict[str, int]
    """Why these are in their state."""
    never_applied: int
    applied_twice: int
    completed_twice: int
    blocked: int
    completion: float
    """The share of the accepted jobs that completed."""
    attempts_above_1: int
    runs_lost: int
    workers_gone: int
    restarts: int
    last_restart_to_rest: float
    """Seconds from the end of the last restart until no job was live."""
    seconds: float

    @property
    def held(self) -> bool:
        """Whether the promise held."""
        wrong = self.lost or self.never_applied or self.applied_twice or self.completed_twice or self.blocked
        return not (wrong or self.workers_gone)


def run(restarts: Restarts) -> Count:
    """Run the restarts and count."""
    began = time.monotonic()
    with start_testbed("postgresql", "fsync=on") as testbed:
        environment = testbed.environment(lease=restarts.lease, broker=testbed.broker_url(restarts.broker))
        os.environ.update(environment)
        ledger, raised = testbed.ledger(), Counter[str]()
        options = {"count": restarts.workers, "concurrency": restarts.concurrency}
        with Workers("chaos.storm_app", environment, testbed.folder, **options) as workers:
            eventually(lambda: len(ledger.workers()) == restarts.workers)  # one that starts without its store ends
            submitter = threading.Thread(target=_submit, args=(restarts, raised))
            submitter.start()
            _restart(restarts, testbed)
            last = time.monotonic()
            submitter.join()
            await_rest(ledger, 120 + 8 * restarts.lease)
            now = time.monotonic()
            gone = restarts.workers - workers.alive
            workers.print_gone()
            return _count(restarts, ledger, testbed, raised, gone, now - last, now - began)


def _restart(restarts: Restarts, testbed: Testbed) -> None:
    """Restart the server, from the thread that its process watches."""
    rng = random.Random(restarts.seed)
    for number in range(restarts.restarts):
        time.sleep(restarts.period)
        (testbed.postgres.kill if number % 2 else testbed.postgres.stop)()
        time.sleep(rng.uniform(0, restarts.down))
        testbed.postgres.start()


def _submit(restarts: Restarts, raised: Counter[str]) -> None:
    """Submit at an even pace over the whole time, and a little beyond the last restart."""
    from chaos.storm_app import apply_stubbornly

    span = restarts.restarts * (restarts.period + restarts.down / 2 + 0.25) + 2
    began = time.monotonic()
    for number in range(restarts.jobs):
        insist(raised, apply_stubbornly, (number,), task_id=str(UUID(int=number + 1)))
        ahead = began + span * number / restarts.jobs - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)


def insist(raised: Counter[str], task: Any, args: tuple[Any, ...], **options: Any) -> Any:
    """Submit under the same id until the submission is accepted."""
    while True:
        try:
            return task.apply_async(args, **options)
        except StoreError as error:
            raised[type(error).__name__] += 1
            time.sleep(0.1)


def _count(  # noqa: PLR0917 - what was seen, each by itself
    restarts: Restarts, ledger: Ledger, testbed: Testbed, raised: Counter[str], gone: int, rest: float, seconds: float
) -> Count:
    jobs = all_jobs(ledger)
    histories = [ledger.history(job.id) for job in jobs]
    completed = {job.id for job in jobs if job.state is State.COMPLETED}
    lost = [job for job in jobs if job.id not in completed]
    print_histories(ledger, lost, "was accepted and lost")
    applied = counted(testbed.effects, APPLIED)
    return Count(
        submitted=restarts.jobs,
        raised=raised.total(),
        errors=dict(raised),
        lost=restarts.jobs - len(completed),
        lost_as=dict(Counter(f"{job.state}: {job.reason}" for job in lost)),
        never_applied=restarts.jobs - len(applied),
        applied_twice=sum(count > 1 for count in applied.values()),
        completed_twice=sum(count_events(history) > 1 for history in histories),
        blocked=sum(job.holds_identity for job in jobs),
        completion=round(len(completed) / restarts.jobs, 6),
        attempts_above_1=sum(job.attempt > 1 for job in jobs),
        runs_lost=sum(count_events(history, "crash") for history in histories),
        workers_gone=gone,
        restarts=restarts.restarts,
        last_restart_to_rest=round(rest, 1),
        seconds=round(seconds, 1),
    )


def main() -> int:
    """Parse the command line, run, and print the counts. The exit code is 0 if the promise held."""
    options = parser(__doc__)
    options.add_argument("--jobs", type=int, default=1000)
    options.add_argument("--restarts", type=int, default=20)
    options.add_argument("--period", type=float, default=3.0, help="seconds between restarts")
    options.add_argument("--down", type=float, default=1.5, help="seconds that the server stays away, at most")
    add_workers(options, 2, concurrency=2)
    add_broker(options)
    return report(Restarts(**vars(options.parse_args())), run)


if __name__ == "__main__":
    sys.exit(main())
