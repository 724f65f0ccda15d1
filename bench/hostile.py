"""Measure what hostile or heavy clients cost one process of `onejob serve`: its memory, and the latency of others.

    python -m bench.hostile --jobs 100000

- `trailers`: one connection sends a body that nobody reads, then trailers without end.
- `pipeline`: 20 connections send 200 KB of requests each without reading a response.
- `lists`: 8 readers list 200 results of 240 KB each.
- `counts`: 12 readers count all jobs, while one client submits.

Each has a server of its own, on one ledger in a PostgreSQL of our own.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.filling import make
from bench.http import running
from bench.servers import Servers
from onejob.config import Settings, build_ledger
from onejob.jobs.model import Submission
from onejob.jobs.transitions import new_nonce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST = "127.0.0.1"
SERVE = "from onejob.cli.commands import main; main()"
SECONDS = 8.0
"""How long each attack lasts at most."""
RESULTS = 200
RESULT_BYTES = 240_000
numbers = count(1)


def main() -> None:
    """Serve, attack, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000, help="in the ledger")
    parser.add_argument("attacks", nargs="*", default=("trailers", "pipeline", "lists", "counts"))
    options = parser.parse_args()
    with ExitStack() as stack:
        servers = Servers(stack)
        broker = servers.new_database("redis")
        store = servers.new_ledger("postgresql", broker)
        make(store, "onejob", options.jobs)
        complete_large_jobs(store)
        attacks: dict[str, Callable[[int], str]] = {
            "trailers": send_trailers, "pipeline": pipeline, "lists": read_lists, "counts": read_counts,
        }  # fmt: skip
        for name in options.attacks:
            with serving(broker, store) as (port, pid):
                before = memory(pid, "VmRSS")
                found = attacks[name](port)
                print(f"{name}: RSS {before:.0f} MB, at most {memory(pid, 'VmHWM'):.0f} MB; {found}", flush=True)


@contextmanager
def serving(broker: str, store: str) -> Iterator[tuple[int, int]]:
    """Run `onejob serve` for the length of a block; gives its port and process id."""
    command = ["-c", SERVE, "serve", "bench.http_app:celery_app"]
    with running(command, broker, store, _answers, output=subprocess.DEVNULL) as server:
        yield server


def _answers(port: int) -> bool:
    with suppress(OSError):
        return request(port, "GET", "/readyz")[0] == 200
    return False


def memory(pid: int, field: str) -> float:
    """Return `VmRSS`, the resident memory of a process, or `VmHWM`, its maximum, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def request(port: int, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    """Send one request on a connection of its own; return the status and the body."""
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    try:
        headers = {"content-type": "application/json"} if body is not None else {}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def send_trailers(port: int) -> str:
    """Send a large body, then trailers for some seconds, or until the server closes the connection."""
    head = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk, trailers = (
        b"10000\r\n" + b"a" * 65536 + b"\r\n",
        b"".join(b"x-%04d: %s\r\n" % (n, b"a" * 50) for n in range(1000)),
    )
    sent, started = 0, time.monotonic()
    with socket.create_connection((HOST, port), timeout=30) as connection, suppress(OSError):
        connection.sendall(head + chunk * 200 + b"0\r\n")
        while time.monotonic() - started < SECONDS:
            connection.sendall(trailers)
            sent += len(trailers)
    return f"{sent / 1e6:.1f} MB of trailers were accepted"


def pipeline(port: int) -> str:
    """Send 200 KB of requests on each of 20 connections, and measure the health check meanwhile."""
    requests = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 4700
    latencies = []
    with ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(socket.create_connection((HOST, port), timeout=30))
            connection.settimeout(0)
            with suppress(OSError):
                connection.send(requests)
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends:
            latencies.append(_timed(lambda: request(port, "GET", "/healthz")))
    return f"health check {_spread(latencies)}"


def complete_large_jobs(store: str) -> None:
    """Complete jobs with large results."""
    ledger = build_ledger(Settings(store=store))
    result = json.dumps(os.urandom(RESULT_BYTES // 2).hex())
    for _ in range(RESULTS):
        nonce, payload = new_nonce(), json.dumps({"args": [], "kwargs": {"text": "a" * 1000}})
        names: dict[str, Any] = dict.fromkeys(("id", "identity", "fingerprint", "nonce"), nonce)
        ledger.submit(Submission(task="bench.guarded", payload=payload, lease=30.0, **names))
        claimed = ledger.claim(nonce, nonce=new_nonce(), node="bench").job
        if claimed is not None:
            ledger.complete(claimed, result)
    ledger.close()


def read_lists(port: int) -> str:
    """List the large results by 8 readers at once, with and without asking for them."""
    found = []
    for path in ("/jobs?limit=200", "/jobs?limit=200&include=result"):
        with ThreadPoolExecutor(8) as pool:
            responses = list(pool.map(lambda _, path=path: request(port, "GET", path), range(16)))
        status, body = responses[0]
        rows = len(json.loads(body).get("jobs", ()))
        found.append(f"{path}: {status}, {len(body) / 1e6:.2f} MB, {rows} jobs")
    return "; ".join(found)


def read_counts(port: int) -> str:
    """Count all jobs by 12 readers, and measure submissions meanwhile, and before."""
    alone = [_timed(lambda: _submit(port)) for _ in range(50)]
    done, counted = threading.Event(), []

    def read() -> None:
        while not done.is_set():
            counted.append(request(port, "GET", "/jobs?count=true&limit=1")[1])

    with ThreadPoolExecutor(12) as pool:
        for _ in range(12):
            pool.submit(read)
        ends, latencies = time.monotonic() + SECONDS, []
        while time.monotonic() < ends:
            latencies.append(_timed(lambda: _submit(port)))
        done.set()
    last = {name: value for name, value in json.loads(counted[-1]).items() if name.startswith("total")}
    return f"submit alone {_spread(alone)}, with readers {_spread(latencies)}; {len(counted)} counts, the last {last}"


def _submit(port: int) -> None:
    body = {"task": "bench.guarded", "kwargs": {"order_id": next(numbers)}}
    status, answer = request(port, "POST", "/jobs", body)
    if status != 202:
        msg = f"a submission got {status}: {answer!r:.200}"
        raise RuntimeError(msg)


def _timed(call: Callable[[], object]) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started


def _spread(seconds: list[float]) -> str:
    return f"median {statistics.median(seconds) * 1000:.1f} ms, at most {max(seconds) * 1000:.0f} ms"


if __name__ == "__main__":
    main()
