"""Measure `POST /jobs` against a plain FastAPI endpoint that calls `delay()`: one uvicorn process each, by turns.

    python -m bench.http --requests 4000 --rounds 5

Both publish to one Redis of our own. The ledger is in a file (SQLite), in a PostgreSQL of our own, or in that Redis.
Each round serves the same load to each server: `submit` submits another job with each request, `duplicate` always the
same one. `--storm 50000` does the latter once more, and counts the jobs and the answers.
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
from contextlib import ExitStack, contextmanager
from itertools import count, product, repeat
from typing import TYPE_CHECKING

from bench.load import Served, get, load, post
from bench.servers import Servers
from tests.services import eventually, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

CLIENTS = 64
PLAIN = "plain delay()"
KINDS = ("submit", "duplicate")
WARM_UP = 200
numbers = count(1)


def main() -> None:
    """Serve, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=4000, help="per server, kind and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--storm", type=int, default=0, help="so many equal requests to each ledger at the end")
    parser.add_argument("--stores", nargs="+", default=("sqlite", "postgresql", "redis"))
    options = parser.parse_args()
    with ExitStack() as stack:
        ports = served(stack, Servers(stack), options.stores)
        show(compare(ports, options.requests, options.rounds))
        for name in options.stores if options.storm else ():
            storm(name, ports[name], options.storm)


def served(stack: ExitStack, servers: Servers, stores: Sequence[str]) -> dict[str, int]:
    """Start the servers to compare, all on one broker; return the port of each."""
    broker = servers.new_database("redis")
    ports = {PLAIN: stack.enter_context(serving("plain", broker, broker))[0]}
    for store in stores:
        ports[store] = stack.enter_context(serving("ours", broker, servers.new_ledger(store, broker)))[0]
    return ports


@contextmanager
def serving(name: str, broker: str, store: str) -> Iterator[tuple[int, int]]:
    """Run one of the servers of `bench.http_app` for the length of a block; gives its port and process id."""
    command = ["-m", "uvicorn", f"bench.http_app:{name}", "--log-level", "warning"]
    with running(command, broker, store, answers) as server:
        yield server


@contextmanager
def running(
    command: list[str], broker: str, store: str, answers: Callable[[int], bool], *, output: int | None = None
) -> Iterator[tuple[int, int]]:
    """Run a server of this Python, which answers at a port, for the length of a block; gives that and its process id.

    `command`: the arguments of Python, without the port. `output`: where its output goes; None: to the terminal.
    """
    port = free_port()
    settings = {"ONEJOB_BENCH_BROKER": broker, "ONEJOB_BENCH_STORE": store}
    process = subprocess.Popen(
        [sys.executable, *command, "--port", str(port)], env=os.environ | settings, stdout=output, stderr=output
    )
    try:
        eventually(lambda: answers(port), 30)
        yield port, process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)


def answers(port: int) -> bool:
    """Return whether a server answers at a port."""
    try:
        return bool(serve(port, repeat(get("/"), 1)).statuses)
    except OSError:
        return False


def serve(port: int, requests: Iterator[bytes], *, clients: int = 1, keep: bool = False) -> Served:
    """Send a load and return its counts."""
    return asyncio.run(load(port, requests, clients=clients, keep=keep))


def compare(ports: dict[str, int], requests: int, rounds: int) -> dict[tuple[str, str], list[float]]:
    """Return how many requests per second each server answered in each round, by server and kind."""
    rates: dict[tuple[str, str], list[float]] = {}
    for kind, (name, port) in product(KINDS, ports.items()):  # warms up
        _rate(name, port, kind, WARM_UP)
    for number, kind in product(range(rounds), KINDS):
        servers = list(ports.items())
        turn = number % len(servers)
        for name, port in servers[turn:] + servers[:turn]:
            rates.setdefault((name, kind), []).append(_rate(name, port, kind, requests))
    return rates


def show(rates: dict[tuple[str, str], list[float]]) -> None:
    """Print the rates, and their ratios to those of the plain server."""
    for (name, kind), found in rates.items():
        ratio = statistics.median(a / b for a, b in zip(found, rates[PLAIN, kind], strict=True))
        print(f"{name:14} {kind:10} {statistics.median(found):8.0f} requests/s   {ratio:5.2f} of {PLAIN}")


def _rate(name: str, port: int, kind: str, requests: int) -> float:
    submissions = (_asked(name, kind, next(numbers) if kind == "submit" else 0) for _ in range(requests))
    served = serve(port, submissions, clients=CLIENTS)
    if any(status >= 300 for status in served.statuses):
        raise SystemExit(f"{name}, {kind}: {served.statuses}")
    return served.rate


def _asked(name: str, kind: str, number: int) -> bytes:
    arguments = {"order_id": number, "note": kind}
    body = arguments if name == PLAIN else {"task": "bench.guarded", "kwargs": arguments}
    return post("/jobs", json.dumps(body).encode())


def storm(name: str, port: int, requests: int) -> None:
    """Send equal requests from many clients at once to one ledger, and print the outcomes."""
    served = serve(port, repeat(_asked(name, "storm", 7), requests), clients=CLIENTS, keep=True)
    answers = [json.loads(body) for body in served.bodies]
    jobs = {answer["job"]["id"] for answer in answers}
    admitted = sum(answer["outcome"] == "admitted" for answer in answers)
    waits = statistics.quantiles(served.waits, n=100)
    print(
        f"{name:14} storm of {requests}: {len(jobs)} job, {admitted} admitted, statuses {dict(served.statuses)}, "
        f"{served.rate:.0f} requests/s, median {waits[49] * 1000:.0f} ms, 99 % within {waits[98] * 1000:.0f} ms"
    )


if __name__ == "__main__":
    main()
