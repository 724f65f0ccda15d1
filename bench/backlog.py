"""Measure how a backlog drains: jobs wait for longer than a lease, then one worker starts and more jobs arrive.

    python -m bench.backlog --jobs 8000 --wait 32 --rate 60 --store redis
    python -m bench.backlog --jobs 1000000 --seconds 90

Prints every five seconds how many jobs wait, how many messages are in the queue, how often sweeps have published, and
the memory that the broker's Redis uses.
Then the rates of runs, and of refused copies of ended jobs, by the same worker.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import celery
import redis

import onejob
from bench.servers import Servers
from onejob.celery.app_state import app_state_of

if TYPE_CHECKING:
    from collections.abc import Iterator

BROKER, STORE = "ONEJOB_BENCH_BROKER", "ONEJOB_BENCH_STORE"
COPIES = 2000
PORTION = 5000


def build(broker: str, store: str) -> celery.Celery:
    """Return the app with its one task."""
    app = celery.Celery("backlog", broker=broker, set_as_current=False)
    app.conf.update(onejob_store=store)

    @app.task(name="trivial", base=onejob.Task, shared=False)
    def trivial(number: int) -> int:
        return number

    return app


app = build(os.environ[BROKER], os.environ[STORE]) if BROKER in os.environ else None


def main() -> None:
    """Submit, wait, work, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=8000)
    parser.add_argument("--wait", type=float, default=32.0, help="seconds without a worker")
    parser.add_argument("--rate", type=float, default=60.0, help="jobs per second that arrive with the worker")
    parser.add_argument("--seconds", type=float, default=300.0, help="ends after this time, if jobs still wait")
    parser.add_argument("--store", default="redis", help="redis, postgresql or sqlite")
    options = parser.parse_args()
    with ExitStack() as stack:
        servers = Servers(stack)
        broker = servers.new_database("redis")
        own = build(broker, servers.new_ledger(options.store, broker))
        ledger, client = app_state_of(own).ledger, redis.Redis.from_url(broker)
        task: Any = own.tasks["trivial"]
        calls = [(number,) for number in range(options.jobs)]
        portions = [calls[start : start + PORTION] for start in range(0, len(calls), PORTION)]
        jobs = [result.id for portion in portions for result in task.submit_many(portion)]
        time.sleep(options.wait)
        with working(broker, str(own.conf.onejob_store)):
            if drain(task, client, ledger, jobs, options):
                refuse(own, client, jobs[:COPIES])


def drain(task: Any, client: Any, ledger: Any, jobs: list[str], options: argparse.Namespace) -> bool:
    """Let more jobs arrive until none waits, or the time is over; print how it goes on. Returns whether none waits."""
    rate, count = options.rate, options.jobs + 10**6
    began, shown, first = time.monotonic(), 0.0, client.llen("celery")
    print(" seconds  waiting  messages  publications by sweeps  MB")
    while (passed := time.monotonic() - began) < options.seconds:
        while len(jobs) < first + passed * rate:
            jobs.append(task.delay(len(jobs)).id)
        if passed >= shown:
            states = ledger.store.count_states(limit=count)
            waiting = states[onejob.State.QUEUED] + states[onejob.State.RETRYING]
            published = ledger.store.totals().get("published_total", 0)
            memory = client.info("memory")["used_memory"] / 1e6
            print(f"{passed:8.0f} {waiting:8} {client.llen('celery'):9} {published:8.0f} {memory:18.0f}", flush=True)
            if waiting < rate:
                return True
            shown += 5.0
        time.sleep(0.01)
    return False


def refuse(own: celery.Celery, client: Any, ended: list[str]) -> None:
    """Print the rates of runs and of refused copies."""
    task: Any = own.tasks["trivial"]
    publisher = app_state_of(own).publisher
    fresh = [(-number,) for number in range(1, COPIES)]
    print(f"runs per second: {rate_of(client, lambda: task.submit_many(fresh)):.0f}")
    jobs = [*app_state_of(own).ledger.get_many(ended).values()]
    print(f"refused copies per second: {rate_of(client, lambda: publisher.publish_all(jobs)):.0f}")


def rate_of(client: Any, fill: Any) -> float:
    """Return how many messages per second a worker takes from the queue that `fill` fills."""
    fill()
    began, first = time.monotonic(), client.llen("celery")
    while left := client.llen("celery"):
        time.sleep(0.005)
    return float((first - left) / (time.monotonic() - began))


@contextmanager
def working(broker: str, store: str) -> Iterator[None]:
    """Run one worker of two processes for the length of a block."""
    command = [sys.executable, "-m", "celery", "-A", "bench.backlog", "worker", "-c", "2", "-l", "ERROR"]
    worker = subprocess.Popen(command, env={**os.environ, BROKER: broker, STORE: store}, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    main()
