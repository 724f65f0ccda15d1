"""Measure the dashboard on ledgers with many jobs: each page while jobs change, and many open pages while nothing does.

    python -m bench.dashboard --jobs 100000 --stores sqlite,postgresql,redis

The dashboard is served by one uvicorn process, the changes are made by another one. Each round gets every page once;
the times are those from a request to the end of its response, at a client on this machine. An open page has a stream of
events, and gets its page again after each, as its script does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

from bench import processor, workday
from bench.__main__ import words
from bench.contenders import STORES
from bench.http import answers, running, serve
from bench.load import get, load
from bench.servers import Servers
from bench.table import aligned
from onejob.pages.live import QUIET_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

UPDATE = "hx-request: true"
OPENING_LIMIT = 120.0
"""Seconds for all pages to get their first lines."""
QUICK = {"jobs": 2_000, "rounds": 3, "rate": 100.0, "pages": 8, "seconds": 1.0, "opening": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to measure, and how often."""

    stores: Sequence[str] = STORES
    jobs: int = 100_000
    rounds: int = 30
    rate: float = 1000.0
    """Changes per second while pages are measured."""
    pages: int = 200
    """How many pages are open, a quarter of them pages of a job."""
    seconds: float = 30.0
    """How long nothing happens."""
    opening: float = QUIET_SECONDS
    """Over how many seconds they are opened: as long as a page waits until it is updated without a change."""


def main() -> None:
    """Fill, serve, measure, print."""
    options = parsed(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes and the servers are ended
    with ExitStack() as stack:
        servers = Servers(stack)
        for store in options.stores:
            broker = servers.new_database("redis")
            url = servers.new_ledger(store, broker)
            workday.fill(broker, url, options.jobs)
            measure(store, broker, url, options)


def parsed(arguments: list[str]) -> Options:
    """Return what to measure."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.dashboard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stores", type=words, help=f"some of {','.join(STORES)}")
    parser.add_argument("--jobs", type=int, help="of each ledger; default: 100000")
    parser.add_argument("--rounds", type=int, help="default: 30")
    parser.add_argument("--rate", type=float, help="changes per second while pages are measured; default: 1000")
    parser.add_argument("--pages", type=int, help="that are open while nothing happens; default: 200")
    parser.add_argument("--seconds", type=float, help="for which nothing happens; default: 30")
    parser.add_argument("--quick", action="store_true", help="few jobs and rounds: whether everything runs")
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    return Options(**{**(QUICK if given.pop("quick") else {}), **given})


def measure(store: str, broker: str, url: str, options: Options) -> None:
    """Serve the dashboard of a filled ledger, and print how long its pages take, and what open pages cost."""
    command = ["-m", "uvicorn", "--factory", "bench.workday:serve", "--log-level", "warning"]
    with running(command, broker, url, answers) as (port, pid):
        paths = pages_of(port, options.jobs)
        share, requests = asyncio.run(idle(port, pid, paths, options))
        with changing(broker, url, options.rate) as reached:
            for name, path in paths.items():  # warms up
                measured(port, pid, path, name)
            rounds = [[measured(port, pid, path, name) for name, path in paths.items()] for _ in range(options.rounds)]
        rows = [summary(name, [one[index] for one in rounds]) for index, name in enumerate(paths)]
    print(f"{store}, {options.jobs:,} jobs, {reached[0]:.0f} changes/s, load {os.getloadavg()[0]:.1f}")
    print(aligned([("", "", "median ms", "p95 ms", "CPU ms", "kB"), *rows]))
    print(
        f"{options.pages} open pages while nothing happened: {share:.2f} of a core, {requests:.1f} updates/s\n",
        flush=True,
    )


# --- pages ------------------------------------------------------------------------------------------------------------


def pages_of(port: int, jobs: int) -> dict[str, str]:
    """Return the pages to measure, by name: their paths."""
    failed = _json(port, "/jobs?state=failed")["jobs"][0]["id"]
    cursor = ""
    for _ in range(19):
        cursor = _json(port, f"/jobs?cursor={cursor}")["next"]
    return {
        "overview": "/", "jobs": "/jobs", "jobs, state": "/jobs?state=failed",
        "jobs, task": f"/jobs?task={workday.TASKS[3]}", "jobs, one argument": f"/jobs?argument=order_id%3D{jobs // 2}",
        "jobs, submitter": f"/jobs?submitter={workday.SUBMITTERS[3]}", "jobs, page 20": f"/jobs?cursor={cursor}",
        "job": f"/jobs/{failed}", "duplicates": "/duplicates", "dead letters": "/dead", "tasks": "/tasks",
        "workers": "/workers",
    }  # fmt: skip


def _json(port: int, path: str) -> dict[str, Any]:
    separator = "&" if "?" in path else "?"
    served = serve(port, iter([get(f"{path}{separator}format=json")]), keep=True)
    found: dict[str, Any] = json.loads(served.bodies[0])
    return found


@dataclass(frozen=True, slots=True)
class Sample:
    """One response: its time and the processor time of the server, in seconds, and its size."""

    seconds: float
    cpu: float
    size: int


def measured(port: int, pid: int, path: str, name: str) -> Sample:
    """Get a page once."""
    before = processor.seconds_of(pid)
    served = serve(port, iter([get(path)]), keep=True)
    if set(served.statuses) != {200}:
        raise SystemExit(f"{name}: {dict(served.statuses)}")
    return Sample(served.waits[0], processor.seconds_of(pid) - before, len(served.bodies[0]))


def summary(name: str, samples: Sequence[Sample]) -> tuple[str, ...]:
    """Return the row of a page."""
    seconds = [each.seconds for each in samples]
    figures = (
        statistics.median(seconds),
        statistics.quantiles(seconds, n=20)[18],
        statistics.mean(each.cpu for each in samples),
    )
    return ("", name, *(f"{1000 * each:.0f}" for each in figures), f"{samples[-1].size / 1000:.0f}")


@contextmanager
def changing(broker: str, url: str, rate: float) -> Iterator[list[float]]:
    """Let the jobs change for the length of a block; the list has the changes per second afterwards."""
    reached: list[float] = []
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.workday", "--rate", str(rate)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=os.environ | {workday.BROKER: broker, workday.STORE: url}, text=True,
    )  # fmt: skip
    try:
        time.sleep(2.0)
        yield reached
    finally:
        output, _ = process.communicate()
    reached.append(float(output))


# --- open pages -------------------------------------------------------------------------------------------------------


async def idle(port: int, pid: int, paths: dict[str, str], options: Options) -> tuple[float, float]:
    """Return the share of a core that open pages take while nothing happens, and their updates per second."""
    ids = [job["id"] for job in (await asyncio.to_thread(_json, port, "/jobs?state=completed&limit=50"))["jobs"]]
    kinds = (("/live", paths["jobs"]), ("/live", paths["overview"]), ("/live", paths["jobs"]))
    shared = islice(cycle(kinds), options.pages - options.pages // 4)
    of_jobs = ((f"/live?job={job_id}", f"/jobs/{job_id}") for job_id in islice(cycle(ids), options.pages // 4))
    opened = [OpenPage(port, live, path) for live, path in (*shared, *of_jobs)]
    under_way = []
    for page in opened:
        under_way.append(asyncio.create_task(page.follow()))
        await asyncio.sleep(options.opening / options.pages)
    try:
        async with asyncio.timeout(OPENING_LIMIT):
            await asyncio.gather(*(page.opened.wait() for page in opened))
    except TimeoutError as error:
        raise SystemExit("a page was not opened") from error
    used, began, updates = processor.seconds_of(pid), time.perf_counter(), sum(page.updates for page in opened)
    await asyncio.sleep(options.seconds)
    seconds = time.perf_counter() - began
    share = (processor.seconds_of(pid) - used) / seconds
    for task in under_way:
        task.cancel()
    await asyncio.gather(*under_way, return_exceptions=True)
    return share, (sum(page.updates for page in opened) - updates) / seconds


class OpenPage:
    """A page in a browser: it follows its events, and gets itself again after each."""

    def __init__(self, port: int, live: str, path: str) -> None:
        self._port = port
        self._live = live
        self._path = path
        self.opened = asyncio.Event()
        self.updates = 0

    async def follow(self) -> None:
        """Follow the events until canceled."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(get(self._live))
        try:
            async for line in reader:
                self.opened.set()
                if line.startswith(b"event: change"):
                    await load(self._port, iter([get(self._path, UPDATE)]), clients=1)
                    self.updates += 1
        finally:
            writer.close()


if __name__ == "__main__":
    main()
