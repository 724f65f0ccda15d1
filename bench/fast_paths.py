"""Measure what each fast path gains: its operation with it and without it, by turns, in one process.

Prints, for each, the gain in per cent of the operation: of processor time, and of real time where a path saves a wait.
A path whose gain is below 3 % is not worth its code: see the table in `docs/project/internals.md`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from celery import Celery

import onejob
from bench.servers import Servers
from onejob.api import create_app
from onejob.api.auth import DirectRoutes
from onejob.celery import app_state
from onejob.celery.messages import message_builder, routing
from onejob.celery.messages.payload import MARK
from onejob.stores import holder_cache
from onejob.stores.redis import connection
from onejob.stores.sqlite import store as sqlite_store
from onejob.uniqueness import canonical_json, identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

numbers = count()
ROUNDS, OPERATIONS = 11, 300


@dataclass(frozen=True)
class FastPath:
    """One fast path: which operation has it, and how it is left out."""

    name: str
    operation: str
    without: Callable[[], Any]
    clock: Callable[[], float] = time.process_time


def _eager(self: app_state.AppState) -> bool:
    return bool(self._app.conf.task_always_eager)


def _complete(self: message_builder.DirectBroker, job: Any) -> Any:
    kind, own, message = self._parts_of(job)
    written = self._publish(self._message(kind, job, own, message), {**kind.publication, "headers": kind.headers})
    return self._add_headers(written, {MARK: job.id})


@contextmanager
def _without_plans() -> Iterator[None]:
    plan = routing.Routing.plan

    def forgetting(self: Any, *args: Any) -> Any:
        self._plans.clear()
        return plan(self, *args)

    with patch.object(routing.Routing, "plan", forgetting):
        yield


async def _through_fastapi(self: DirectRoutes, scope: Any, receive: Any, send: Any) -> None:
    await self._app(scope, receive, send)


PATHS = [
    FastPath("a call's plan is remembered", "sqlite: delay()", _without_plans),
    FastPath("the eager mode is read where Celery keeps it", "sqlite: delay()",
             lambda: patch.object(app_state.AppState, "is_eager", property(_eager))),
    FastPath("arguments are bound without `inspect`", "sqlite: delay()",
             lambda: patch.object(identity._NamedParameters, "bind", lambda *_: None)),  # noqa: SLF001 - the fast path
    FastPath("plain values are written by `json`", "sqlite: delay()",
             lambda: patch.object(canonical_json, "_is_plain", lambda *_: False)),
    FastPath("a new job is one statement", "sqlite: delay()",
             lambda: patch.object(sqlite_store, "admit", lambda *_: None)),
    FastPath("the job that holds an identity is remembered", "sqlite: duplicate",
             lambda: patch.object(holder_cache.HolderCache, "get", lambda *_: None)),
    FastPath("the job that holds an identity is remembered", "redis: duplicate",
             lambda: patch.object(holder_cache.HolderCache, "get", lambda *_: None), time.perf_counter),
    FastPath("messages are filled forms", "redis: delay()",
             lambda: patch.object(message_builder.DirectBroker, "compose", _complete)),
    FastPath("a reply is polled for before the process sleeps", "redis: delay()",
             lambda: patch.object(connection, "SPIN", 0.0), time.perf_counter),
    FastPath("POST /jobs passes FastAPI's router by", "sqlite: POST /jobs",
             lambda: patch.object(DirectRoutes, "__call__", _through_fastapi)),
]  # fmt: skip


def work(order_id: int, note: str = "") -> None:
    """Do nothing: no worker runs it."""


def task_of(broker: str, store: str) -> Any:
    """Return a task whose jobs are kept in a store."""
    app = Celery("fast", broker=broker, set_as_current=False)
    app.conf.onejob_store = store
    return app.task(name="work", base=onejob.Task, expose=True, unique_on=["order_id"])(work)


def poster(task: Any) -> Callable[[], None]:
    """Return a function that posts one job to the API of a task's app, without a server."""
    api: Any = create_app(task.app)
    loop = asyncio.new_event_loop()
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/jobs", "raw_path": b"/jobs", "query_string": b"",
             "headers": headers, "client": ("127.0.0.1", 1), "server": ("localhost", 80), "scheme": "http",
             "http_version": "1.1", "root_path": "", "asgi": {"version": "3.0"}}  # fmt: skip
    statuses: list[int] = []

    async def send(message: Any) -> None:
        statuses.append(message.get("status", 202))

    async def post() -> None:
        body = json.dumps({"task": "work", "args": [next(numbers)]}).encode()

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        await api(dict(scope), receive, send)

    def run() -> None:
        loop.run_until_complete(post())
        if statuses[-1] != 202:
            raise SystemExit(f"POST /jobs was answered with {statuses[-1]}")

    return run


def seconds(operation: Callable[[], object], clock: Callable[[], float], operations: int) -> float:
    """Return how long one operation takes."""
    began = clock()
    for _ in range(operations):
        operation()
    return (clock() - began) / operations


def gain_of(path: FastPath, operation: Callable[[], object], rounds: int, operations: int) -> tuple[float, float]:
    """Return the median of the gain in per cent, and the microseconds of the operation with its fast path."""
    gains, times = [], []
    for _ in range(rounds):
        fast = seconds(operation, path.clock, operations)
        with path.without():
            slow = seconds(operation, path.clock, operations)
        gains.append(100 * (slow - fast) / slow)
        times.append(fast)
    return statistics.median(gains), 1e6 * statistics.median(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--operations", type=int, default=OPERATIONS)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        redis = Servers(stack).new_database("redis")
        in_file = task_of("onejob://", f"sqlite:///{Path(folder) / 'ledger.db'}")
        in_redis = task_of(redis, redis)
        operations: dict[str, Callable[[], object]] = {
            "sqlite: delay()": lambda: in_file.delay(next(numbers), note="x"),
            "sqlite: duplicate": lambda: in_file.delay(-1),
            "sqlite: POST /jobs": poster(in_file),
            "redis: delay()": lambda: in_redis.delay(next(numbers), note="x"),
            "redis: duplicate": lambda: in_redis.delay(-1),
        }
        for operation in operations.values():
            seconds(operation, time.process_time, 5)
        for path in PATHS:
            gain, micros = gain_of(path, operations[path.operation], options.rounds, options.operations)
            print(f"{path.operation:20} {path.name:50} {gain:6.1f} %  of {micros:5.0f} us")


if __name__ == "__main__":
    main()
