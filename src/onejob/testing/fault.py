"""The faults of a worker: it is lost, killed or frozen at a point of a run, or gets a message twice."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from onejob.errors import ConfigurationError, OneJobError
from onejob.ledger.sweep import LEASE_ERROR
from onejob.testing.ledger import Hook, is_in_django_transaction, parse_point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from onejob.jobs.model import Job
    from onejob.testing.worker import InProcessWorker


class FaultKind(StrEnum):
    """What happens to a worker."""

    LOST = "lost"
    """Its run ends in this process, as if the worker had died: nothing more is written to the ledger."""
    KILLED = "killed"
    """Its run is in a child process, which is killed with SIGKILL: no `finally` of the body runs."""
    FROZEN = "frozen"
    """Its run stops until it has lost the job, and then goes on; another run has ended before, or begins afterwards."""
    REDELIVERED = "redelivered"
    """Its run goes on, after the message was delivered once more."""


@dataclass(frozen=True)
class Fault:
    """One fault at one point of a run."""

    kind: FaultKind
    point: str
    declared: tuple[str, ...] = ()
    """The points that `faults` was given; () for a fault that a crash matrix has found."""

    def __str__(self) -> str:
        return f"{self.kind} at {self.point}"

    @property
    def __name__(self) -> str:
        """The name of a parametrized test."""
        return f"{self.kind}-{self.point}"


def faults(*, steps: Iterable[str] = (), progress: int = 0, processes: bool = True) -> list[Fault]:
    """Return the faults of a task, each for a parametrized test that calls `Jobs.survive`.

    `steps`: the names of its steps, in order; `progress`: how often it reports its progress. `Jobs.survive` fails if
    the task passes other points than these. Without `processes`, no process is killed.
    """
    writes = ["start", *(f"progress:{n + 1}" for n in range(progress)), *(f"step:{name}" for name in steps), "complete"]
    points = tuple(parse_point(f"{side}_{write}") for write in writes for side in ("before", "after"))
    return faults_at(points, points, processes=processes)


def faults_at(points: Sequence[str], declared: tuple[str, ...] = (), *, processes: bool) -> list[Fault]:
    """Return every kind of fault at every point."""
    if processes and not hasattr(os, "fork"):
        msg = "this system cannot fork, so no process can be killed: pass processes=False"
        raise ConfigurationError(msg)
    kinds = [kind for kind in FaultKind if processes or kind is not FaultKind.KILLED]
    return [Fault(kind, point, declared) for kind in kinds for point in points]


def lose_worker(worker: InProcessWorker, point: str, task: str | None) -> None:
    """End the next run at a point, as if its worker had died."""
    _add_hook(worker, point, task, worker.lose, "lose_worker")


def freeze(worker: InProcessWorker, point: str, task: str | None) -> None:
    """Stop the next run at a point, until its lease has expired and other runs have ended; then it goes on.

    Within a transaction, the other run begins when this one has ended: it would wait for the locks of the transaction,
    and on the same connection it would be a part of it.
    """

    def overtake(job: Job) -> None:
        worker.clock.travel(job.lease + 1)
        ledger = worker.ledger
        if ledger.is_completing or is_in_django_transaction():
            ledger.crash(ledger.get(job.id), "its lease expired", LEASE_ERROR, lapsed=True, wake_after=0.0)
        else:
            worker.run_all()

    _add_hook(worker, point, task, overtake, "freeze")


def inject(worker: InProcessWorker, fault: Fault, task: str) -> None:
    """Have a fault happen to the next run of a task that reaches its point."""
    match fault.kind:
        case FaultKind.LOST:
            lose_worker(worker, fault.point, task)
        case FaultKind.FROZEN:
            freeze(worker, fault.point, task)
        case FaultKind.REDELIVERED:
            _add_hook(worker, fault.point, task, worker.deliver_again, "redelivery")
        case FaultKind.KILLED:
            _add_hook(worker, fault.point, task, _kill_own_process, "kill")


def execute_in_child(worker: InProcessWorker, request: Any, in_child: Callable[[], object]) -> bool:
    """Run a request in a child process; return whether that was killed. Raises `OneJobError` if it broke otherwise."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # this process may have threads: the child uses none
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            in_child()
            worker.execute_here(request)
            status = 0
        finally:
            os._exit(status)
    _, ended = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(ended)
    if code not in {0, -signal.SIGKILL}:
        msg = f"the child process of a run ended with exit code {code}: look at its output above"
        raise OneJobError(msg)
    return code != 0


def forget_inherited_connections() -> None:
    """Have Django open new connections in this child process: it shares the sockets of its parent."""
    database: Any = sys.modules.get("django.db")
    if database is None:
        return
    for connection in database.connections.all(initialized_only=True):
        in_memory = getattr(connection, "is_in_memory_db", lambda: False)
        if not in_memory():
            connection.connection = None


def _kill_own_process(_job: Job) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _add_hook(
    worker: InProcessWorker, point: str, task: str | None, action: Callable[[Job], object], name: str
) -> None:
    full = parse_point(point)
    description = f"{name}(at={full!r}{f', task={task}' if task else ''})"
    worker.ledger.hooks.append(Hook(full, task, action, description))
