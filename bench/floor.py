"""The least that a submission to Redis can take: the script alone, with all that Python prepares done before.

Prints microseconds, medians of interleaved rounds: of a PING, of the script of a new job with its message, both polled
for and slept for, of plain `delay()`, and of a protected one.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import ExitStack
from functools import partial
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any

from celery import Celery

import onejob
from bench.servers import Servers
from onejob.celery.app_state import app_state_of
from onejob.celery.submission.call import Call, prepare
from onejob.stores.holder_cache import HolderCache
from onejob.stores.redis import connection
from onejob.stores.redis.client import Client, commands_of
from onejob.stores.redis.connection import Connections, pool_of
from onejob.stores.redis.rows import Keys
from onejob.stores.redis.submission import Submitting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

numbers = count()


def work(number: int, second: int) -> None:
    """Do nothing."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--operations", type=int, default=500)
    options = parser.parse_args()
    with ExitStack() as stack:
        show(measured(Servers(stack).new_database("redis"), options.rounds, options.operations))


def measured(url: str, rounds: int, operations: int) -> dict[str, list[float]]:
    """Return the seconds per operation of each kind, of each round."""
    plain = Celery("plain", broker=url, set_as_current=False).task(name="work")(work)
    app = Celery("protected", broker=url, set_as_current=False)
    app.conf.onejob_store = url
    protected = app.task(name="work", base=onejob.Task)(work)
    protected.delay(-2, 0)
    protected.delay(-1, 0)  # the second one makes the template of the message
    connections = Connections(pool_of(url))
    kinds: dict[str, Callable[[], Iterable[Callable[[], Any]]]] = {
        "PING": lambda: [partial(connections.execute, [("PING",)])] * operations,
        "script": lambda: [partial(connections.execute, prepared(protected)) for _ in range(operations)],
        "delay(), Celery": lambda: [partial(plain.delay, next(numbers), 7) for _ in range(operations)],
        "delay(), onejob": lambda: [partial(protected.delay, next(numbers), 7) for _ in range(operations)],
    }
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for spin in (connection.SPIN, 0.0):
            for kind, make in kinds.items():
                calls = list(make())
                usual, connection.SPIN = connection.SPIN, spin
                began = perf_counter()
                for call in calls:
                    call()
                found.setdefault(f"{kind}{'' if spin else ', sleeping'}", []).append(
                    (perf_counter() - began) / operations
                )
                connection.SPIN = usual
    app_state_of(app).ledger.close()
    connections.close()
    return found


def prepared(task: Any) -> list[Any]:
    """Return the command of a new job's script."""
    call = Call(task, kwargs={"number": next(numbers), "second": 7})
    submission = prepare(app_state_of(task.app), call).submission
    handover_of = app_state_of(task.app).publisher.handover.of
    submitting = Submitting(Client("redis://"), Keys("onejob"), HolderCache(), handover_of)
    return list(commands_of([submitting.new_jobs([submission])]))


def show(found: dict[str, list[float]]) -> None:
    """Print the medians, and the ratios to plain `delay()` within each round."""
    reference = found["delay(), Celery"]
    for kind, seconds in found.items():
        ratio = statistics.median(base / each for base, each in zip(reference, seconds, strict=True))
        print(f"{kind:28}{statistics.median(seconds) * 1e6:8.0f} us{ratio:8.2f}")


if __name__ == "__main__":
    main()
