"""A day of work of a shop: an app, a ledger that is filled with its jobs on a clock that jumps, and changes that go on.

    python -m bench.workday --rate 1000

makes so many changes per second until its input ends, and prints the rate that it has reached.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import celery

import onejob
from onejob.celery.app_state import app_state_of
from onejob.celery.submission.call import Call, prepare
from onejob.jobs.submitter import Submitter, submitting_as
from onejob.jobs.transitions import new_nonce
from onejob.jobs.workers import Registration
from onejob.ledger.ledger import Ledger, NextRun
from onejob.observability.meter import Meter
from onejob.pages.app import dashboard
from tests.stores.support import StoreAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from starlette.applications import Starlette

    from onejob.jobs.model import JobRow, Submission

BROKER, STORE = "ONEJOB_BENCH_BROKER", "ONEJOB_BENCH_STORE"
NAMESPACE = "onejob"
TASKS = tuple(f"shop.task_{number}" for number in range(10))
SUBMITTERS = tuple(f"user-{number}" for number in range(20))
NODES = tuple(f"worker@host-{number}" for number in range(8))
DAY = 20 * 3600.0
"""Seconds over which the submissions are spread: no job is due to be purged."""
CHUNK = 20
"""How many jobs are submitted at the same time."""
WAITING, RUNNING = 20, 10
"""How many jobs of each thread wait and run, while changes go on."""
THREADS = 4
FIRST_CHANGE = 10**9
"""The number of the first job of the changes."""


def build_app(broker: str, store: str) -> celery.Celery:
    """Return the app of the shop."""
    app = celery.Celery("shop", broker=broker, set_as_current=False)
    app.conf.update(onejob_store=store, onejob_namespace=NAMESPACE, task_ignore_result=True)
    logging.getLogger("onejob.jobs").setLevel(logging.WARNING)
    for name in TASKS:
        task: Any = app.task(name=name, base=onejob.Task, shared=False, expose=True)
        task(send_invoice)
    return app


def send_invoice(order_id: int, customer: str, note: str = "") -> None:
    """Do nothing: no worker runs it."""


def serve() -> Starlette:
    """Return the dashboard of the shop, for `uvicorn --factory`."""
    return dashboard(build_app(os.environ[BROKER], os.environ[STORE]))


@dataclass
class Work:
    """What submitters and workers do. Of 1,000 jobs 15 fail, 5 are canceled, 10 run twice, and 200 have duplicates."""

    app: celery.Celery
    ledger: Ledger
    advance: Callable[[float], None] = field(default=lambda _seconds: None)
    """Lets so many seconds pass."""

    def submissions(self, number: int) -> list[Submission]:
        """Return the submissions of a job: the first one, and its duplicates."""
        kwargs = {"order_id": number, "customer": f"customer-{number % 5000}", "note": "x" * (number % 120)}
        task: Any = self.app.tasks[TASKS[number % len(TASKS)]]
        with submitting_as(Submitter(SUBMITTERS[number // 7 % len(SUBMITTERS)])):
            first = prepare(app_state_of(task.app), Call(task, kwargs=kwargs, source="http")).submission
        duplicates = 1 + number % 3 if number // 10 % 5 == 2 else 0
        return [first, *(replace(first, id=f"{first.id[:-1]}{each}", nonce=new_nonce()) for each in range(duplicates))]

    def start(self, job: JobRow) -> JobRow:
        """Start a run."""
        claimed = self.ledger.claim(job.id, nonce=new_nonce(), node=random.choice(NODES)).job
        if claimed is None:
            raise RuntimeError(f"job {job.id} is gone")
        return claimed

    def end(self, run: JobRow, number: int) -> None:
        """End a run as the number of its job says."""
        chance = number * 7919 % 1000
        if chance < 15:
            kind, message = ("ConnectionError", f"read timed out after {number % 90} s") if chance < 9 else (
                "ValueError", f"order {number} has no billing address")  # fmt: skip
            error = {"type": kind, "message": message, "traceback": f'  File "/app/shop.py", line 88\n{kind}\n' * 5}
            self.ledger.fail(run, json.dumps(error), f"{kind}: {message}")
        elif chance < 25 and run.attempt == 1:
            self.retry(run, 0.0)
            self.advance(0.01)
            self.end(self.start(run), number)
        else:
            self.ledger.complete(run, json.dumps({"invoice": number}))

    def retry(self, run: JobRow, delay: float) -> None:
        """Have a job run again."""
        self.ledger.retry(
            run, NextRun.again(run, delay=delay, retries=1), reason="ConnectionError: refused",
            error=json.dumps({"type": "ConnectionError", "message": "refused", "traceback": ""}),
        )  # fmt: skip

    def heartbeats(self) -> None:
        """Let the workers send heartbeats that last."""
        registration = Registration(tasks=TASKS, queues=("celery",), pool="prefork", concurrency=4)
        for node in NODES:
            self.ledger.heartbeat(node, lasts=86_400.0, registration=registration)


# --- the past ---------------------------------------------------------------------------------------------------------


def fill(broker: str, store: str, jobs: int) -> None:
    """Fill an empty ledger with so many jobs, by the real operations on a clock that jumps over one day."""
    end = time.time()
    at = end - DAY

    def advance(seconds: float) -> None:
        nonlocal at
        at += seconds

    url = f"{store}?options=-csynchronous_commit%3Doff" if store.startswith("postgresql") else store
    ledger = Ledger(StoreAddress(url, NAMESPACE).open(lambda: round(at, 6)))
    work, meter = Work(build_app(broker, store), ledger, advance), _metered(ledger)
    written_at = at
    for first in range(0, jobs, CHUNK):
        at = end - DAY * (1 - first / jobs)
        _fill_chunk(work, range(first, min(first + CHUNK, jobs)), jobs)
        if at - written_at >= 60.0:
            meter.write()
            written_at = at
    at = time.time()
    meter.write()
    work.heartbeats()
    ledger.close()


def _metered(ledger: Ledger) -> Meter:
    meter = Meter(ledger.store, 86_400.0, lambda _task: True)
    ledger.emit = meter.count
    return meter


def _fill_chunk(work: Work, numbers: Sequence[int], jobs: int) -> None:
    """Submit some jobs and run most of them; of the last ones some wait, some run, and some are to be retried."""
    by_number = {number: work.submissions(number) for number in numbers}
    submitted = work.ledger.submit_many([each for some in by_number.values() for each in some])
    found = {admission.job.id: admission.job for admission in submitted}
    for number, (first, *_) in by_number.items():
        job, left = found[first.id], jobs - number
        if number * 7919 % 1000 >= 995:
            work.ledger.cancel(job.id)
        elif left > jobs * 0.002:
            work.advance(0.002)
            run = work.start(job)
            work.advance(0.001 * (number % 50))
            work.end(run, number)
        elif left <= jobs * 0.001:
            run = work.start(job)
            if left <= jobs * 0.0005:
                work.retry(run, 900.0)


# --- changes that go on -----------------------------------------------------------------------------------------------


class Pace:
    """Lets so many changes per second happen, in all threads together, until it is stopped."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._began = time.monotonic()
        self._slots = count()
        self.changes = 0
        self.stopped = threading.Event()

    def wait(self) -> None:
        """Wait until the next change is due. Raises `SystemExit` when stopped."""
        number = next(self._slots)
        if self.stopped.wait(max(self._began + number / self._rate - time.monotonic(), 0.0)):
            raise SystemExit
        self.changes = number

    def reached(self) -> float:
        """Return the changes per second until now."""
        return self.changes / (time.monotonic() - self._began)


def change(work: Work, numbers: Iterator[int], pace: Pace) -> None:
    """Submit jobs, claim them and end them, at a pace; until that is stopped."""
    queued: deque[tuple[int, JobRow]] = deque()
    running: deque[tuple[int, JobRow]] = deque()
    while True:
        number = next(numbers)
        first, *duplicates = work.submissions(number)
        pace.wait()
        queued.append((number, work.ledger.submit(first).job))
        for duplicate in duplicates:
            pace.wait()
            work.ledger.submit(duplicate)
        if len(queued) > WAITING:
            number, job = queued.popleft()
            pace.wait()
            running.append((number, work.start(job)))
        if len(running) > RUNNING:
            number, job = running.popleft()
            pace.wait()
            work.end(job, number)


def main() -> None:
    """Make changes until the input ends, and print how many per second there were."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=1000.0)
    pace, numbers = Pace(parser.parse_args().rate), count(FIRST_CHANGE + int(time.time()) % 10**6 * 1000)
    app = build_app(os.environ[BROKER], os.environ[STORE])
    work = Work(app, app_state_of(app).ledger)
    threads = [threading.Thread(target=change, args=(work, numbers, pace)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    print(pace.reached())
    pace.stopped.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
