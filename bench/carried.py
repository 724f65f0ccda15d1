"""Measure what a claim and its end cost when runs of one event loop carry them to the store together.

    python -m bench.carried --rounds 5
    python -m bench.carried --stores postgresql --runs 50 --profile

Each round claims and completes the same number of jobs: in one thread without a carrier, and as 1, 10, 50 runs at once
in bridges of an event loop, whose requests go to the store by a `LoopCarrier`. Printed are claims with their ends per
second, and the CPU time of one, in this process and in the server. `--profile` prints where the threads that call the
store spend their time.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import pstats
import statistics
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import uuid4

from bench import processor
from bench.servers import Servers
from onejob.concurrency.greenlets import call_in_bridge
from onejob.concurrency.loop_carrier import LoopCarrier
from onejob.jobs.handover import by_sweep
from onejob.jobs.model import Submission
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger
from onejob.stores import open_store
from onejob.stores.carrier import carried, set_carrier

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STORES = ("postgresql", "redis", "sqlite")
LEASE = 7200.0  # nothing is due meanwhile
ALONE = 0
"""The number of runs that stands for a thread without a carrier."""


T = TypeVar("T")


class Cost(NamedTuple):
    """The seconds that a claim and its end take: on the clock, of this process, and of the server."""

    seconds: float
    cpu: float
    server_cpu: float


class Sizes:
    """A carrier that counts how many requests go to the store together."""

    def __init__(self, profile: cProfile.Profile | None) -> None:
        self._carriers: dict[asyncio.AbstractEventLoop, LoopCarrier] = {}
        self._profile = profile
        self._counting: dict[Callable[..., Any], Callable[..., Any]] = {}
        self.sizes = Counter[int]()

    @property
    def _carrier(self) -> LoopCarrier:
        loop = asyncio.get_running_loop()
        return self._carriers.setdefault(loop, LoopCarrier(loop))

    def is_usable(self) -> bool:
        """Return whether this is a bridge."""
        return self._carrier.is_usable()

    def is_of_running_loop(self) -> bool:
        """Return whether this is a coroutine."""
        return True

    async def call(self, operation: Callable[[], T]) -> T:
        """Call an operation for a coroutine."""
        return await self._carrier.call(operation)

    def carry(self, process: Callable[[Sequence[Any]], Sequence[Any]], request: Any) -> Any:
        """Carry a request."""
        counting = self._counting.get(process)
        if counting is None:
            counting = self._counting[process] = partial(self._process, process)
        return self._carrier.carry(counting, request)

    def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""
        self._carrier.sleep(seconds)

    def _process(self, process: Callable[[Sequence[Any]], Sequence[Any]], requests: Sequence[Any]) -> Sequence[Any]:
        self.sizes[len(requests)] += 1
        if self._profile is None:
            return process(requests)
        return self._profile.runcall(process, requests)


def main() -> None:
    """Measure each store, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", default=",".join(STORES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1000, help="of each round")
    parser.add_argument("--runs", default="0,1,10,50", help="at once; 0: one thread, without a carrier")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    for store in options.stores.split(","):
        with ExitStack() as stack:
            measure(store, Servers(stack), options)
        print(f"  load {os.getloadavg()[0]:.1f}", flush=True)


def measure(store: str, servers: Servers, options: argparse.Namespace) -> None:
    """Print the costs in one store, by the number of runs at once."""
    ledger = Ledger(open_store(servers.new_ledger(store, servers.new_database("redis"))))
    servers_pids = [server.pid for name, server in vars(servers).items() if name == store.removesuffix("ql")]
    sizes = [int(each) for each in options.runs.split(",")]
    found: dict[int, list[Cost]] = {size: [] for size in sizes}
    carriers = {size: Sizes(cProfile.Profile() if options.profile else None) for size in sizes}
    for number in range(options.rounds + 1):
        for size in sizes if number % 2 else reversed(sizes):
            ids = submitted(ledger, options.jobs)
            cost = costs(partial(play, ledger, ids, size, carriers[size]), servers_pids, options.jobs)
            if number:  # the first round warms up
                found[size].append(cost)
    for size in sizes:
        seconds, cpu, server_cpu = (1e6 * statistics.median(each) for each in zip(*found[size], strict=True))
        batches = carriers[size].sizes
        mean = sum(each * times for each, times in batches.items()) / max(batches.total(), 1)
        print(
            f"{store:10} {'no carrier' if size == ALONE else f'{size} at once':10}: {1e6 / seconds:6.0f} per s, "
            f"{cpu:5.0f} us of this process and {server_cpu:5.0f} us of the server for each; {mean:.1f} together"
        )
    ledger.close()
    if options.profile:
        profile = carriers[sizes[-1]]._profile  # noqa: SLF001 - our own
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)


def submitted(ledger: Ledger, number: int) -> list[str]:
    """Submit some jobs, and return their ids."""
    ids = [str(uuid4()) for _ in range(number)]
    new = [
        Submission(
            id=job_id, task="shop.export", identity=f"v1-{job_id}", fingerprint=job_id, nonce=new_nonce(), lease=LEASE,
            payload='{"task": "shop.export", "args": [42, "customer-7"], "kwargs": {}, "options": {}}',
        )
        for job_id in ids
    ]  # fmt: skip
    ledger.submit_many(new, handover_of=lambda _: by_sweep(LEASE))
    return ids


def costs(play_all: Callable[[], None], pids: Sequence[int], number: int) -> Cost:
    """Return what one of so many claims and ends costs."""
    server = sum(map(processor.seconds_below, pids))
    began, cpu = time.perf_counter(), time.process_time()
    play_all()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    server = sum(map(processor.seconds_below, pids)) - server
    return Cost(seconds / number, cpu / number, server / number)


def play(ledger: Ledger, ids: Sequence[str], runs: int, carrier: Sizes) -> None:
    """Claim and complete jobs, in this thread or as so many runs at once."""
    if runs == ALONE:
        for job_id in ids:
            run_job(ledger, job_id)
    else:
        asyncio.run(run_all(ledger, ids, runs, carrier))


async def run_all(ledger: Ledger, ids: Sequence[str], runs: int, carrier: Sizes) -> None:
    """Claim and complete jobs as so many runs at once."""
    numbers = count()

    async def run_some() -> None:
        set_carrier(carrier)
        while (number := next(numbers)) < len(ids):
            await call_in_bridge(partial(run_job, ledger, ids[number]))

    await asyncio.gather(*(run_some() for _ in range(runs)))


def run_job(ledger: Ledger, job_id: str) -> None:
    """Claim a job, and complete it."""
    claimed = carried(partial(ledger.claim, job_id, nonce=new_nonce(), node="worker-1"))
    if not claimed.applied or claimed.job is None:
        raise SystemExit("a claim was refused")
    carried(partial(ledger.complete, claimed.job, '{"invoice": 42}'))


if __name__ == "__main__":
    main()
