"""Faults of a worker (lost, killed or frozen at a point of a run, or given a message twice), and their matrix.

The matrix runs a task under every fault at every point, recovers it, and compares its effects with the effects of a run
without a fault.
"""

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any
from unittest.mock import patch

from onejob.errors import ConfigurationError, OneJobError
from onejob.jobs.handover import BY_SWEEP
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.ledger.sweep import LEASE_ERROR
from onejob.testing.ledger import Hook, django_connections, is_in_django_transaction, parse_point
from onejob.testing.worker import InProcessWorker

RECOVERIES = 20
"""How often the clock is advanced to the next due job, until all jobs have ended."""


class FaultKind(StrEnum):
    """The kind of a worker's fault."""

    LOST = "lost"
    """The worker's run ends in this process, as if the worker had died: nothing more is written to the ledger."""
    KILLED = "killed"
    """The worker's run is in a child process, which is killed with SIGKILL: no `finally` of the body runs."""
    FROZEN = "frozen"
    """The worker's run stops until it has lost the job, then goes on; another run ends before, or begins afterwards."""
    REDELIVERED = "redelivered"
    """The worker's run goes on, after the message was delivered once more."""


@dataclass(frozen=True)
class Fault:
    """A fault at a point of a run."""

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
    """Return the faults of a task, as parameters of a test that calls `Jobs.survive`.

    `steps`: the names of its steps, in order; `progress`: how often it reports its progress. `Jobs.survive` fails if
    the task passes other points than these. Without `processes`, no process is killed.
    """
    writes = ["start", *(f"progress:{n + 1}" for n in range(progress)), *(f"step:{name}" for name in steps), "complete"]
    points = tuple(parse_point(f"{side}_{write}") for write in writes for side in ("before", "after"))
    return faults_at(points, points, processes=processes)


def declaration(passed: Iterable[str]) -> str:
    """Return the call of `faults` that names the points which a run has passed."""
    writes = [write for side, _, write in (point.partition("_") for point in passed) if side == "before"]
    steps = [write.removeprefix("step:") for write in writes if write.startswith("step:")]
    progress = sum(write.startswith("progress:") for write in writes)
    given = {"steps": steps, "progress": progress}
    return f"faults({', '.join(f'{name}={value!r}' for name, value in given.items() if value)})"


def faults_at(points: Sequence[str], declared: tuple[str, ...] = (), *, processes: bool) -> list[Fault]:
    """Return every kind of fault at every point."""
    if processes and not hasattr(os, "fork"):
        raise ConfigurationError("this system cannot fork, so no process can be killed: pass processes=False")
    kinds = [kind for kind in FaultKind if processes or kind is not FaultKind.KILLED]
    return [Fault(kind, point, declared) for kind in kinds for point in points]


def inject(worker: InProcessWorker, kind: FaultKind, point: str, task: str | None) -> None:
    """Inject a fault into the next run that reaches a point; `task`: only into a run of this task.

    Raises `ConfigurationError` for text that is no point.
    """
    actions: dict[FaultKind, tuple[str, Callable[[JobRow], object]]] = {
        FaultKind.LOST: ("lose_worker", worker.lose),
        FaultKind.FROZEN: ("freeze", partial(_overtake, worker)),
        FaultKind.REDELIVERED: ("redelivery", worker.deliver_again),
        FaultKind.KILLED: ("kill", lambda _job: os.kill(os.getpid(), signal.SIGKILL)),
    }
    name, action = actions[kind]
    point = parse_point(point)
    description = f"{name}(at={point!r}{f', task={task}' if task else ''})"
    worker.ledger.hooks.append(Hook(point, task, action, description))


def _overtake(worker: InProcessWorker, job: JobRow) -> None:
    """Stop a run until its lease has expired and other runs have ended; then it goes on.

    Within a transaction, the other run begins when this run has ended: otherwise it would wait for the transaction's
    locks, or on the same connection be a part of the transaction.
    """
    worker.clock.travel(job.lease + 1)
    ledger = worker.ledger
    if ledger.is_completing or is_in_django_transaction():
        ledger.crash(ledger.get(job.id), "its lease expired", LEASE_ERROR, lapsed=True, handover=BY_SWEEP)
    else:
        worker.run_all()


def execute_in_child(worker: InProcessWorker, request: Any, in_child: Callable[[], object]) -> bool:
    """Run a request in a child process; return whether it was killed. Raises `OneJobError` for another failure."""
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
        except BaseException:  # noqa: BLE001 - the process ends here
            traceback.print_exc()
        finally:
            os._exit(status)
    _, ended = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(ended)
    if code not in {0, -signal.SIGKILL}:
        raise OneJobError(f"the child process of a run ended with exit code {code}: look at its output above")
    return code != 0


# --- the matrix -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Survival:
    """The outcome of a task under one fault."""

    fault: Fault
    job: JobRow
    effects: Any = None
    """The value of `effects` afterwards."""
    problem: str = ""
    """The harm that the fault did; "" if it did none."""

    def __str__(self) -> str:
        outcome = self.problem or "survived"
        return f"  {self.fault!s:<40} {self.job.state}, attempts {self.job.attempt}: {outcome}"


@dataclass(frozen=True)
class CrashReport:
    """The outcome of a task under all faults."""

    call: str
    points: tuple[str, ...]
    """The points of an undisturbed run, in order."""
    expected: Any
    """The value of `effects` after the undisturbed run."""
    survivals: list[Survival] = field(default_factory=list)

    @property
    def problems(self) -> list[Survival]:
        """The faults that the task did not survive."""
        return [each for each in self.survivals if each.problem]

    def __str__(self) -> str:
        """Return the report as text: each harm, its point, and a remedy; without harm, all faults."""
        problems = self.problems
        head = f"crash matrix of {self.call}: {len(problems)} of {len(self.survivals)} faults did harm"
        lines = [head, *map(str, problems or self.survivals)]
        return "\n".join([*lines, "", advise(self.points, problems)] if problems else lines)


def advise(points: Sequence[str], problems: Sequence[Survival]) -> str:
    """Return the place where the first effect was repeated or lost, and a remedy."""
    # A frozen worker repeats an effect after the point where it froze; a lost worker, the effect before the point.
    lost = [each for each in problems if each.fault.kind in {FaultKind.LOST, FaultKind.KILLED}]
    first = min((each.fault.point for each in lost or problems), key=points.index)
    if first.startswith("before_step:"):
        name = first.partition(":")[2]
        return (
            f"The effect of step {name!r} happens before its value is kept, so that a crash in between repeats it. "
            f"Give the third party the idempotency key job.effect_key({name!r}), which is the same in every attempt; "
            "write an effect on your own database with job.transaction(...) instead of a step."
        )
    previous = points[max(points.index(first) - 1, 0)]
    return (
        f"An effect between {previous} and {first} is not kept, so that the next attempt repeats it. Wrap it in "
        "job.step(name, ...), so that it is not called again, and give a third party job.effect_key(name), for a crash "
        "within the step; write an effect on your own database with job.transaction(...)."
    )


@dataclass(frozen=True)
class Trial:
    """A call of a task that runs under faults, in the worker of a test."""

    worker: InProcessWorker
    task: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    _: KW_ONLY
    effects: Callable[[], Any] | None = None
    """A function that returns the effects of the call; None: only the end of the job is compared."""
    setup: Callable[[], object] = lambda: None
    """A function that removes the effects."""
    in_child: Callable[[], object] = lambda: None
    """A function to call in each child process before the run."""

    def submit(self) -> str:
        """Submit the call, and return the id of its job."""
        return str(self.task.apply_async(self.args, self.kwargs).id)

    def look(self) -> Any:
        """Return the effects; None without a function for them."""
        return None if self.effects is None else self.effects()

    def look_before(self) -> Any:
        """Return the effects before a run, or the type of the error if `effects` fails because there are none yet."""
        try:
            return deepcopy(self.look())
        except Exception as error:  # noqa: BLE001 - of the user's function
            return type(error)


def run_matrix(trial: Trial, call: str, *, processes: bool) -> CrashReport:
    """Run a call under all faults. Raises `AssertionError` with the report if a fault does harm."""
    __tracebackhide__ = True
    worker = trial.worker
    trial.setup()
    before = trial.look_before()
    job, expected = _run_clean(trial, before)
    if trial.effects is not None and expected == before:
        raise ConfigurationError(
            f"effects() did not change in a run without a fault: it is {expected!r} before and after, so that it does "
            "not see the effects. Return what the task changes, such as a count; effects=None checks the recovery only"
        )
    points = worker.ledger.points_of(job.id)
    if processes:
        _check_visible(trial, before, expected)
    report = CrashReport(call, points, expected)
    for fault in faults_at(points, processes=processes):
        _prepare(trial, before)
        survived, happened = survive(trial, fault)
        found, problem = _compare(trial, expected)
        if survived.state is not job.state:
            problem = f"the job is {survived.state} ({survived.reason}), without a fault {job.state}"
        if not happened:
            problem = problem or "no run has reached this point: the points of the task differ from run to run"
        report.survivals.append(Survival(fault, survived, found, problem))
    if report.problems:
        raise AssertionError(str(report))
    return report


def survive(trial: Trial, fault: Fault) -> tuple[JobRow, bool]:
    """Run a call under a fault, recover its job, and return it with whether the fault has happened."""
    worker, job_id = trial.worker, trial.submit()
    inject(worker, fault.kind, fault.point, trial.task.name)
    with _in_children(trial) if fault.kind is FaultKind.KILLED else nullcontext():
        recover(worker)
    happened = not worker.ledger.hooks
    worker.ledger.hooks.clear()
    return worker.ledger.get(job_id), happened


def recover(worker: InProcessWorker) -> list[JobRow]:
    """Run all due jobs, and advance the clock to the next due time, until all jobs have ended.

    Returns the jobs that have not ended after `RECOVERIES` rounds, such as a job that retries for ever.
    """
    left: list[JobRow] = []
    for _ in range(RECOVERIES):
        worker.run_all()
        left = [job for job in worker.ledger.find(Query(limit=1000)) if not job.state.final or job.canvas_pending]
        if not left:
            break
        due = min(job.wake_at or 0.0 for job in left)
        worker.clock.travel(max(due - worker.clock(), 0.0) + 0.001)
    return left


@contextmanager
def _in_children(trial: Trial) -> Iterator[None]:
    """Run the jobs in child processes, until a child is killed."""
    worker = trial.worker

    def prepare() -> None:
        for connection in django_connections():  # a child shares the sockets of its parent
            if not getattr(connection, "is_in_memory_db", lambda: False)():
                connection.connection = None
        trial.in_child()

    def execute(request: Any) -> None:
        if execute_in_child(worker, request, prepare):
            worker.ledger.hooks.clear()
            worker.execute = worker.execute_here

    with patch.object(worker, "execute", execute):
        yield


def _prepare(trial: Trial, before: Any) -> None:
    """Remove all jobs and effects. Raises `ConfigurationError` if the effects of an earlier run are still there."""
    __tracebackhide__ = True
    trial.worker.clear()
    trial.setup()
    found = trial.look_before()
    if found != before:
        raise ConfigurationError(
            f"effects() is {found!r} before a run, and was {before!r} before the first one: the effects of an earlier "
            "run are still there. Pass setup=, a function that removes them"
        )


def _run_clean(trial: Trial, before: Any) -> tuple[JobRow, Any]:
    """Run a call without a fault, and return its job with its effects."""
    __tracebackhide__ = True
    _prepare(trial, before)
    job_id = trial.submit()
    recover(trial.worker)
    job = trial.worker.ledger.get(job_id)
    if job.error is not None:
        raise AssertionError(
            f"without any fault, the job is {job.state} already: {job.reason}. Test the crashes of a job that succeeds"
        )
    return job, deepcopy(trial.look())


def _check_visible(trial: Trial, before: Any, expected: Any) -> None:
    """Raise `ConfigurationError` if `effects` does not see the effects of another process."""
    __tracebackhide__ = True
    try:
        with _in_children(trial):
            _, found = _run_clean(trial, before)
    except AssertionError as error:
        found = str(error)
    if found != expected:
        raise ConfigurationError(
            f"after a run in a child process, effects() finds {found!r}, and after one in this process {expected!r}: "
            "it looks at the memory of this process. Keep the effects of the test in a file or a database, so that "
            "they outlive a killed process, or pass processes=False"
        )


def _compare(trial: Trial, expected: Any) -> tuple[Any, str]:
    try:
        found = trial.look()
    except AssertionError as error:
        return None, f"effects: {str(error) or 'the assertion failed'}"
    return found, "" if found == expected else f"effects: {found!r}, without a fault {expected!r}"
