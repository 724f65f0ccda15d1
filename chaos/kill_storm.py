"""Submit every identity twice while whole workers are killed with SIGKILL; count what was lost, doubled or blocked.

The two submissions of an identity follow each other at once, as a double click does. An effect is a row written as
the last act of a body, outside the ledger's transaction: a worker killed between the effect and its completion runs
the body again, which `applied_twice` counts honestly.

    python -m chaos.kill_storm --jobs 1500 --kills 20 --store sqlite

Exit code 0 only when no job was never applied, none completed twice, and none holds its identity at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onejob.job import Query
from onejob.lifecycle import State
from tests.services import eventually, start_redis

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onejob.job import Entry, Job
    from onejob.ledger import Ledger

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Storm:
    """What to do."""

    jobs: int
    kills: int
    workers: int
    concurrency: int
    store: str
    lease: float
    seed: int
    period: float


@dataclass(frozen=True, slots=True)
class Count:
    """What came of it."""

    never_applied: int
    applied_twice: int
    started_twice: int
    completed_twice: int
    blocked: int
    not_completed: int
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
        return not (self.never_applied or self.completed_twice or self.blocked or self.not_completed)


class Workers:
    """Worker processes in groups of their own; a group dies with one SIGKILL, as with its node."""

    def __init__(self, storm: Storm, environment: dict[str, str]) -> None:
        self._storm = storm
        self._environment = environment
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = [self._start(i) for i in range(storm.workers)]

    def _start(self, index: int) -> subprocess.Popen[bytes]:
        name = f"storm{index}-{time.monotonic_ns()}@localhost"
        command = [sys.executable, "-m", "celery", "-A", "chaos.storm_app", "worker", "-n", name, "-l", "WARNING"]
        command += ["-c", str(self._storm.concurrency), "--without-gossip", "--without-mingle"]
        with Path(self._environment["STORM_FOLDER"], f"worker{index}.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=ROOT, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def kill_one(self, dice: random.Random) -> None:
        """Kill a random worker with all its children, and start another in its place."""
        index = dice.randrange(len(self._processes))
        os.killpg(self._processes[index].pid, signal.SIGKILL)
        self._processes[index].wait()
        self._processes[index] = self._start(index)

    def end(self) -> None:
        """Kill them all."""
        for process in self._processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run(storm: Storm) -> Count:
    """Run the storm and count."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="onejob-storm-") as folder:
        broker = start_redis(Path(folder))
        environment = _environment(storm, folder, broker.url)
        os.environ.update(environment)
        _create_effects(Path(folder))
        from chaos.storm_app import app, apply_once
        from onejob.celery.runtime import runtime_of

        ledger = runtime_of(app).ledger
        workers = Workers(storm, environment)
        try:
            outcomes = _drive(storm, workers, apply_once)
            _await_rest(ledger, storm)
            return _count(storm, ledger, Path(folder), outcomes, time.monotonic() - began)
        finally:
            workers.end()
            broker.stop()


def _environment(storm: Storm, folder: str, broker: str) -> dict[str, str]:
    store = f"sqlite:///{folder}/ledger.db" if storm.store == "sqlite" else broker.replace("/0", "/1")
    own = {"STORM_FOLDER": folder, "STORM_BROKER": broker, "STORM_STORE": store, "STORM_LEASE": str(storm.lease)}
    return os.environ | own | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}


def _create_effects(folder: Path) -> None:
    with sqlite3.connect(folder / "effects.db") as effects:
        effects.execute("pragma journal_mode = wal")
        for table in ("started", "applied"):
            effects.execute(f"create table {table} (number integer, attempt integer)")


def _drive(storm: Storm, workers: Workers, task: object) -> dict[str, int]:
    """Submit everything twice while workers are killed."""
    span = storm.kills * storm.period
    outcomes = {"admitted": 0, "attached": 0}
    killer = threading.Thread(target=_kill, args=(storm, workers, random.Random(storm.seed + 1)))
    killer.start()
    began = time.monotonic()
    for number in range(storm.jobs):
        for _ in range(2):
            outcomes[str(task.delay(number).outcome)] += 1  # type: ignore[attr-defined]
        ahead = began + span * number / storm.jobs - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
    killer.join()
    return outcomes


def _kill(storm: Storm, workers: Workers, dice: random.Random) -> None:
    for _ in range(storm.kills):
        time.sleep(storm.period)
        workers.kill_one(dice)


def _await_rest(ledger: Ledger, storm: Storm) -> None:
    """Wait until no job is live, or nothing has moved for four leases."""

    def settled() -> bool:
        return not any(not job.state.final for job in _all_jobs(ledger))

    try:
        eventually(settled, timeout=60 + 8 * storm.lease)
    except AssertionError:
        print("not all jobs came to an end", file=sys.stderr)


def _all_jobs(ledger: Ledger) -> list[Job]:
    return ledger.find(Query(limit=1_000_000))


def _count(storm: Storm, ledger: Ledger, folder: Path, outcomes: dict[str, int], seconds: float) -> Count:
    jobs = _all_jobs(ledger)
    histories = [ledger.history(job.id) for job in jobs]
    completions = [sum(entry.event == "complete" for entry in history) for history in histories]
    noticed = sorted(delay for history in histories for delay in _noticed(history)) or [0.0]
    with sqlite3.connect(folder / "effects.db") as effects:
        applied = Counter(number for (number,) in effects.execute("select number from applied"))
        started = Counter(number for (number,) in effects.execute("select number from started"))
    return Count(
        never_applied=storm.jobs - len(applied),
        applied_twice=sum(count > 1 for count in applied.values()),
        started_twice=sum(count > 1 for count in started.values()),
        completed_twice=sum(count > 1 for count in completions) + len(jobs) - len({job.identity for job in jobs}),
        blocked=sum(job.holds for job in jobs),
        not_completed=sum(job.state is not State.COMPLETED for job in jobs),
        admitted=outcomes["admitted"],
        attached=outcomes["attached"],
        kills=storm.kills,
        runs_lost=sum(entry.event == "crash" for history in histories for entry in history),
        noticed_p50=round(noticed[len(noticed) // 2], 2),
        noticed_max=round(noticed[-1], 2),
        seconds=round(seconds, 1),
    )


def _noticed(history: Sequence[Entry]) -> Iterator[float]:
    """Yield, for each run that was lost, the seconds from its claim to the moment its job was queued again."""
    claimed = 0.0
    for entry in history:
        if entry.event == "claim":
            claimed = entry.at
        elif entry.event == "crash":
            yield entry.at - claimed


def main() -> int:
    """Parse the command line, run, print, and tell by the exit code whether the promise held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", type=int, default=1500)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--store", choices=["sqlite", "redis"], default="sqlite")
    parser.add_argument("--lease", type=float, default=6.0, help="seconds")
    parser.add_argument("--period", type=float, default=3.0, help="seconds between kills")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    storm = Storm(**vars(parser.parse_args()))
    print(json.dumps(asdict(storm)))
    count = run(storm)
    print(json.dumps(asdict(count), indent=2))
    return 0 if count.held else 1


if __name__ == "__main__":
    sys.exit(main())
