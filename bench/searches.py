"""Measure what searches of the whole ledger cost other clients of one process of `onejob serve`, as ratios.

    python -m bench.searches --jobs 100000 --readers 4

The ledger has jobs of 2 kB. Other clients submit a job, and list the five newest ones, every 10 ms. By turns they do so
alone, and beside readers that search for an argument that no job has, page after page. `--bulk`: beside clients whose
dry runs of a bulk operation search for it. `--tenant`: beside clients with own jobs, which have none, that list these.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from bench.hostile import SERVE
from bench.http import running
from bench.servers import Servers
from onejob.api.api_keys import KeyFile, Role
from onejob.jobs.handover import by_sweep
from onejob.jobs.model import Submission
from onejob.jobs.transitions import new_nonce
from onejob.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAUSE = 0.01
"""Seconds between two requests of the other clients."""
BATCH = 500
ABSENT = "zzzz-no-such"
numbers = count(1)


def main() -> None:
    """Fill, serve, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000, help="in the ledger")
    parser.add_argument("--bytes", type=int, default=2000, help="of the arguments of each")
    parser.add_argument("--readers", type=int, default=4, help="who search at once, with a key each")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bulk", action="store_true", help="the readers are dry runs of a bulk operation")
    parser.add_argument("--tenant", action="store_true", help="the readers are callers with own jobs")
    parser.add_argument("--stores", nargs="+", default=("sqlite", "postgresql", "redis"))
    options = parser.parse_args()
    for store in options.stores:
        with ExitStack() as stack:
            servers = Servers(stack)
            broker = servers.new_database("redis")
            ledger = servers.new_ledger(store, broker)
            fill(ledger, options.jobs, options.bytes)
            keys = KeyFile(servers.folder / "keys.json")
            others = keys.add("others", Role.SUBMIT)
            role = Role.OPERATE if options.bulk else Role.READ
            readers = [keys.add(f"reader-{n}", role, own_jobs=options.tenant) for n in range(options.readers)]
            command = ["-c", SERVE, "serve", "bench.http_app:celery_app", "--keys", str(keys.path)]
            with running(command, broker, ledger, answers, output=subprocess.DEVNULL) as (port, _):
                read = dry_run if options.bulk else list_own if options.tenant else search
                measured = Measured(port, others, [partial(read, Client(port, text)) for text in readers])
                for _ in range(options.rounds):
                    measured.turn(options.seconds)
                print(f"{store}: {measured.text()}", flush=True)


def fill(url: str, jobs: int, size: int) -> None:
    """Submit jobs with arguments of a size."""
    store = open_store(url)
    for first in range(0, jobs, BATCH):
        store.submit_many(
            [_job(size) for _ in range(first, min(first + BATCH, jobs))], handover_of=lambda _: by_sweep(1e6)
        )
    store.close()


def _job(size: int) -> Submission:
    nonce, number = new_nonce(), next(numbers)
    kwargs = {"order_id": number, "note": nonce * (size // len(nonce))}
    payload = json.dumps({"task": "bench.guarded", "args": [], "kwargs": kwargs})
    names: dict[str, Any] = dict.fromkeys(("id", "identity", "fingerprint", "nonce"), nonce)
    return Submission(task="bench.guarded", payload=payload, lease=30.0, submitter="staff", **names)


def answers(port: int) -> bool:
    """Return whether a server answers at a port."""
    with suppress(OSError):
        return Client(port, "").send("GET", "/healthz")[0] == 200
    return False


class Client:
    """A client with an API key, which keeps its connection."""

    def __init__(self, port: int, key: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}

    def send(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request; return the status and the content."""
        content = None if body is None else json.dumps(body)
        for is_last in (False, True):
            try:
                self._connection.request(method, path, content, self._headers)
                response = self._connection.getresponse()
            except (
                ConnectionError,
                http.client.HTTPException,
            ):  # the server has closed a connection that was idle for a turn
                self._connection.close()
                if is_last:
                    raise
            else:
                return response.status, json.loads(response.read())
        raise AssertionError


def search(client: Client) -> Iterator[None]:
    """Search the whole ledger, a page in each step."""
    cursor = None
    while True:
        path = f"/jobs?argument={ABSENT}" + (f"&cursor={quote(cursor)}" if cursor else "")
        cursor = client.send("GET", path)[1].get("next")
        yield


def list_own(client: Client) -> Iterator[None]:
    """List the jobs of a caller who has none."""
    while True:
        client.send("GET", "/jobs")
        yield


def dry_run(client: Client) -> Iterator[None]:
    """Search the whole ledger for jobs to cancel, a portion in each step."""
    cursor = None
    while True:
        body = {"operation": "cancel", "dry_run": True, "filter": {"argument": ABSENT}, "cursor": cursor}
        cursor = client.send("POST", "/jobs/bulk", body)[1].get("next")
        yield


@dataclass(slots=True)
class Turn:
    """The seconds that each request of the other clients took, by its name."""

    submit: list[float] = field(default_factory=list)
    list: list[float] = field(default_factory=list)
    refused: int = 0


class Measured:
    """The turns of the other clients, alone and beside readers."""

    def __init__(self, port: int, key: str, readers: list[Callable[[], Iterator[None]]]) -> None:
        self._others = [Client(port, key) for _ in range(2)]
        self._readers = readers
        self._turns: dict[bool, list[Turn]] = {False: [], True: []}
        self._pages = 0
        self._beside(1.0, has_readers=False)  # until everything is loaded

    def turn(self, seconds: float) -> None:
        """Measure alone, then beside the readers."""
        for has_readers in (False, True):
            self._turns[has_readers].append(self._beside(seconds, has_readers=has_readers))

    def _beside(self, seconds: float, *, has_readers: bool) -> Turn:
        turn, over = Turn(), threading.Event()
        readers = self._readers if has_readers else []
        threads = [threading.Thread(target=self._read, args=(reader(), over)) for reader in readers]
        others = [
            threading.Thread(target=self._ask, args=(ask, waits, turn, over))
            for ask, waits in ((self._submit, turn.submit), (self._list, turn.list))
        ]
        for thread in (*threads, *others):
            thread.start()
        time.sleep(seconds)
        over.set()
        for thread in (*threads, *others):
            thread.join()
        return turn

    def _read(self, steps: Iterator[None], over: threading.Event) -> None:
        for _ in steps:
            self._pages += 1
            if over.is_set():
                return

    @staticmethod
    def _ask(ask: Callable[[], int], waits: list[float], turn: Turn, over: threading.Event) -> None:
        while not over.wait(PAUSE):
            began = time.perf_counter()
            turn.refused += ask() >= 300
            waits.append(time.perf_counter() - began)

    def _submit(self) -> int:
        body = {"task": "bench.guarded", "kwargs": {"order_id": next(numbers)}}
        return self._others[0].send("POST", "/jobs", body)[0]

    def _list(self) -> int:
        return self._others[1].send("GET", "/jobs?limit=5")[0]

    def text(self) -> str:
        """Return the percentiles of all turns, and the medians of the ratios within a round."""
        parts = [
            f"{name} {label} {self._compared(name, percent)}"
            for name in ("submit", "list")
            for label, percent in (("median", 50), ("p99", 99))
        ]
        refused = sum(turn.refused for turns in self._turns.values() for turn in turns)
        return f"{'; '.join(parts)}; {refused} refused; {self._pages} pages of the readers"

    def _compared(self, name: str, percent: int) -> str:
        """Return a percentile of a request in milliseconds, alone and beside readers, and the median of the ratios."""
        alone, beside = (
            [at(percent, getattr(turn, name)) for turn in self._turns[has_readers]] for has_readers in (False, True)
        )
        ratio = statistics.median(each / before for before, each in zip(alone, beside, strict=True))
        return f"{statistics.median(alone) * 1000:.1f} -> {statistics.median(beside) * 1000:.1f} ms ({ratio:.2f})"


def at(percent: int, seconds: list[float]) -> float:
    """Return a percentile."""
    return sorted(seconds)[len(seconds) * percent // 100]


if __name__ == "__main__":
    main()
