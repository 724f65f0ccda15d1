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
from chaos.ground import ROOT
from onejob.errors import StoreError
from onejob.jobs.model import Submission
from onejob.jobs.transitions import new_nonce
from onejob.ledger.sweep import sweep
from onejob.transactions import fence as fencing
from tests.services import eventually

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from chaos.ground import Ground
    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger

PATIENCE = 60.0
BODY = 0.15
"""Seconds in which a freeze from outside may fall: a little less than a body takes."""
MOMENTS = ("before the next run", "during the next run", "after the next run")


class Sweeper:
    """Sweeps the ledger from this process; `over` says when it gave a run's job back, by job and token."""

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
                sweep(self.ledger, self._publish)
            except StoreError as error:
                self.failed += 1
                print(f"a sweep failed: {error}", file=sys.stderr)

    def _publish(self, job: Job) -> None:
        self.over.setdefault((job.id, job.token), time.monotonic())


class Process:
    """A process that runs jobs, `chaos.frozen_run`."""

    def __init__(self, here: Ground) -> None:
        with (here.folder / "runs.log").open("ab") as log:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "chaos.frozen_run"],
                cwd=ROOT, env=here.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self._log = here.folder / "runs.log"
        self.pid = self._popen.pid

    def order(self, **order: Any) -> None:
        """Have it claim a job and run it."""
        assert self._popen.stdin is not None  # noqa: S101 - for the types
        self._popen.stdin.write(json.dumps(order) + "\n")
        self._popen.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return the next thing that it tells."""
        assert self._popen.stdout is not None  # noqa: S101 - for the types
        line = self._popen.stdout.readline()
        if not line:
            raise RuntimeError(f"a process has ended:\n{self._log.read_text()[-3000:]}")
        told: dict[str, Any] = json.loads(line)
        return told

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
        """Let it go on."""
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
    moment: str = ""
    held_up: bool = False
    session_ended: bool = False
    too_late: bool = False
    runs: list[dict[str, Any]] = field(default_factory=list)
    """What the runs told, the frozen one's included."""
    effects: list[int] = field(default_factory=list)
    """The tokens of the runs whose effects are there."""

    def writes(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield every write of every run, with the run's token."""
        for run in self.runs:
            for write in run.get("writes", ()):
                yield run["token"], write


class Lane:
    """Two processes: one is frozen, the other gets its job."""

    def __init__(self, here: Ground, sweeper: Sweeper, lease: float, dice: random.Random) -> None:
        self._here = here
        self._sweeper = sweeper
        self._ledger = here.ledger()
        self._lease = lease
        self.dice = dice
        self._processes = [Process(here), Process(here)]
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
        self._ledger.submit(_submission(freeze, self._lease), wake_in=PATIENCE)
        frozen, other = self.dice.sample(self._processes, 2)
        token = self._begin(frozen, freeze)
        if self._given_back(freeze, token):
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
            time.sleep(self.dice.uniform(0, BODY))
            process.freeze()
        process.await_frozen()
        return token

    def _given_back(self, freeze: Freeze, token: int) -> bool:
        """Wait for the sweeper to give the job back; False when it does not, long after the end of the lease."""
        try:
            eventually(lambda: (freeze.job_id, token) in self._sweeper.over, self._lease + 1.5)
        except AssertionError:
            return False
        return True

    def _thaw(self, freeze: Freeze, frozen: Process, other: Process) -> None:
        """Thaw the frozen run before, during or after the run that gets its job."""
        apart = self._here.server is None  # there, effects that wait for their commit lock the database of the effects
        freeze.moment = self.dice.choice(MOMENTS[:2] if apart and freeze.point in {"effects", "anywhere"} else MOMENTS)
        if freeze.moment == MOMENTS[0]:
            frozen.thaw()
        self._order(other, freeze)
        told = other.answer()
        if freeze.moment == MOMENTS[1]:
            frozen.thaw()
        freeze.runs.append(_rest(other, told))
        if freeze.moment == MOMENTS[2]:
            frozen.thaw()
        freeze.runs.append(_rest(frozen))

    def _thaw_holder(self, freeze: Freeze, token: int, frozen: Process, other: Process) -> None:
        """Thaw a run that holds the row of its job, or that had ended already; or else end its session first."""
        freeze.too_late = self._ledger.get(freeze.job_id).state.final
        freeze.held_up = not freeze.too_late
        freeze.session_ended = freeze.held_up and self._here.server is not None and self.dice.random() < 0.5
        if freeze.session_ended:
            self._end_session(frozen)
            eventually(lambda: (freeze.job_id, token) in self._sweeper.over, PATIENCE)
            self._thaw(freeze, frozen, other)
            return
        freeze.moment = "while it held the row"
        frozen.thaw()
        freeze.runs.append(_rest(frozen))

    def _end_session(self, process: Process) -> None:
        ending = text("select pg_terminate_backend(pid) from pg_stat_activity where application_name = :name")
        with effects.sessions_of(self._here.effects)() as session:
            session.execute(ending, {"name": session_name(process.pid)})

    def _ended(self, freeze: Freeze, process: Process) -> bool:
        """Tell whether the job has ended; if not, have it run by a process as soon as it can be."""
        if self._ledger.get(freeze.job_id).state.final:
            return True
        self._order(process, freeze)
        freeze.runs.append(_rest(process))
        return False

    def _order(self, process: Process, freeze: Freeze, point: str = "") -> None:
        process.order(id=freeze.job_id, number=freeze.number, point=point, effects=freeze.effects_url)

    def _effects_url(self, number: int) -> str:
        """Return where a job's effects go: in one database with the ledger, or into one of its own, with a fence."""
        if self._here.server is not None:
            return self._here.effects
        url = f"sqlite:///{self._here.folder}/effects-{number}.db"
        effects.create(url)
        with effects.sessions_of(url).begin() as session:
            session.execute(text(fencing.TABLE))
        return url


def _submission(freeze: Freeze, lease: float) -> Submission:
    return Submission(
        id=freeze.job_id, task="chaos.freeze", identity=freeze.job_id, fingerprint="", nonce=new_nonce(),
        payload=json.dumps(freeze.number), lease=lease,
    )  # fmt: skip


def _rest(process: Process, told: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the last thing that a process tells about its run."""
    while told is None or not told.get("done"):
        told = process.answer()
    return told
