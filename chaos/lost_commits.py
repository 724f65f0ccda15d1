"""Cut the connection of every body at the COMMIT of its effects; count what was lost or applied twice.

A proxy stands between the sessions of the bodies and PostgreSQL; the ledger's own connections go directly. It cuts each
job's first COMMIT: `--cut after` drops the answer of the server, which has committed; `during` cuts as soon as the
COMMIT is on its way; `before` cuts instead of passing it on, so that the transaction is rolled back; `random` mixes
them. But for `after` and with `--plain`, the bodies try again after any error. `--slow` makes the server take its time
for each COMMIT: then a body whose connection is cut meanwhile cannot know whether the COMMIT succeeds.

    python -m chaos.lost_commits --jobs 1000 --cut after

Exit code 0 only when each job completed with its own result and was applied once. `--blind` writes the effects in a
transaction of their own, as people do: then the exit code is 0 only when some were applied twice, which shows that this
script would notice.
"""

from __future__ import annotations

import os
import random
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from chaos.command import add_broker, add_workers, parser, report
from chaos.effects import APPLIED, counted, sessions_of
from chaos.outcome import all_jobs, await_rest, count_events, print_histories
from chaos.proxy import CUTS, Proxy
from chaos.testbed import start_testbed
from chaos.workers import Workers
from onejob.celery.messages.payload import loads
from onejob.jobs.lifecycle import State

if TYPE_CHECKING:
    from chaos.testbed import Testbed
    from onejob.ledger.ledger import Ledger


SLOW = """\
create function take_time() returns trigger language plpgsql as 'begin perform pg_sleep({seconds}); return null; end';
create constraint trigger slow after insert on applied deferrable initially deferred
for each row execute function take_time()"""


@dataclass(frozen=True, slots=True)
class Commits:
    """The parameters of a run."""

    jobs: int
    cut: str
    blind: bool
    plain: bool
    slow: float
    workers: int
    concurrency: int
    broker: str
    lease: float
    seed: int


@dataclass(frozen=True, slots=True)
class Count:
    """The counts of a run."""

    blind: bool
    applied_never: int
    applied_twice: int
    not_completed: int
    completed_twice: int
    blocked: int
    wrong_results: int
    attempts_above_1: int
    cut_after: int
    cut_after_committed: int
    """Of those, how many the server had answered with "committed"."""
    cut_during: int
    cut_before: int
    not_cut: int
    runs_lost: int
    reported_completed: int
    """How often a worker logged that a body raised although its transaction had completed the job."""
    seconds: float

    @property
    def held(self) -> bool:
        """Whether the promise held; of the blind bodies, whether the damage was seen."""
        if self.blind:
            return self.applied_twice > 0
        jobs = self.not_completed or self.completed_twice or self.blocked or self.wrong_results
        return not (self.applied_never or self.applied_twice or jobs or self.not_cut)


def run(commits: Commits) -> Count:
    """Run the jobs and count."""
    began = time.monotonic()
    rng = random.Random(commits.seed)
    with start_testbed("postgresql") as testbed, Proxy(testbed.postgres.port, commits.cut, rng) as proxy:
        through = testbed.effects.replace(f":{testbed.postgres.port}/", f":{proxy.port}/")
        if commits.slow:
            _slow_down(testbed, commits.slow)
        broker = testbed.broker_url(commits.broker)
        environment = testbed.environment(lease=commits.lease, through=through, broker=broker)
        os.environ.update(environment)
        ledger, task = testbed.ledger(), _task(commits)
        options = {"count": commits.workers, "concurrency": commits.concurrency}
        with Workers("chaos.commit_app", environment, testbed.folder, **options) as workers:
            for number in range(commits.jobs):
                task.delay(number)
            await_rest(ledger, 60 + 8 * commits.lease + commits.jobs / 5)
            reported = workers.count_in_logs("was completed by its transaction")
            return _count(commits, ledger, testbed, proxy, reported, time.monotonic() - began)


def _slow_down(testbed: Testbed, seconds: float) -> None:
    """Make each COMMIT of an effect wait inside the server."""
    with sessions_of(testbed.effects).begin() as session:
        session.execute(text(SLOW.format(seconds=float(seconds))))


def _task(commits: Commits) -> Any:
    from chaos import commit_app

    if commits.blind:
        return commit_app.apply_blindly
    return commit_app.apply_once if commits.plain or commits.cut == "after" else commit_app.apply_stubbornly


def _count(commits: Commits, ledger: Ledger, testbed: Testbed, proxy: Proxy, reported: int, seconds: float) -> Count:
    jobs = all_jobs(ledger)
    histories = [ledger.history(job.id) for job in jobs]
    applied = counted(testbed.effects, APPLIED)
    print_histories(ledger, [job for job in jobs if job.state is not State.COMPLETED], "was not completed")
    wrong = [job for job in jobs if job.result != str(loads(job.payload)["args"][0])]
    return Count(
        blind=commits.blind,
        applied_never=commits.jobs - len(applied),
        applied_twice=sum(count > 1 for count in applied.values()),
        not_completed=sum(job.state is not State.COMPLETED for job in jobs),
        completed_twice=sum(count_events(history) > 1 for history in histories),
        blocked=sum(job.holds_identity for job in jobs),
        wrong_results=len(wrong),
        attempts_above_1=sum(job.attempt > 1 for job in jobs),
        cut_after=proxy.cuts["after"],
        cut_after_committed=proxy.cuts["answered"],
        cut_during=proxy.cuts["during"],
        cut_before=proxy.cuts["before"],
        not_cut=commits.jobs - sum(proxy.cuts[kind] for kind in CUTS),
        runs_lost=sum(count_events(history, "crash") for history in histories),
        reported_completed=reported,
        seconds=round(seconds, 1),
    )


def main() -> int:
    """Parse the command line, run, and print the counts. The exit code is 0 if the promise held."""
    options = parser(__doc__)
    options.add_argument("--jobs", type=int, default=1000)
    options.add_argument("--cut", choices=[*CUTS, "random"], default="after")
    options.add_argument("--blind", action="store_true", help="apply apart from the completion: the broken variant")
    options.add_argument("--plain", action="store_true", help="bodies that do not try again")
    options.add_argument("--slow", type=float, default=0.0, help="seconds that a COMMIT takes")
    add_workers(options, 1)
    add_broker(options)
    return report(Commits(**vars(options.parse_args())), run)


if __name__ == "__main__":
    sys.exit(main())
