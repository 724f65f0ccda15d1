"""The stages of the bench: what each measures, and how its results are shown."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench import api, counts, growth, memory, recovery, runs, submissions, table, waits
from bench.contenders import STORES, chosen
from bench.servers import Servers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Results = list[dict[str, Any]]
KINDS = ("submit", "duplicate", "bulk")


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure, and how often."""

    only: Sequence[str]
    stores: Sequence[str] = STORES
    peers: Sequence[str] | None = None
    """Modules of `bench.peers`; None: all."""
    rounds: int = 9
    operations: int = 500
    jobs: int = 2_000
    requests: int = 2_000
    clients: int = 16
    """Processes, then threads, of the stage `clients`."""
    stored: int = 10_000
    """Jobs of the stage `memory`."""
    sizes: Sequence[int] = (1_000, 1_000_000)
    """Jobs of the ledgers of the stage `growth`."""


def submit(servers: Servers, options: Options) -> Results:
    """Submissions by one client: new jobs, duplicates, bulks."""
    contenders = chosen("submit", options.stores, options.peers)
    kinds = [kind for kind in KINDS if kind in options.only]
    return submissions.compare(servers, contenders, kinds, rounds=options.rounds, operations=options.operations)


def clients(servers: Servers, options: Options) -> Results:
    """Submissions by many clients at once, each a process, or each a thread of one process."""
    plain, *others = chosen("submit", [name for name in options.stores if name == "postgresql"], options.peers)
    contenders = [plain, *(one for one in others if one.store == "postgresql")]
    found = []
    for name, crew in (("processes", {"clients": options.clients}), ("threads", {"threads": options.clients})):
        rows = submissions.compare(
            servers, contenders, KINDS[:2], rounds=options.rounds, operations=options.operations * 4, **crew
        )
        found += [row | {"kind": f"{row['kind']}, {options.clients} {name}"} for row in rows]
    return found


def run(servers: Servers, options: Options) -> Results:
    """No-op jobs that wait in the queue, run by a worker of two processes."""
    contenders = chosen("run", options.stores, options.peers)
    return runs.compare(servers, contenders, rounds=options.rounds, jobs=options.jobs)


def wait(servers: Servers, options: Options) -> Results:
    """`delay().get()` of no-op jobs, one after the other, with an idle worker of two processes."""
    contenders = [one for one in chosen("run", options.stores, []) if not one.is_other]
    return waits.compare(servers, contenders, rounds=options.rounds, jobs=max(1, options.jobs // 20))


def rabbitmq(servers: Servers, options: Options) -> Results:
    """RabbitMQ as the broker: submissions by one client, and no-op jobs run by a worker of two processes."""
    contenders = chosen("rabbitmq", options.stores, [])
    found = submissions.compare(servers, contenders, KINDS, rounds=options.rounds, operations=options.operations)
    contenders = chosen("run on rabbitmq", options.stores, [])
    return found + runs.compare(servers, contenders, rounds=options.rounds, jobs=options.jobs)


def post(servers: Servers, options: Options) -> Results:
    """`POST /jobs` by 64 clients, and an endpoint that calls `delay()`."""
    return api.measure(servers, options.stores, rounds=options.rounds, requests=options.requests)


def count(servers: Servers, options: Options) -> Results:
    """Commands, statements, round trips, bytes and Python instructions per submission."""
    return counts.measure(servers, chosen("submit", options.stores, options.peers))


def store(servers: Servers, options: Options) -> Results:
    """Bytes and keys per job."""
    return memory.measure(servers, chosen("memory", options.stores, []), options.stored)


def grow(servers: Servers, options: Options) -> Results:
    """The milliseconds of an operation among few stored jobs and among many."""
    stores = [name for name in ("redis", "postgresql") if name in options.stores]
    return growth.measure(servers, stores, options.sizes, options.operations * 4)


def recover(servers: Servers, options: Options) -> Results:
    """Seconds from the death of a worker to the next run of its job."""
    return recovery.measure(servers, chosen("memory", options.stores, []), max(1, min(options.rounds // 2, 3)))


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the bench that has servers of its own."""

    measure: Callable[[Servers, Options], Results]
    show: Callable[[str, Results], str]

    def run(self, options: Options) -> Results:
        """Measure, and print a table."""
        with ExitStack() as stack:
            found = self.measure(Servers(stack), options)
        print(self.show((self.measure.__doc__ or "").rstrip("."), found), end="\n\n", flush=True)
        return found


STAGES = {
    "submit": Stage(submit, table.compared),
    "clients": Stage(clients, table.compared),
    "run": Stage(run, table.compared),
    "wait": Stage(wait, table.compared),
    "rabbitmq": Stage(rabbitmq, table.compared),
    "api": Stage(post, table.compared),
    "counts": Stage(count, table.counted),
    "memory": Stage(store, table.stored),
    "growth": Stage(grow, table.grown),
    "recovery": Stage(recover, table.recovered),
}


def stages_of(only: Sequence[str]) -> list[str]:
    """Return the stages that measure what was asked for."""
    return [name for name in STAGES if name in only or (name == "submit" and {*KINDS} & {*only})]
