"""Hang up on the job API during requests, and check that others get their own responses, and that nothing leaks.

A real server (uvicorn, real sockets) serves the API. Callers hang up at a random moment: half-way through the head or
the body, right after sending, at the first bytes of the answer, while they wait for a job or listen to its events, with
a second request on the same connection behind. Meanwhile others, who keep their connections, ask for jobs of their own
and look at each answer: whose identity and whose id it has.

    python -m chaos.hangups --hangups 10000 --store postgresql

Exit code 0 only when every answer was of the job that was asked for, none was a 5xx, nothing was logged as an error,
and afterwards no connection, request, thread or watch was left.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import random
import socket
import struct
import sys
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import celery
import httpx2
import uvicorn
from fastapi.routing import APIRoute

import onejob
from chaos.command import STORES, add_broker, parser, report
from chaos.testbed import NAMESPACE, start_testbed
from onejob.api import create_app
from onejob.api.routes.jobs import JobRoutes
from onejob.celery.app_state import app_state_of
from tests.services import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI

TASK = "hangups.job"
AT_ONCE = 40
"""How many connected clients will hang up at the same time."""
CROWD = 60
"""How many are answered at once before and after: more than there are threads, or connections to a store."""
THREADS = 40
"""How many threads a server has for requests; each may have opened a connection to the store, and to the broker."""
AT_REST = 40.0


@dataclass(frozen=True, slots=True)
class Hangups:
    """The parameters of a run."""

    hangups: int
    askers: int
    store: str
    broker: str
    seed: int


@dataclass(slots=True)
class Count:
    """The counts of a run."""

    hangups: Counter[str] = field(default_factory=Counter)
    """Where callers hung up."""
    asked: int = 0
    """Answers that others got meanwhile, and looked at."""
    wrong_jobs: int = 0
    """Of those, how many were of another job, or not whole."""
    statuses: Counter[str] = field(default_factory=Counter)
    """Of those, and of the answers whose beginning was seen before a hang-up."""
    errors: Counter[str] = field(default_factory=Counter)
    """What the server logged as an error, and the errors that others got instead of a response."""
    left: dict[str, int] = field(default_factory=dict)
    """What had leaked at the end."""

    @property
    def held(self) -> bool:
        """Whether no client got another's response, and nothing leaked."""
        failed = sum(count for status, count in self.statuses.items() if status >= "5")
        return not (self.wrong_jobs or failed or self.errors or any(self.left.values()))


class Served:
    """A server in a thread of this process, and what can be seen in it."""

    def __init__(self, app: celery.Celery) -> None:
        self.web = create_app(app, waits_per_caller=100_000)
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self.port = int(self.socket.getsockname()[1])
        config = uvicorn.Config(self.web, log_config=None, access_log=False, timeout_graceful_shutdown=5)
        self.server = uvicorn.Server(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="server")

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self.server.serve(sockets=[self.socket])

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()
        eventually(lambda: self.server.started)
        asyncio.run(_crowd(self))  # so that all threads and connections are there that there will be

    def stop(self) -> None:
        """End."""
        self.server.should_exit = True
        self._thread.join(30.0)
        self.socket.close()

    def busy(self) -> dict[str, int]:
        """Return the open connections, requests and watches of the server."""
        state, watchers = self.server.server_state, _job_routes(self.web).watchers
        watches = [watch for each in watchers.all() for watch in each.watches.values()]
        return {"connections": len(state.connections), "requests": len(state.tasks), "watches": len(watches)}

    def threads(self) -> int:
        """Return how many threads are busy with a request."""

        async def borrowed() -> int:
            return anyio.to_thread.current_default_thread_limiter().borrowed_tokens

        return 0 if self._loop is None else asyncio.run_coroutine_threadsafe(borrowed(), self._loop).result(10.0)


def _job_routes(web: FastAPI) -> JobRoutes:
    """Return what the endpoints of an app share."""
    stack = list(web.routes)
    while stack:
        route = stack.pop()
        owner = getattr(route.endpoint, "__self__", None) if isinstance(route, APIRoute) else None
        if isinstance(owner, JobRoutes):
            return owner
        stack += getattr(getattr(route, "original_router", None), "routes", [])
    raise LookupError("no route reads jobs")


@contextmanager
def served(store: str, namespace: str, broker: str) -> Iterator[tuple[celery.Celery, Served]]:
    """Serve an app with one task on a ledger."""
    app = celery.Celery("hangups", broker=broker, set_as_current=False)
    app.conf.update(onejob_store=store, onejob_namespace=namespace)
    define: Any = app.task  # the published types know no task that a base class gives options

    def job(number: int) -> None: ...

    define(name=TASK, base=onejob.Task, shared=False, expose=True)(job)
    server = Served(app)
    server.start()
    try:
        yield app, server
    finally:
        server.stop()
        app_state_of(app).ledger.close()
        app.close()


# --- those who hang up ----------------------------------------------------------------------------------------------


class Rude:
    """Makes requests, and hangs up."""

    def __init__(self, port: int, live: str, chance: random.Random, count: Count) -> None:
        self._port = port
        self._live = live
        self._chance = chance
        self._count = count
        self._numbers = itertools.count(-1, -1)

    async def hang_up(self) -> None:
        """Start one request, and hang up at a random point of it."""
        where = self._chance.choice(["head", "body", "sent", "answer", "behind", "wait", "stream"])
        self._count.hangups[where] += 1
        with suppress(ConnectionError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                await self._request(where, reader, writer)
            finally:
                self._close(writer)

    async def _request(self, where: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = self._asked(where)
        cut = {"head": self._chance.randrange(1, len(head)), "body": len(head) + self._chance.randrange(len(body) + 1)}
        writer.write((head + body)[: cut.get(where, len(head) + len(body))])
        if where == "behind":
            writer.write(b"".join(self._asked("sent")))
        await writer.drain()
        if where in {"answer", "behind", "stream"}:
            answer = await asyncio.wait_for(reader.read(self._chance.randrange(12, 400)), 60.0)
            self._count.statuses[answer[9:12].decode()] += 1
        elif self._chance.random() < 0.5:
            await asyncio.sleep(self._chance.random() * 0.05)

    def _asked(self, where: str) -> tuple[bytes, bytes]:
        """Return the head and the body of a request."""
        if where == "stream":
            return _head("GET", f"/jobs/{self._live}/events"), b""
        if where == "wait":
            return _head("GET", f"/jobs/{self._live}", prefer="wait=30"), b""
        if where != "body" and self._chance.random() < 0.3:
            path = self._chance.choice([f"/jobs/{self._live}", "/jobs?limit=5", "/jobs/unknown", "/duplicates/summary"])
            return _head("GET", path), b""
        number = next(self._numbers) if self._chance.random() < 0.8 else 0
        body = json.dumps({"task": TASK, "kwargs": {"number": number}}).encode()
        return _head("POST", "/jobs", content_type="application/json", content_length=len(body)), body

    def _close(self, writer: asyncio.StreamWriter) -> None:
        """Close a connection, gracefully or with a reset."""
        if self._chance.random() < 0.5:
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()


def _head(method: str, path: str, **headers: object) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


# --- those who do not -----------------------------------------------------------------------------------------------


class Asker:
    """Submits jobs of its own, and checks each response."""

    def __init__(self, client: httpx2.AsyncClient, task: Any, numbers: Iterator[int], count: Count) -> None:
        self._client = client
        self._task = task
        self._numbers = numbers
        self._count = count

    async def ask_until(self, over: asyncio.Event) -> None:
        """Submit until the others have finished."""
        while not over.is_set():
            try:
                await self.submit_job()
            except httpx2.HTTPError as error:
                self._count.errors[f"instead of an answer: {error!r}"[:200]] += 1

    async def submit_job(self) -> None:
        """Submit a new job, submit it again, read it, and wait for it briefly."""
        number = next(self._numbers)
        identity = self._task._onejob.identifier.identity((), {"number": number})
        body = {"task": TASK, "kwargs": {"number": number}}
        first = (await self._sent("POST", "/jobs", identity, json=body))["job"]["id"]
        again = (await self._sent("POST", "/jobs", identity, json=body))["job"]["id"]
        job_to_dict = await self._sent("GET", f"/jobs/{first}", identity)
        waited = await self._sent("GET", f"/jobs/{first}", identity, headers={"prefer": "wait=0"})
        self._count.wrong_jobs += {first, again, job_to_dict["id"], waited["id"]} != {first}

    async def _sent(self, method: str, path: str, identity: str, **more: Any) -> Any:
        answer = await self._client.request(method, path, **more)
        self._count.asked += 1
        self._count.statuses[str(answer.status_code)] += 1
        body = answer.json()
        self._count.wrong_jobs += body.get("job", body).get("identity") != identity
        return body


async def _crowd(server: Served) -> None:
    """Have many answered at once, and be sure that they are."""
    limits = httpx2.Limits(max_connections=CROWD)
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60.0, limits=limits) as client:
        answers = await asyncio.gather(*[client.get("/jobs?limit=1") for _ in range(CROWD)])
    if {answer.status_code for answer in answers} != {200}:
        raise RuntimeError(f"not all of a crowd were answered: {Counter(each.status_code for each in answers)}")


# --- all of it ------------------------------------------------------------------------------------------------------


class _ErrorCounter(logging.Handler):
    """Counts what is logged as an error."""

    def __init__(self, count: Count) -> None:
        super().__init__(logging.ERROR)
        self._count = count

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else ""
        self._count.errors[f"{record.name}: {record.getMessage()} {cause!r}"[:200]] += 1


def hang_up(app: celery.Celery, server: Served, hangups: int, askers: int, seed: int) -> Count:
    """Hang up so many times while others submit, and return the counts."""
    count, error_counter = Count(), None
    error_counter = _ErrorCounter(count)
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0  # noqa: PTH112, PTH208 - the number of descriptors
    logging.getLogger().addHandler(error_counter)
    try:
        asyncio.run(_all(app, server, hangups, askers, random.Random(seed), count))
        with suppress(AssertionError):
            eventually(lambda: not any(server.busy().values()) and not server.threads(), AT_REST)
        asyncio.run(_crowd(server))
        with suppress(AssertionError):
            eventually(lambda: not any(server.busy().values()), AT_REST)
    finally:
        logging.getLogger().removeHandler(error_counter)
    count.left = server.busy() | {"busy threads": server.threads()}
    if files:
        now = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - as above
        count.left["open files beyond those of the pools"] = max(0, now - files - 2 * THREADS)
    return count


async def _all(
    app: celery.Celery, server: Served, hangups: int, askers: int, chance: random.Random, count: Count
) -> None:
    task, over = app.tasks[TASK], asyncio.Event()
    live = (await asyncio.to_thread(task.apply_async, (0,), countdown=3600)).id
    rude, turns = Rude(server.port, live, chance, count), iter(range(hangups))
    numbers = itertools.count(1)
    limits = httpx2.Limits(max_connections=askers)
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60.0, limits=limits) as client:
        asking = [asyncio.create_task(Asker(client, task, numbers, count).ask_until(over)) for _ in range(askers)]
        await asyncio.gather(*[_hang_up_in_turn(rude, turns) for _ in range(AT_ONCE)])
        over.set()
        await asyncio.gather(*asking)


async def _hang_up_in_turn(rude: Rude, turns: Iterator[int]) -> None:
    for _ in turns:
        await rude.hang_up()


def run(parameters: Hangups) -> Count:
    """Do all of it on private servers."""
    with start_testbed(parameters.store) as here:
        broker = here.broker_url(parameters.broker)
        with served(here.store, NAMESPACE, broker) as (app, server):
            return hang_up(app, server, parameters.hangups, parameters.askers, parameters.seed)


def main() -> int:
    """Hang up, and print the counts."""
    made = parser(__doc__)
    made.add_argument("--hangups", type=int, default=10_000)
    made.add_argument("--askers", type=int, default=24)
    made.add_argument("--store", choices=STORES, default="sqlite")
    add_broker(made)
    return report(Hangups(**vars(made.parse_args())), run)


if __name__ == "__main__":
    sys.exit(main())
