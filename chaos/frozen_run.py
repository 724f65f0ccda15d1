"""A process that claims jobs and runs them as a frozen worker would.

It freezes itself where its orders require it, continues when it is thawed, and after a refusal goes on to its next
write. It reports the result of each write. Its input are orders, its output are answers, as lines of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import sessionmaker

from chaos import effects
from chaos.testbed import NAMESPACE, PATIENT
from onejob import fence
from onejob.celery import run as runs
from onejob.celery.current_job import RunningJob
from onejob.errors import JobInterrupted, StaleTokenError
from onejob.jobs.text_limits import TextLimits
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger
from onejob.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.orm import Session

    from onejob.jobs.model import JobRow

HEARTBEAT = 0.3
BREATH = 0.02
"""Seconds between two writes, so that a stop from outside can fall between them, too."""
POINTS = ("start", "step", "progress", "effects", "completing", "anywhere")
"""Where a run is frozen. `effects`: written, not committed. `completing`: the completion written and not committed, or
apart from the ledger's database, effects committed and the completion not yet written. `anywhere`: from outside."""


def write_line(**fields: Any) -> None:
    """Write one line of JSON to the output."""
    print(json.dumps(fields), flush=True)


class Heart:
    """Renews the lease of the run of this process, as a worker's heartbeat does; frozen with it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.claim: tuple[str, str] | None = None
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while True:
            time.sleep(HEARTBEAT)
            if (claim := self.claim) is not None:
                with suppress(Exception):
                    self._ledger.renew([claim])


class Run:
    """One run of one job."""

    def __init__(self, ledger: Ledger, job: JobRow, order: dict[str, Any], sessions: sessionmaker[Session]) -> None:
        self.ledger = ledger
        self.job = job
        self.number: int = order["number"]
        self.point: str = order["point"]
        self.handle = RunningJob(runs.Run(job, ledger, TextLimits()))
        self.writes: list[dict[str, Any]] = []
        self.note: dict[str, Any] = {}
        """The note of the write that is under way."""
        self.sessions = sessions
        self.together = ledger.store.__class__.__name__ == "PostgresStore"

    def body(self) -> None:
        """Make every write of a life, and then those that would come too late in any case."""
        self.stop_at("start")
        self.write("step", lambda: self.handle.step(f"of-{self.job.token}", self._inside_step))
        self.stop_at("progress")
        self.write("progress", partial(self.handle.progress, self.job.token))
        self.write("completion", self._end_together if self.together else self._end_apart)
        if self.writes[-1]["answer"] != "error":  # else the run may still be the job's: leave it to its lease
            self.late()

    def late(self) -> None:
        """Try the writes that a run must not make whose job has ended, or belongs to another run."""
        keep, report = self.ledger.keep_step, self.ledger.report
        self.write("late step", lambda: keep(self.job, f"late-{self.job.token}", "1"))
        self.write("late progress", lambda: report(self.job, '"late"'))
        self.write("late completion", lambda: self.ledger.complete(self.job, '"late"'))
        self.write("late release", lambda: self.ledger.release(self.job, "late"))
        self.write("late failure", lambda: self.ledger.fail(self.job, '{"late": true}', "late"))
        claim = (self.job.id, self.job.claim)
        held = self.ledger.renew([claim])[0].held
        self.writes.append({"write": "late renewal", "began": time.monotonic(), "answer": _answer(accepted=held)})

    def write(self, name: str, act: Callable[[], object]) -> None:
        """Make a write, and note when it began and whether it was accepted."""
        time.sleep(BREATH)
        note = self.note = {"write": name, "began": time.monotonic(), "answer": "accepted"}
        try:
            act()
        except (StaleTokenError, JobInterrupted):
            note["answer"] = "refused"
        except Exception as error:  # noqa: BLE001 - any error of a cut connection or a lock is reported
            note |= {"answer": "error", "error": f"{type(error).__name__}: {error}"[:300]}
        self.writes.append(note)
        self.note = {}

    def stop_at(self, point: str) -> None:
        """Freeze if this is the point. What is under way here then begins, for the ledger, after the thaw."""
        if point == self.point:
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # to this thread: it does not outrun its stop
            self.note["began"] = time.monotonic()

    def _inside_step(self) -> int:
        self.stop_at("step")
        return self.job.token

    def _effect(self, session: Session) -> None:
        effects.write(session, effects.APPLIED, self.number, self.job, os.getpid())
        time.sleep(BREATH)
        self.stop_at("effects")

    def _end_together(self) -> None:
        with self.handle.transaction(self.sessions) as session:
            self._effect(session)
            self.handle.complete_in(session, self.job.token)
            time.sleep(BREATH)
            self.stop_at("completing")

    def _end_apart(self) -> None:
        with self.sessions.begin() as session:
            if fence(session, self.job):
                self._effect(session)
        time.sleep(BREATH)
        self.stop_at("completing")
        self.ledger.complete(self.job, str(self.job.token))


def _answer(*, accepted: bool) -> str:
    return "accepted" if accepted else "refused"


@contextmanager
def beating(heart: Heart, job: JobRow) -> Iterator[None]:
    """Renew a job's lease during a block."""
    heart.claim = (job.id, job.claim)
    try:
        yield
    finally:
        heart.claim = None


def sessions_at(url: str) -> sessionmaker[Session]:
    """Return what opens sessions; on PostgreSQL, their `application_name` identifies the process."""
    name = {} if url.startswith("sqlite") else {"application_name": session_name(os.getpid())}
    return sessionmaker(effects.engine_of(url, **name))


def session_name(pid: int) -> str:
    """Return the `application_name` of the sessions of a process."""
    return f"frozen-run-{pid}"


def obey(ledger: Ledger, heart: Heart, order: dict[str, Any]) -> None:
    """Claim a job, run it, and report."""
    claimed = ledger.claim(order["id"], nonce=new_nonce(), node=f"process-{os.getpid()}")
    if not claimed.applied or claimed.job is None:
        write_line(claimed=False, done=True)
        return
    write_line(claimed=True, token=claimed.job.token)
    run = Run(ledger, claimed.job, order, sessions_at(order["effects"]))
    with beating(heart, claimed.job):
        run.body()
    write_line(done=True, token=claimed.job.token, writes=run.writes)


def main() -> int:
    """Obey until the input ends."""
    ledger = Ledger(open_store(os.environ["CHAOS_STORE"], namespace=NAMESPACE), PATIENT)
    heart = Heart(ledger)
    write_line(ready=True)
    for line in sys.stdin:
        obey(ledger, heart, json.loads(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
