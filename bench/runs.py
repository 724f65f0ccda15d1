"""The stage `run`: jobs that wait in the queue are run by a worker of two processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from bench import processor
from bench.contenders import Child, FailedError, environment_of, last_line, python_of
from bench.peers.common import MARKS, counted
from bench.rounds import Cost, as_results, run_rounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bench.contenders import Contender
    from bench.servers import Servers

WARM_UP = 0.1
"""The part of the jobs that run before the clock starts."""
START_SECONDS = 60.0
LONGEST = 20.0
"""After so many seconds the jobs that have run until then are counted."""
STEP = 0.002


class Runner:
    """Queues the jobs of one contender and runs its worker."""

    def __init__(self, contender: Contender, servers: Servers, variables: Mapping[str, str] | None = None) -> None:
        self._contender = contender
        places = servers.places_of(contender)
        self.broker, self.store = places.broker, places.store
        self.marks = servers.folder / f"runs-{contender.name.replace(' ', '-')}"
        self._environment = environment_of(contender, places) | {MARKS: str(self.marks)} | dict(variables or {})
        self._log = servers.log(contender)
        self._child = Child(contender, self._environment, self._log)
        self._commands: list[list[str]] = []
        self._numbers = count(1)

    def prepare(self) -> None:
        """Make the database. Raises `FailedError`."""
        self._commands = self._child.ask("prepare")["commands"]

    def measure(self, jobs: int) -> Cost:
        """Queue jobs, run them, and return what one took. Raises `FailedError`."""
        self.submit(jobs)
        with self.working():
            return self._timed(jobs)

    def wait(self, jobs: int) -> Cost:
        """Submit jobs and await each, while a worker runs. Raises `FailedError`."""
        self.marks.mkdir(exist_ok=True)
        before = processor.seconds()
        answer = self._child.ask("wait", count=jobs, first=next(self._numbers) * 1_000_000)
        return Cost((answer["ended"] - answer["began"]) / jobs, (processor.seconds() - before) / jobs)

    def submit(self, jobs: int) -> float:
        """Queue jobs, and return how many seconds that took. Raises `FailedError`."""
        shutil.rmtree(self.marks, ignore_errors=True)
        self.marks.mkdir()
        answer = self._child.ask("bulk", count=jobs, first=next(self._numbers) * 1_000_000)
        return float(answer["ended"] - answer["began"])

    def run_all(self, jobs: int, seconds: float) -> None:
        """Run what is queued to its end. Raises `FailedError`."""
        with self.working():
            ran, _ = self.await_runs(jobs, seconds)
        if ran < jobs:
            raise FailedError(f"{ran} of {jobs} jobs ran in {seconds:g} s")

    def _timed(self, jobs: int) -> Cost:
        self.await_runs(1 + int(jobs * WARM_UP), START_SECONDS)
        before, first, began = processor.seconds(), counted(self.marks), time.monotonic()
        last, ended = self.await_runs(jobs, LONGEST)
        if first >= jobs:
            raise FailedError(f"{jobs} jobs ended too soon to measure them")
        if last > jobs:
            raise FailedError(f"{last} runs of {jobs} jobs")
        return Cost((ended - began) / (last - first), (processor.seconds() - before) / (last - first))

    def await_runs(self, runs: int, seconds: float) -> tuple[int, float]:
        """Wait until so many runs are counted, or so long; return how many are, and when that was."""
        deadline = time.monotonic() + seconds
        while (found := counted(self.marks)) < runs and time.monotonic() < deadline:
            time.sleep(STEP)
        if found == 0:
            raise FailedError(f"its worker ran nothing in {seconds:g} s: {last_line(self._log)}")
        return found, time.monotonic()

    @contextmanager
    def working(self) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Run the worker for the length of a block, in a session of its own."""
        with self._log.open("ab") as log:
            workers = [
                subprocess.Popen(
                    [python_of(self._contender), *command],
                    env=self._environment, stdout=log, stderr=log, start_new_session=True,
                )
                for command in self._commands
            ]  # fmt: skip
        try:
            yield workers
        finally:
            for worker in workers:
                end(worker)

    def close(self) -> None:
        """End the process."""
        self._child.close()


def end(worker: subprocess.Popen[bytes], grace: float = 10.0) -> None:
    """End a worker in order, and with force if that takes long, or leaves processes behind."""
    worker.terminate()
    with suppress(subprocess.TimeoutExpired):
        worker.wait(grace)
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def compare(servers: Servers, contenders: Sequence[Contender], *, rounds: int, jobs: int) -> list[dict[str, Any]]:
    """Return what a run of a job takes every contender, beside the first one."""
    failures = {one.name: one.missing for one in contenders if one.missing}
    runners = {one.name: Runner(one, servers) for one in contenders if not one.missing}
    for name, runner in runners.items():
        try:
            runner.prepare()
        except FailedError as error:
            failures[name] = str(error)
    try:
        found = run_rounds(contenders, ["run"], rounds, lambda one, _kind: runners[one.name].measure(jobs), failures)
    finally:
        for runner in runners.values():
            runner.close()
    return as_results(found, contenders[0], jobs)
