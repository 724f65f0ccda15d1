"""What other processes do to a store during a test. They share nothing with the test but the store.

They are forked from a server process that has imported everything and opened nothing, which is as clean as a new
interpreter and twenty times as fast.
"""

import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from onejob.errors import PartlySubmittedError, QuotaExceededError
from onejob.jobs.handover import Way, by_caller
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.limits import KeyUse, LimitValue, first_park, rate_value, write_uses
from onejob.jobs.model import Admission
from onejob.jobs.query import Query
from onejob.jobs.submitter import Charge, Quota
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger
from onejob.stores.protocol import Store
from tests.services import eventually
from tests.stores.support import (
    REPLACE,
    RUN_AGAIN,
    StoreAddress,
    apply,
    change,
    claim,
    get,
    not_none,
    start,
    submission,
    submit_one,
    take_due,
)

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__, "onejob.stores.sqlite", "onejob.stores.redis"])
SPAWN = multiprocessing.get_context("spawn")
"""For tests that must begin in an interpreter that has never been forked."""
PATIENCE = 40.0
POLICIES: tuple[dict[str, Any], ...] = ({}, REPLACE, RUN_AGAIN, RUN_AGAIN)
"""The conflict policies of the submissions of a working process, in turn."""


@dataclass(frozen=True)
class RaceProcess:
    """A process of a race: the address of the store, the number of the process, and the barrier at which all start."""

    address: StoreAddress
    number: int
    barrier: Barrier

    def ready(self) -> None:
        """Wait until all processes are ready."""
        self.barrier.wait(PATIENCE)


def race(address: StoreAddress, count: int, work: Callable[..., Any], *args: Any, context: Any = CONTEXT) -> list[Any]:
    """Run `work(process, *args)` in `count` processes at once and return the results."""
    barrier = context.Barrier(count)
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    processes = [RaceProcess(address, number, barrier) for number in range(count)]
    runners = [
        context.Process(target=_run, args=(pipe[1], work, process, args))
        for pipe, process in zip(pipes, processes, strict=True)
    ]
    for runner, (_, far) in zip(runners, pipes, strict=True):
        runner.start()
        far.close()
    try:
        return [_answer(near) for near, _ in pipes]
    finally:
        for runner in runners:
            runner.join(5.0)
            runner.kill()


def _run(answer: Connection, work: Callable[..., Any], process: RaceProcess, args: Sequence[Any]) -> None:
    try:
        answer.send(work(process, *args))
    except BaseException as error:
        process.barrier.abort()
        answer.send(error)
        raise


def _answer(near: Connection) -> Any:
    assert near.poll(PATIENCE), "a process does not respond"
    value = near.recv()
    if isinstance(value, BaseException):
        raise value
    return value


# --- races ----------------------------------------------------------------------------------------------------------


def submit_in_rounds(process: RaceProcess, rounds: int) -> list[tuple[str, str]]:
    """Open the store and submit one identity per round, at the same time as the other processes."""
    answers = []
    process.ready()
    with process.address.opened() as store:
        ledger = Ledger(store)
        for number in range(rounds):
            process.ready()
            admission = ledger.submit(
                submission(f"job-{number}-{process.number}", identity=f"identity-{number}", nonce=new_nonce())
            )
            answers.append((str(admission.outcome), admission.job.id))
    return answers


def submit_batches_in_rounds(process: RaceProcess, rounds: int, size: int, crossed: bool) -> list[tuple[str, str]]:
    """Submit one batch per round, of the same identities as the others, but every second process in reverse order.

    `crossed`: every second process has the keys of the identities in reverse order.
    """
    answers = []
    with process.address.opened() as store:
        for number in range(rounds):
            names = [f"{number}-{n}" for n in range(size)][:: -1 if process.number % 2 else 1]
            keys = sorted(names) if crossed else names
            submissions = [
                submission(f"{name}-{process.number}", identity=name, key=key, follows=True)
                for name, key in zip(names, keys, strict=True)
            ]
            process.ready()
            admissions = Ledger(store).submit_many(submissions)
            answers += [(str(each.outcome), each.job.id) for each in admissions]
    return answers


def take_in_rounds(process: RaceProcess, rounds: int) -> list[tuple[bool, list[str], str | None]]:
    """In each round claim one job, take due jobs, and keep one step of a running job, at once with the others."""
    answers = []
    with process.address.opened() as store:
        running = not_none(get(store, "running"))
        for number in range(rounds):
            process.ready()
            claimed = claim(store, f"job-{number}").applied
            process.ready()
            due = [job.id for job in take_due(store, limit=3, hold=600.0)]
            kept = store.keep_step(
                running.id, running.token, f"step-{number}", str(process.number), sources=frozenset({State.RUNNING})
            )
            answers.append((claimed, due, kept))
    return answers


def charge_in_rounds(process: RaceProcess, rounds: int, limit: int) -> list[int]:
    """In each round submit new jobs under one quota until it is used up, at once with the others; return their numbers.

    Every second process submits batches, in which it repeats what the others submit.
    """
    counts = []
    process.ready()
    with process.address.opened() as store:
        ledger = Ledger(store)
        for number in range(rounds):
            charges = (Charge("quota", Quota(limit, 600), f"name-{number}"),)
            process.ready()
            admitted = 0
            for turn in range(limit + 1):
                identities = [f"{number}-{turn}", f"{number}-{turn}-{process.number}"][process.number % 2 :]
                batch = [submission(f"{each}-{process.number}", identity=each, charges=charges) for each in identities]
                results: Any
                try:
                    results = ledger.submit_many(batch)
                except PartlySubmittedError as error:
                    results = error.results
                except QuotaExceededError:
                    results = ()
                admitted += sum(isinstance(each, Admission) and each.outcome.makes_job for each in results)
            counts.append(admitted)
    return counts


def killed_while_charged(address: StoreAddress, limit: int) -> None:
    """Kill processes that submit jobs and batches under one quota, while they do."""
    charges = (Charge("quota", Quota(limit, 600), "webshop"),)
    with address.opened() as store:
        for turn in range(4):
            runner = CONTEXT.Process(target=_submit_forever, args=(address, turn, charges))
            before = sum(store.counts(Query()).values())
            runner.start()
            eventually(lambda before=before: sum(store.counts(Query()).values()) > before + 20)  # type: ignore[misc]
            runner.kill()
            runner.join()


def _submit_forever(address: StoreAddress, turn: int, charges: tuple[Charge, ...]) -> None:
    with address.opened() as store:
        for number in itertools.count():
            store.submit_many(
                [submission(f"{turn}-{number}-{n}", charges=charges) for n in range(1 + number % 4)],
                handover_of=by_caller,
            )


# --- crashes --------------------------------------------------------------------------------------------------------


def work_until_killed(address: StoreAddress, log: Path, name: str) -> None:
    """Submit, claim, end and follow without a pause, and write each acknowledged operation to a log."""
    with log.open("ab", buffering=0) as lines, address.opened() as store:
        for number in itertools.count():
            job_id, identity = f"{name}-{number}", f"{name}-{number % 20}"
            values = POLICIES[number % len(POLICIES)] | ({"key": identity} if number % 5 == 0 else {})
            new = submission(job_id, identity=identity, fingerprint=str(number % 3), follows=number % 3 == 0, **values)
            lines.write(f"{submit_one(store, new, wake_after=30.0).outcome} {job_id}\n".encode())
            answer = claim(store, job_id) if number % 2 else None
            if answer is not None and answer.applied and answer.job is not None:
                event = Transition.COMPLETE if number % 4 == 1 else Transition.RETRY
                store.apply(change(answer.job, event, result=job_id, wake_after=30.0))
                lines.write(f"{event} {job_id}\n".encode())


LIMITS = (
    LimitValue(key="gpu", running=2, is_default=True), LimitValue(key="customer", running=1, is_default=True),
    rate_value("api", "60000/second", 9, is_default=True),
)  # fmt: skip
"""The limits of the jobs of `use_slots_until_killed`."""
LIMITED_BY = (("gpu",), ("customer=1", "gpu"), ("customer=2", "api"), ("api",))


def use_slots_until_killed(address: StoreAddress, log: Path, name: str) -> None:
    """Submit jobs with limits, make waiting ones due, claim and end them, without a pause; log the submissions."""
    with log.open("ab", buffering=0) as lines, address.opened() as store:
        store.put_limits(LIMITS)
        for number in itertools.count():
            keys = write_uses([KeyUse(key) for key in LIMITED_BY[number % len(LIMITED_BY)]])
            job_id = f"{name}-{number}"
            new = submission(job_id, identity=job_id, limit_keys=keys, parked_on=first_park(keys))
            lines.write(f"{submit_one(store, new, wake_after=30.0).outcome} {job_id}\n".encode())
            for key in {key for keys in LIMITED_BY for key in keys}:
                for freed in store.free_slots(key, way=Way.CALLER, limit=2).jobs:
                    answer = claim(store, freed.id)
                    if answer.applied and answer.job is not None and number % 3:
                        store.apply(change(answer.job, Transition.COMPLETE, result=freed.id, wake_after=30.0))


# --- forks ----------------------------------------------------------------------------------------------------------


def use_after_fork(process: RaceProcess, forks: int) -> tuple[list[int], int]:
    """Fork repeatedly while a thread uses the store; return the children's exit codes and the thread's count."""
    store = process.address.open()
    done = threading.Event()
    used: list[int] = []
    thread = threading.Thread(target=_use, args=(store, done, used), daemon=True)
    thread.start()
    codes = []
    for number in range(forks):
        used_before = len(used)
        eventually(lambda used_before=used_before: len(used) > used_before)  # type: ignore[misc]
        codes.append(in_child(partial(_run_job, store, f"child-{number}")))
    done.set()
    thread.join(PATIENCE)
    _run_job(store, "parent")
    return codes, len(used)


def _use(store: Store, done: threading.Event, used: list[int]) -> None:
    for number in itertools.count():
        if done.is_set():
            return
        _run_job(store, f"thread-{number}")
        used.append(number)


def _run_job(store: Store, job_id: str) -> None:
    """Submit a job, run it, end it and read it: a child that can do this can use the store."""
    submit_one(store, submission(job_id), wake_after=30.0)
    ended = apply(store, start(store, job_id), Transition.COMPLETE, result=job_id, wake_after=30.0)
    assert get(store, job_id) == ended


def fork_in_two_threads(process: RaceProcess, forks: int) -> list[int]:
    """Fork from two threads at once, with a store that both use in between."""
    store = process.address.open()
    _run_job(store, "first")
    codes: list[int] = []
    at_once = threading.Barrier(2)
    sys.setswitchinterval(1e-6)

    def fork_many(name: str) -> None:
        for number in range(forks):
            at_once.wait(PATIENCE / 2)
            codes.append(in_child(partial(get, store, "first")))
            _run_job(store, f"{name}-{number}")

    threads = [threading.Thread(target=fork_many, args=(name,), daemon=True) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE / 2)
    assert not any(thread.is_alive() for thread in threads), "a fork or an operation after it hangs"
    return codes


def close_after_fork(process: RaceProcess) -> list[str]:
    """Close the parent's store while a forked child writes; return the ids that a third process then reads."""
    store = process.address.open()
    _run_job(store, "parent")
    to_child, to_parent = os.pipe(), os.pipe()

    def child() -> None:
        for number in range(3):
            _run_job(store, f"child-{number}")
            os.write(to_parent[1], b".")
            os.read(to_child[0], 1)

    pid = _fork(child)
    found: list[str] = []
    for _ in range(3):
        os.read(to_parent[0], 1)
        store.close()
        found = race(process.address, 1, read_ids)[0]
        os.write(to_child[1], b".")
    assert _wait(pid) == 0
    return found


def read_ids(process: RaceProcess) -> list[str]:
    """Return the ids of all jobs."""
    with process.address.opened() as store:
        return [job.id for job in store.find(Query(limit=1000))]


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a forked child, and return its exit code: 0 unless it raises."""
    return _wait(_fork(work))


def _fork(work: Callable[[], object]) -> int:
    """Run `work` in a forked child and return the child's id. The child ends without any cleaning up."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException:  # noqa: BLE001 - a child of a test never returns
        os._exit(1)
    os._exit(0)


def _wait(pid: int) -> int:
    """Return a child's exit code; kill a child that hangs."""
    deadline = time.monotonic() + PATIENCE / 2
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
