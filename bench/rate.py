"""Measure which rate a `rate_limit` keeps while a backlog waits: plain Celery's and onejob's, at the same time.

    python -m bench.rate --limit 360/m --jobs 300 --broker redis --pool prefork
    python -m bench.rate --broker ledger --pool threads --tasks 4

Each has a broker's queue, a worker and tasks of its own. Prints for each task how often it ran per second: in its first
five seconds, in its last ten, and in all, until onejob's jobs have run. `--beside` gives onejob's worker plain tasks
with the same limit, too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import celery

import onejob
from bench.contenders import Contender
from bench.runs import end
from bench.servers import Servers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.contenders import Places

PREFIX = "ONEJOB_RATE_"
"""Of the environment variables that tell a worker its app."""
HEAD, TAIL = 5.0, 10.0
SILENCE = 15.0
"""Seconds without a run after which nothing more is awaited."""


def build(broker: str, store: str, queue: str, marks: str, limit: str, tasks: Sequence[str]) -> celery.Celery:
    """Return an app with these tasks, those of onejob by their names, which write down when they run."""
    app = celery.Celery("rate", broker=broker, set_as_current=False)
    app.conf.update(onejob_store=store, task_default_queue=queue, broker_connection_retry_on_startup=True)
    for name in tasks:
        options: dict[str, Any] = {"base": onejob.Task} if name.startswith("onejob") else {}
        define: Any = app.task(name=name, rate_limit=limit, shared=False, ignore_result=True, **options)
        define(marking(Path(marks) / name))
    return app


def marking(path: Path) -> Any:
    """Return a body that appends the time to a file."""

    def mark(number: int) -> None:  # noqa: ARG001 - makes the jobs different
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{time.monotonic()}\n")

    return mark


if PREFIX + "BROKER" in os.environ:  # in a worker
    _own = {name: os.environ[PREFIX + name.upper()] for name in ("broker", "store", "queue", "marks", "limit")}
    app = build(**_own, tasks=os.environ[PREFIX + "TASKS"].split())


def main() -> None:
    """Submit, work, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", default="360/m")
    parser.add_argument("--jobs", type=int, default=300, help="of each task")
    parser.add_argument("--tasks", type=int, default=1, help="of each of the two, each with the limit")
    parser.add_argument("--broker", default="redis", help="redis, rabbitmq or ledger (then Celery's own is a Redis)")
    parser.add_argument("--pool", default="prefork")
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--beside", action="store_true", help="plain tasks, too, in the worker of onejob's tasks")
    options = parser.parse_args()
    numbers = range(options.tasks)
    beside = [f"plain-beside-{number}" for number in numbers if options.beside]
    with ExitStack() as stack:
        servers = Servers(stack)
        marks = servers.folder / "marks"
        marks.mkdir()
        for tasks in ([f"celery-{number}" for number in numbers], [f"onejob-{number}" for number in numbers] + beside):
            broker = "redis" if tasks[0].startswith("celery") and options.broker == "ledger" else options.broker
            places = servers.places_of(Contender(tasks[0], tasks[0], "sqlite", broker=broker))
            stack.callback(end, work(places, marks, tasks, options))
        await_runs(marks, options.jobs)
        print("task            runs  first 5 s  last 10 s  in all")
        for path in sorted(marks.iterdir()):
            print(row(path))


def work(places: Places, marks: Path, tasks: Sequence[str], options: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Queue the jobs of some tasks, and start a worker for them."""
    own = {"broker": places.broker, "store": places.store, "queue": places.queue or "rate", "marks": str(marks)}
    own |= {"limit": options.limit}
    tasks_of = build(**own, tasks=tasks).tasks
    for number in range(options.jobs):
        for name in tasks:
            tasks_of[name].delay(number)
    environment = {PREFIX + name.upper(): value for name, value in own.items()} | {PREFIX + "TASKS": " ".join(tasks)}
    command = [sys.executable, "-m", "celery", "-A", "bench.rate", "worker", "-l", "ERROR", "-P", options.pool]
    command += ["-c", str(options.concurrency), "-n", f"{tasks[0]}@localhost"]
    return subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.DEVNULL, start_new_session=True)


def await_runs(marks: Path, jobs: int) -> None:
    """Wait until each of onejob's tasks has run so often, or nothing runs any more."""
    ran, since = 0, time.monotonic()
    while time.monotonic() < since + SILENCE:
        counts = {path.name: len(times_in(path)) for path in marks.iterdir()}
        if sum(counts.values()) != ran:
            ran, since = sum(counts.values()), time.monotonic()
        if min([count for name, count in counts.items() if name.startswith("onejob")], default=0) >= jobs:
            return
        time.sleep(0.5)


def times_in(path: Path) -> list[float]:
    """Return when a task has run."""
    return sorted(map(float, path.read_text(encoding="utf-8").split()))


def row(path: Path) -> str:
    """Return the line of a task."""
    times = times_in(path)
    head = sum(1 for at in times if at < times[0] + HEAD) / HEAD
    tail = sum(1 for at in times if at > times[-1] - TAIL) / TAIL
    whole = (len(times) - 1) / max(0.001, times[-1] - times[0])
    return f"{path.name:15} {len(times):4} {head:10.2f} {tail:10.2f} {whole:7.2f}"


if __name__ == "__main__":
    main()
