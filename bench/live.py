"""Measure how many can watch jobs on one API process: streams of server-sent events, and pollers that get a 304.

    python -m bench.live --streams 1000 --pollers 10000 --store redis

Each stream watches a job of its own; the jobs are run to their ends, and the result is how long after a job's end
its stream sends it. The pollers all have a connection of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import TYPE_CHECKING

from bench import processor
from bench.http import serving
from bench.load import get, load
from bench.servers import Servers
from onejob.config import Settings, build_ledger
from onejob.jobs.model import Submission
from onejob.jobs.transitions import new_nonce

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger


def main() -> None:
    """Serve, watch, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--pollers", type=int, default=10_000)
    parser.add_argument("--polls", type=int, default=5, help="of each poller")
    parser.add_argument("--store", choices=("sqlite", "postgresql", "redis"), default="redis")
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with ExitStack() as stack:
        servers = Servers(stack)
        broker = servers.new_database("redis")
        url = servers.new_ledger(options.store, broker)
        ledger = build_ledger(Settings(store=url))
        port, pid = stack.enter_context(serving("ours", broker, url))
        asyncio.run(stream(ledger, port, pid, options.streams))
        asyncio.run(poll(ledger, port, options.pollers, options.polls))


@dataclass(slots=True)
class Stream:
    """One stream of events, and when it sent its job's end."""

    job_id: str
    states: list[str] = field(default_factory=list)
    ended_at: float = 0.0

    async def follow(self, port: int, ready: asyncio.Semaphore) -> None:
        """Read the stream to its end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
        writer.write(get(f"/jobs/{self.job_id}/events"))
        async for line in reader:
            if line.startswith(b"data:"):
                state = line.partition(b'"state":"')[2].partition(b'"')[0].decode()
                if not self.states:
                    ready.release()
                self.states.append(state)
                self.ended_at = time.perf_counter()
                if state == "completed":
                    break
        writer.close()


async def stream(ledger: Ledger, port: int, pid: int, count: int) -> None:
    """Watch so many jobs, then run them to their ends."""
    jobs = [each.job for each in ledger.submit_many([_submission(f"stream-{n}") for n in range(count)])]
    ready = asyncio.Semaphore(0)
    streams = [Stream(job.id) for job in jobs]
    under_way = [asyncio.create_task(each.follow(port, ready)) for each in streams]
    for _ in streams:
        await ready.acquire()
    used, began = processor.seconds_of(pid), time.perf_counter()
    await asyncio.sleep(5)
    share = (processor.seconds_of(pid) - used) / (time.perf_counter() - began)
    ended = await asyncio.to_thread(_run, ledger, [each.job_id for each in streams])
    await asyncio.gather(*under_way)
    late = statistics.quantiles([each.ended_at - ended[each.job_id] for each in streams], n=100)
    complete = sum(each.states[0] == "queued" and each.states[-1] == "completed" for each in streams)
    print(
        f"{count} streams on one process: {complete} sent the whole life of their job, its end within "
        f"{late[49] * 1000:.0f} ms (median), {late[98] * 1000:.0f} ms (99 %); while nothing happened they took "
        f"{share:.0%} of a core"
    )


def _run(ledger: Ledger, job_ids: list[str]) -> dict[str, float]:
    """Run jobs to their ends, 500 a second, and return when each ended."""
    ended = {}
    for job_id in job_ids:
        job = ledger.claim(job_id, nonce=new_nonce(), node="bench").job
        if job is None:
            raise SystemExit(f"job {job_id} is gone")
        ledger.complete(job, '{"pages": 3}')
        ended[job_id] = time.perf_counter()
        time.sleep(0.002)
    return ended


async def poll(ledger: Ledger, port: int, count: int, polls: int) -> None:
    """Let so many pollers read jobs that do not change."""
    jobs = [each.job for each in ledger.submit_many([_submission(f"poll-{n}") for n in range(100)])]
    tags = {}
    for job in jobs:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(get(f"/jobs/{job.id}", "connection: close"))
        head = (await reader.read()).partition(b"\r\n\r\n")[0].decode()
        tags[job.id] = next(line for line in head.splitlines() if line.startswith("etag:")).partition(" ")[2]
        writer.close()
    requests = [get(f"/jobs/{job_id}", f"if-none-match: {tag}") for job_id, tag in tags.items()]
    served = await load(port, islice(cycle(requests), count * polls), clients=count)
    waits = statistics.quantiles(served.waits, n=100)
    print(
        f"{count} pollers on one process: statuses {dict(served.statuses)}, {served.rate:.0f} answers/s, "
        f"median {waits[49]:.2f} s, 99 % within {waits[98]:.2f} s"
    )


def _submission(name: str) -> Submission:
    return Submission(
        id=name, task="bench.guarded", identity=name, fingerprint=name, nonce=new_nonce(), lease=3600.0,
        payload='{"task": "bench.guarded", "args": [], "kwargs": {}}',
    )  # fmt: skip


if __name__ == "__main__":
    main()
