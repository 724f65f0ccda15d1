"""The stages `submit` and `clients`: jobs are submitted, and no worker runs."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from bench import processor
from bench.child import BULK
from bench.contenders import Child, FailedError, environment_of
from bench.rounds import Cost, as_results, run_rounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.contenders import Contender
    from bench.servers import Servers

WARM_UP = 50


class Crew:
    """The processes of one contender: one, or as many as there are clients."""

    def __init__(self, contender: Contender, servers: Servers, clients: int = 1, threads: int = 1) -> None:
        self._numbers = count(1)
        self._threads = threads
        environment = environment_of(contender, servers.places_of(contender))
        self._children = [Child(contender, environment, servers.log(contender)) for _ in range(clients)]

    def prepare(self, kinds: Sequence[str]) -> None:
        """Make the database, then warm up. Raises `FailedError`."""
        self._children[0].ask("prepare")
        for child in self._children[1:]:
            child.ask("connect")
        for kind in kinds:
            self.measure(kind, WARM_UP * len(self._children) * self._threads)

    def measure(self, kind: str, operations: int) -> Cost:
        """Do operations, shared among the clients; return the seconds and the CPU seconds per operation."""
        share = max(operations // len(self._children), BULK if kind == "bulk" else 1)
        before = processor.seconds()
        for child in self._children:
            first = next(self._numbers) * 1_000_000
            child.start(kind, count=share, first=first, threads=self._threads)
        answers = [child.finish() for child in self._children]
        done = share * len(self._children)
        seconds = max(answer["ended"] for answer in answers) - min(answer["began"] for answer in answers)
        return Cost(seconds / done, (processor.seconds() - before) / done)

    def close(self) -> None:
        """End the processes."""
        for child in self._children:
            child.close()


def compare(
    servers: Servers,
    contenders: Sequence[Contender],
    kinds: Sequence[str],
    *,
    rounds: int,
    operations: int,
    clients: int = 1,
    threads: int = 1,
) -> list[dict[str, Any]]:
    """Return what every contender takes for each kind, beside the first one."""
    failures: dict[str, str] = {}
    crews = {one.name: Crew(one, servers, clients, threads) for one in contenders if not one.missing}
    for one in contenders:
        try:
            crews[one.name].prepare([kind for kind in kinds if kind in one.kinds])
        except (KeyError, FailedError) as error:
            failures[one.name] = one.missing or str(error)
    try:
        found = run_rounds(
            contenders, kinds, rounds, lambda one, kind: crews[one.name].measure(kind, operations), failures
        )
    finally:
        for crew in crews.values():
            crew.close()
    return as_results(found, contenders[0], operations)
