"""Measure what limits cost: of jobs that have room, of jobs that wait for it, and how well the slots are used.

    python -m bench.limits cost --rounds 15
    python -m bench.limits trips
    python -m bench.limits worker --stores postgresql --jobs 400
    python -m bench.limits parked --sizes 1000,10000,100000
    python -m bench.limits slots --jobs 400
    python -m bench.limits peers --rounds 3 --jobs 400

`cost`: submission, claim and end of a job with a limit that is not reached, beside a job without one, by turns in one
ledger. `trips`: what they send: requests, and round trips; of SQLite, statements. It runs with an earlier onejob on
the `PYTHONPATH`, too, for which it counts jobs without limits. `worker`: the same jobs through a whole worker.
`parked`: how long one look at a key takes while more and more jobs wait on 1,000 keys, and what it touches: jobs of
PostgreSQL, commands of Redis, instructions of SQLite's machine. `slots`: the part of the time of all slots in which
jobs of 0.1 s run, beside a worker with as many places and no limit. `peers`: the same work with limits of onejob, of
Docket and of DBOS, see `bench.limits_peers`.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import uuid4

import celery
import psycopg
import redis

import onejob
from bench import limits_peers, processor
from bench.rounds import ratio
from bench.runs import end
from bench.servers import Servers
from bench.wire import Wire
from onejob.celery.app_state import app_state_of
from onejob.jobs.handover import Way, by_sweep
from onejob.jobs.model import Submission
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger
from onejob.stores import open_store
from tests.services import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from onejob.jobs.model import JobRow

STORES = ("postgresql", "redis", "sqlite")
BROKER, STORE = "ONEJOB_BENCH_BROKER", "ONEJOB_BENCH_STORE"
LEASE = 7200.0  # nothing is due meanwhile
KEYS = 50
"""How many keys the jobs have whose limit is not reached."""
MANY = 1_000_000
"""A limit that is not reached."""
STEPS = ("submit", "claim", "end")
PARKED_KEYS, PARKED_RUNNING, LOOKS = 1000, 3, 50
SLOTS, SECONDS = 8, 0.1
BATCH = 1000


def main() -> None:
    """Measure one of the parts, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "peers"])
    parser.add_argument("--stores", default=",".join(STORES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--operations", type=int, default=50, help="of each kind in a round")
    parser.add_argument("--jobs", type=int, default=400, help="of each kind in a round, with a worker")
    parser.add_argument("--sizes", default="1000,10000", help="how many jobs are parked")
    options = parser.parse_args()
    if options.part == "peers":
        limits_peers.measure(options.rounds, options.jobs)
        return
    for store in options.stores.split(","):
        with ExitStack() as stack:
            PARTS[options.part](store, Servers(stack), stack, options)
        print(f"  load {os.getloadavg()[0]:.1f}", flush=True)


# --- store and ledger -------------------------------------------------------------------------------------------------


def new_url(store: str, servers: Servers) -> str:
    """Return the URL of a new ledger."""
    return servers.new_ledger(store, servers.new_database("redis"))


@dataclass(slots=True)
class Jobs:
    """Jobs of a ledger, with a limit or without, and their runs; `limit_keys` makes the keys of a job."""

    ledger: Ledger
    limit_keys: Callable[[int], str] | None = None
    numbers: count[int] = field(default_factory=count)
    submitted: list[JobRow] = field(default_factory=list)
    runs: list[JobRow] = field(default_factory=list)

    def new(self) -> Submission:
        """Return a submission of a new job."""
        job_id = str(uuid4())
        options: dict[str, Any] = {}
        if self.limit_keys is not None:
            from onejob.jobs.limits import first_park

            keys = self.limit_keys(next(self.numbers))
            options = {"limit_keys": keys, "parked_on": first_park(keys)}
        return Submission(
            id=job_id, task="shop.export", identity=f"v1-{job_id}", fingerprint=job_id, nonce=new_nonce(), lease=LEASE,
            payload='{"task": "shop.export", "args": [42, "customer-7"], "kwargs": {}, "options": {}}', **options,
        )  # fmt: skip

    def submit(self) -> None:
        """Submit a job."""
        self.submitted.append(self.ledger.submit(self.new(), handover=by_sweep(LEASE)).job)

    def claim(self) -> None:
        """Start the run of a job."""
        claimed = self.ledger.claim(self.submitted.pop().id, nonce=new_nonce(), node="worker-1")
        if not claimed.applied or claimed.job is None:
            raise SystemExit("a claim was refused")
        self.runs.append(claimed.job)

    def end(self) -> None:
        """End a run."""
        self.ledger.complete(self.runs.pop(), '{"invoice": 42}')


def uses_of_customer(number: int) -> str:
    """Return the keys of a job, one of `KEYS` customers."""
    from onejob.jobs.limits import KeyUse, write_uses

    return write_uses([KeyUse(f"customer={number % KEYS}")])


def kinds_of(ledger: Ledger) -> dict[str, Jobs]:
    """Return jobs without a limit, and with one that is not reached, if this onejob has limits."""
    found = {"without": Jobs(ledger)}
    if hasattr(onejob, "Limit"):
        ledger.define_limits([onejob.Limit("customer", running=MANY).value()])
        found["with"] = Jobs(ledger, uses_of_customer)
    return found


def timed(operation: Callable[[], None], times: int) -> float:
    """Return the seconds that one operation takes."""
    began = time.perf_counter()
    for _ in range(times):
        operation()
    return (time.perf_counter() - began) / times


def measure_cost(store: str, servers: Servers, _: ExitStack, options: argparse.Namespace) -> None:
    """Print the microseconds of each step with and without a limit, and the ratios."""
    ledger = Ledger(open_store(new_url(store, servers)))
    kinds = kinds_of(ledger)
    found: dict[tuple[str, str], list[float]] = {}
    for number in range(options.rounds + 1):
        for name in sorted(kinds, reverse=bool(number % 2)):
            for step in STEPS:
                taken = timed(getattr(kinds[name], step), options.operations)
                if number:  # the first round warms up
                    found.setdefault((step, name), []).append(taken)
    for name in kinds:
        found["claim and end", name] = sums(found["claim", name], found["end", name])
        found["all", name] = sums(found["submit", name], found["claim and end", name])
    for step in (*STEPS, "claim and end", "all"):
        before, after = found[step, "without"], found[step, "with"]
        low, middle, high = ratio(before, after)
        print(
            f"{store:10} {step:13} {1e6 * statistics.median(before):6.0f} us, {1e6 * statistics.median(after):6.0f} us "
            f"with a limit: {middle:.2f} times ({low:.2f} to {high:.2f})"
        )
    ledger.close()


def sums(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Return the sums of two series, pairwise."""
    return [sum(pair) for pair in zip(first, second, strict=True)]


# --- what is sent -----------------------------------------------------------------------------------------------------


def measure_trips(store: str, servers: Servers, stack: ExitStack, options: argparse.Namespace) -> None:
    """Print what one operation of each kind sends."""
    counted = Counter[str]()
    url = new_url(store, servers)
    wire: Wire | None = None
    if store == "sqlite":
        stack.enter_context(tracing(lambda connection: connection.set_trace_callback(counting(counted))))
    else:
        wire = stack.enter_context(Wire(url))
        url = wire.url
    ledger = Ledger(open_store(url))
    for name, jobs in kinds_of(ledger).items():
        for step in STEPS:
            for _ in range(20):  # statements are prepared after some uses
                jobs.submit()
                jobs.claim()
                jobs.end()
            prepare(jobs, step, options.operations)
            before = snapshot(wire, counted)
            timed(getattr(jobs, step), options.operations)
            sent = [(b - a) / options.operations for a, b in zip(before, snapshot(wire, counted), strict=True)]
            print(f"{store:10} {name:8} {step:7} {sent[0]:6.2f} requests or statements, {sent[1]:5.2f} round trips")
    ledger.close()


def prepare(jobs: Jobs, step: str, times: int) -> None:
    """Make the jobs that a step needs."""
    for _ in range(times if step != "submit" else 0):
        jobs.submit()
        if step == "end":
            jobs.claim()


def snapshot(wire: Wire | None, counted: Counter[str]) -> tuple[int, int]:
    """Return how many requests, or statements of SQLite, and how many round trips there were."""
    return (counted.total(), 0) if wire is None else (wire.traffic.requests, wire.traffic.round_trips)


def counting(counted: Counter[str]) -> Callable[[str], None]:
    """Return a callback that counts statements, but for the begin and the end of transactions."""
    return lambda text: counted.update([text] if text.split(maxsplit=1)[0].lower() not in {"begin", "commit"} else [])


@contextmanager
def tracing(prepare_connection: Callable[[sqlite3.Connection], object]) -> Iterator[None]:
    """Prepare each connection of SQLite that is opened in a block."""
    connect = sqlite3.connect

    def opened(*given: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*given, **named)
        prepare_connection(connection)
        return connection

    with patch.object(sqlite3, "connect", opened):
        yield


# --- jobs that wait for room ------------------------------------------------------------------------------------------


def measure_parked(store: str, servers: Servers, stack: ExitStack, options: argparse.Namespace) -> None:
    """Print how long looks at keys take, and what they touch, with few and with many parked jobs."""
    steps = Counter[str]()
    if store == "sqlite":
        stack.enter_context(tracing(lambda found: found.set_progress_handler(lambda: steps.update(["step"]), 1)))
    url = new_url(store, servers)
    ledger = Ledger(open_store(url))
    ledger.define_limits([onejob.Limit("customer", running=PARKED_RUNNING).value()])
    ledger.freeing = None  # jobs are made due by hand
    jobs, parked = Jobs(ledger, uses_of_many), 0
    for turn, size in enumerate(map(int, options.sizes.split(","))):
        for start in range(parked, size, BATCH):
            new = [jobs.new() for _ in range(min(BATCH, size - start))]
            ledger.submit_many(new, handover_of=lambda _: by_sweep(LEASE))
        parked = size
        analyse(store, url)
        keys = [f"customer={number}" for number in range(turn * LOOKS, (turn + 1) * LOOKS)]
        filled = [ledger.store.free_slots(key, way=Way.SWEPT, limit=100).jobs for key in keys]
        touched = toucher(store, url, ledger, steps)
        before = touched()
        full = [timed(lambda key=key: look(ledger, key, 0), 1) for key in keys]  # type: ignore[misc]
        between = touched()
        for freed in filled:
            if freed:
                jobs.submitted.append(freed[0])
                jobs.claim()
                jobs.end()
        middle = touched()
        free = [timed(lambda key=key: look(ledger, key, None), 1) for key in keys]  # type: ignore[misc]
        after = touched()
        print(
            f"{store:10} {size:7} parked: full key {1e3 * statistics.median(full):.2f} ms, touches "
            f"{(between - before) / LOOKS:.0f}; one slot free {1e3 * statistics.median(free):.2f} ms, touches "
            f"{(after - middle) / LOOKS:.0f}"
        )
    ledger.close()


def uses_of_many(number: int) -> str:
    """Return the keys of a job, one of `PARKED_KEYS` customers."""
    from onejob.jobs.limits import KeyUse, write_uses

    return write_uses([KeyUse(f"customer={number % PARKED_KEYS}")])


def look(ledger: Ledger, key: str, freed: int | None) -> None:
    """Look at a key once, which makes so many jobs due; None: some."""
    jobs = ledger.store.free_slots(key, way=Way.SWEPT, limit=100).jobs
    if freed is not None and len(jobs) != freed:
        raise SystemExit(f"{len(jobs)} jobs are due on {key}, and not {freed}")


def analyse(store: str, url: str) -> None:
    """Let PostgreSQL know how many rows it has, as autovacuum does."""
    if store == "postgresql":
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("vacuum analyze")


def toucher(store: str, url: str, ledger: Ledger, steps: Counter[str]) -> Callable[[], int]:
    """Return a function that returns how many rows, commands or steps the operations on a ledger have taken."""
    if store == "sqlite":
        return steps.total
    if store == "redis":
        client = redis.Redis.from_url(url)

        def commands() -> int:
            found: Any = client.info("commandstats")
            return sum(row["calls"] for name, row in found.items() if name != "cmdstat_info")

        return commands

    def rows() -> int:
        time.sleep(1.2)  # a session reports its numbers once in a second, with its next statement
        ledger.store.steps("none")
        time.sleep(0.3)
        with psycopg.connect(url, autocommit=True) as connection:
            text = "select seq_tup_read + idx_tup_fetch from pg_stat_user_tables where relname = 'jobs'"
            (found,) = connection.execute(text).fetchone() or (0,)
        return int(found)

    return rows


# --- whole workers ----------------------------------------------------------------------------------------------------


def build(broker: str, store: str) -> celery.Celery:
    """Return the app of the workers and of the submitter."""
    app = celery.Celery("limits", broker=broker, set_as_current=False)
    app.conf.update(onejob_store=store, broker_connection_retry_on_startup=True, worker_prefetch_multiplier=1)

    @app.task(name="without", base=onejob.Task, shared=False)
    def without(number: int, customer: int) -> int:  # noqa: ARG001 - the limits of others count by it
        return number

    @app.task(name="with", base=onejob.Task, shared=False, limits=[onejob.Limit("customer", running=MANY)])
    def limited(number: int, customer: int) -> int:  # noqa: ARG001 - the limit counts by it
        return number

    @app.task(name="slots", base=onejob.Task, shared=False, limits=[onejob.Limit(name="gpu", running=SLOTS)])
    def slots(number: int, customer: int) -> None:  # noqa: ARG001 - as above
        time.sleep(SECONDS)

    @app.task(name="places", base=onejob.Task, shared=False)
    def places(number: int, customer: int) -> None:  # noqa: ARG001 - as above
        time.sleep(SECONDS)

    return app


app = build(os.environ[BROKER], os.environ[STORE]) if BROKER in os.environ else None


@dataclass(slots=True)
class Site:
    """A ledger, the broker of its jobs, and the app of both."""

    broker: str
    store: str
    app: celery.Celery
    numbers: count[int] = field(default_factory=count)

    @classmethod
    def new(cls, store: str, servers: Servers) -> Site:
        """Return a new ledger; Redis delivers its own jobs, and the SQL ledgers theirs by `onejob://`."""
        url = new_url(store, servers)
        broker = url if store == "redis" else "onejob://"
        return cls(broker, url, build(broker, url))

    @property
    def ledger(self) -> Ledger:
        """The ledger."""
        return app_state_of(self.app).ledger

    @contextmanager
    def working(self, pool: str, concurrency: int) -> Iterator[None]:
        """Run a worker for the length of a block."""
        name = f"worker-{next(self.numbers)}@localhost"
        command = [sys.executable, "-m", "celery", "-A", "bench.limits", "worker", "-l", "ERROR", "-n", name]
        command += ["-P", pool, "-c", str(concurrency), "--without-gossip", "--without-mingle"]
        environment = {**os.environ, BROKER: self.broker, STORE: self.store}
        worker = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            eventually(lambda: name in {each.name for each in self.ledger.workers()}, timeout=120)
            yield
        finally:
            end(worker)

    def run(self, task: str, jobs: int) -> list[JobRow]:
        """Submit jobs of a task, and return them when all have run."""
        calls = [(next(self.numbers), number % KEYS) for number in range(jobs)]
        work: Any = self.app.tasks[task]
        ids = [
            result.id for start in range(0, jobs, BATCH) for result in work.submit_many(calls[start : start + BATCH])
        ]
        found: list[JobRow] = []

        def all_have_ended() -> bool:
            if found:
                time.sleep(0.2)
            found[:] = self.ledger.get_many(ids).values()
            return all(job.state.final for job in found)

        eventually(all_have_ended, timeout=600)
        return found


def measure_worker(store: str, servers: Servers, _: ExitStack, options: argparse.Namespace) -> None:
    """Print what a job takes through a worker of two processes, from the submission on, without and with a limit."""
    site = Site.new(store, servers)
    taken: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
    with site.working("prefork", 2):
        for number in range(options.rounds + 1):
            for task in sorted(taken, reverse=bool(number % 2)):
                cpu = processor.seconds()
                jobs = site.run(task, options.jobs)
                seconds = max(job.finished_at or 0.0 for job in jobs) - min(job.created_at for job in jobs)
                if number:
                    taken[task].append((seconds / options.jobs, (processor.seconds() - cpu) / options.jobs))
    for at, kind in enumerate(("elapsed", "CPU")):
        before, after = ([pair[at] for pair in taken[task]] for task in taken)
        low, middle, high = ratio(before, after)
        print(
            f"{store:10} {kind:8} {1e3 * statistics.median(before):.2f} ms a job, {1e3 * statistics.median(after):.2f} "
            f"ms with a limit: {middle:.2f} times ({low:.2f} to {high:.2f})"
        )


def measure_slots(store: str, servers: Servers, _: ExitStack, options: argparse.Namespace) -> None:
    """Print the part of the time of the slots in which jobs run, and the same of as many places without a limit."""
    site = Site.new(store, servers)
    used: dict[str, list[float]] = {"slots": [], "places": []}
    for _round in range(options.rounds):
        for task, concurrency in (("slots", 2 * SLOTS), ("places", SLOTS)):
            with site.working("threads", concurrency):
                site.run(task, SLOTS)  # warms up
                jobs = site.run(task, options.jobs)
            seconds = max(job.finished_at or 0.0 for job in jobs) - min(job.started_at or 0.0 for job in jobs)
            used[task].append(options.jobs * SECONDS / SLOTS / seconds)
    for task, found in used.items():
        print(f"{store:10} {task:7} used {statistics.median(found):.3f} ({min(found):.3f} to {max(found):.3f})")


PARTS: dict[str, Callable[[str, Servers, ExitStack, argparse.Namespace], None]] = {
    "cost": measure_cost,
    "trips": measure_trips,
    "worker": measure_worker,
    "parked": measure_parked,
    "slots": measure_slots,
}

if __name__ == "__main__":
    main()
