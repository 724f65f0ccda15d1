"""Who freezes: processes that run jobs, a sweeper that gives lost jobs back, and lanes that bring both together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sqlalchemy import text

from chaos import effects
from chaos.frozen_run import session_name
from chaos.testbed import ROOT
from onejob.errors import StoreError
from onejob.jobs.handover import by_sweep
from onejob.jobs.model import Submission
from onejob.jobs.transitions import new_nonce
from onejob.ledger.sweep import Publishing, sweep
from onejob.transactions import fence as fencing
from tests.services import eventually

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from chaos.testbed import Testbed
    from onejob.jobs.model import JobRow
    from onejob.ledger.ledger import Ledger

TASK = "chaos.freeze"
PATIENCE = 60.0
BODY = 0.15
"""Seconds in which a freeze from outside may fall: a little less than a body takes."""
THAW_TIMES = ("before the next run", "during the next run", "after the next run")


class Sweeper:
    """Sweeps the ledger from this process; `over`: by job and token, when it queued a run's job again."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.over: dict[tuple[str, int], float] = {}
        self.failed = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sweep, name="sweeper")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()
        self._thread.join()
        self.ledger.close()

    def _sweep(self) -> None:
        while not self._stopped.wait(0.05):
            try:
                sweep(self.ledger, Publishing(self._publish), tasks=frozenset({TASK}))
            except StoreError as error:
                self.failed += 1
                print(f"a sweep failed: {error}", file=sys.stderr)

    def _publish(self, job: JobRow) -> None:
        self.over.setdefault((job.id, job.token), time.monotonic())


class Process:
    """A process that runs jobs, `chaos.frozen_run`."""

    def __init__(self, testbed: Testbed) -> None:
        with (testbed.folder / "runs.log").open("ab") as log:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "chaos.frozen_run"],
                cwd=ROOT, env=testbed.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True,
            )  # fmt: skip
        self._log = testbed.folder / "runs.log"
        self.pid = self._popen.pid

    def order(self, **order: Any) -> None:
        """Send an order: claim a job and run it."""
        assert self._popen.stdin is not None  # noqa: S101 - for the types
        self._popen.stdin.write(json.dumps(order) + "\n")
        self._popen.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return the next line of its output."""
        assert self._popen.stdout is not None  # noqa: S101 - for the types
        line = self._popen.stdout.readline()
        if not line:
            raise RuntimeError(f"a process has ended:\n{self._log.read_text()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def freeze(self) -> None:
        """Freeze it from outside."""
        os.kill(self.pid, signal.SIGSTOP)

    def await_frozen(self) -> None:
        """Wait until it is frozen."""
        eventually(self._frozen, PATIENCE)

    def _frozen(self) -> bool:
        pid, status = os.waitpid(self.pid, os.WUNTRACED | os.WNOHANG)
        if pid and not os.WIFSTOPPED(status):
            raise RuntimeError(f"a process has ended:\n{self._log.read_text()[-3000:]}")
        return bool(pid)

    def thaw(self) -> None:
        """Resume it."""
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill it."""
        self._popen.kill()
        self._popen.communicate()


@dataclass(slots=True)
class Freeze:
    """One job, one of whose runs was frozen."""

    number: int
    job_id: str
    point: str
    effects_url: str
    thaw_time: str = ""
    held_up: bool = False
    session_ended: bool = False
    too_late: bool = False
    runs: list[dict[str, Any]] = field(default_factory=list)
    """The answers of the runs, the frozen one's included."""
    effects: list[int] = field(default_factory=list)
    """The tokens of the runs whose effects are there."""

    def writes(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield every write of every run, with the run's token."""
        for run in self.runs:
            for write in run.get("writes", ()):
                yield run["token"], write


class Lane:
    """Two processes: one is frozen, the other claims its job."""

    def __init__(self, testbed: Testbed, sweeper: Sweeper, lease: float, rng: random.Random) -> None:
        self._testbed = testbed
        self._sweeper = sweeper
        self._ledger = testbed.ledger()
        self._lease = lease
        self.rng = rng
        self._processes = [Process(testbed), Process(testbed)]
        for process in self._processes:
            process.answer()

    def end(self) -> None:
        """Kill the processes."""
        for process in self._processes:
            process.end()
        self._ledger.close()

    def freeze(self, number: int, point: str) -> Freeze:
        """Freeze a run of a new job, and bring the job to its end."""
        freeze = Freeze(number, str(uuid4()), point, self._effects_url(number))
        self._ledger.submit(_submission(freeze, self._lease), handover=by_sweep(PATIENCE))
        frozen, other = self.rng.sample(self._processes, 2)
        token = self._begin(frozen, freeze)
        if self._await_requeued(freeze, token):
            self._thaw(freeze, frozen, other)
        else:
            self._thaw_holder(freeze, token, frozen, other)
        eventually(partial(self._ended, freeze, other), PATIENCE)
        freeze.effects = effects.tokens(freeze.effects_url, effects.APPLIED).get(number, [])
        return freeze

    def _begin(self, process: Process, freeze: Freeze) -> int:
        """Have a process run the job up to its freeze, and return its token."""
        self._order(process, freeze, freeze.point)
        token: int = process.answer()["token"]
        if freeze.point == "anywhere":
            time.sleep(self.rng.uniform(0, BODY))
            process.freeze()
        process.await_frozen()
        return token

    def _await_requeued(self, freeze: Freeze, token: int) -> bool:
        """Wait for the sweeper to queue the job again; False if it does not, long after the end of the lease."""
        try:
            eventually(lambda: (freeze.job_id, token) in self._sweeper.over, self._lease + 1.5)
        except AssertionError:
            return False
        return True

    def _thaw(self, freeze: Freeze, frozen: Process, other: Process) -> None:
        """Thaw the frozen run before, during or after the run that gets its job."""
        # Without PostgreSQL, uncommitted effects lock their whole database.
        locked = self._testbed.server is None and freeze.point in {"effects", "anywhere"}
        freeze.thaw_time = self.rng.choice(THAW_TIMES[:2] if locked else THAW_TIMES)
        if freeze.thaw_time == THAW_TIMES[0]:
            frozen.thaw()
        self._order(other, freeze)
        answer = other.answer()
        if freeze.thaw_time == THAW_TIMES[1]:
            frozen.thaw()
        freeze.runs.append(_last_answer(other, answer))
        if freeze.thaw_time == THAW_TIMES[2]:
            frozen.thaw()
        freeze.runs.append(_last_answer(frozen))

    def _thaw_holder(self, freeze: Freeze, token: int, frozen: Process, other: Process) -> None:
        """Thaw a run that holds the row of its job, or that had ended already; or else end its session first."""
        freeze.too_late = self._ledger.get(freeze.job_id).state.final
        freeze.held_up = not freeze.too_late
        freeze.session_ended = freeze.held_up and self._testbed.server is not None and self.rng.random() < 0.5
        if freeze.session_ended:
            self._end_session(frozen)
            eventually(lambda: (freeze.job_id, token) in self._sweeper.over, PATIENCE)
            self._thaw(freeze, frozen, other)
            return
        freeze.thaw_time = "while it held the row"
        frozen.thaw()
        freeze.runs.append(_last_answer(frozen))

    def _end_session(self, process: Process) -> None:
        ending = text("select pg_terminate_backend(pid) from pg_stat_activity where application_name = :name")
        with effects.sessions_of(self._testbed.effects)() as session:
            session.execute(ending, {"name": session_name(process.pid)})

    def _ended(self, freeze: Freeze, process: Process) -> bool:
        """Return whether the job has ended; if not, have it run by a process as soon as it can be."""
        if self._ledger.get(freeze.job_id).state.final:
            return True
        self._order(process, freeze)
        freeze.runs.append(_last_answer(process))
        return False

    def _order(self, process: Process, freeze: Freeze, point: str = "") -> None:
        process.order(id=freeze.job_id, number=freeze.number, point=point, effects=freeze.effects_url)

    def _effects_url(self, number: int) -> str:
        """Return the URL of a job's effects: the ledger's database, or one of its own, with a fence."""
        if self._testbed.server is not None:
            return self._testbed.effects
        url = f"sqlite:///{self._testbed.folder}/effects-{number}.db"
        effects.create(url)
        with effects.sessions_of(url).begin() as session:
            session.execute(text(fencing.TABLE))
        return url


def _submission(freeze: Freeze, lease: float) -> Submission:
    return Submission(
        id=freeze.job_id, task=TASK, identity=freeze.job_id, fingerprint="", nonce=new_nonce(),
        payload=json.dumps(freeze.number), lease=lease,
    )  # fmt: skip


def _last_answer(process: Process, answer: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the last line that a process writes about its run."""
    while answer is None or not answer.get("done"):
        answer = process.answer()
    return answer
