"""Interleaved rounds: each does the same with every contender once, in another order, and compares within itself."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.contenders import FailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.contenders import Contender


class Cost(NamedTuple):
    """What one operation took."""

    seconds: float
    cpu: float
    """Seconds of the processor, of the contender and of the servers; 0 if unknown."""


@dataclass(slots=True)
class Series:
    """What the operations of one kind took one contender, in each round."""

    name: str
    kind: str
    costs: list[Cost] = field(default_factory=list)
    failure: str = ""

    @property
    def seconds(self) -> list[float]:
        """The seconds per operation."""
        return [cost.seconds for cost in self.costs]

    @property
    def cpu(self) -> list[float]:
        """The processor seconds per operation."""
        return [cost.cpu for cost in self.costs]


def orders(contenders: Sequence[Contender], rounds: int) -> Iterator[list[Contender]]:
    """Yield the order of each round: rotated by one each time, and backwards every other time."""
    line = deque(contenders)
    for number in range(rounds):
        yield list(line) if number % 2 else list(reversed(line))
        line.rotate(1)


def run_rounds(
    contenders: Sequence[Contender],
    kinds: Sequence[str],
    rounds: int,
    measure: Callable[[Contender, str], Cost],
    failures: dict[str, str],
) -> list[Series]:
    """Measure every kind with every contender in each round; one that fails is noted, and left out from then on."""
    found = {(one.name, kind): Series(one.name, kind) for kind in kinds for one in contenders if kind in one.kinds}
    for order in orders(contenders, rounds):
        for kind, contender in product(kinds, order):
            if (contender.name, kind) not in found or contender.name in failures:
                continue
            try:
                found[contender.name, kind].costs.append(measure(contender, kind))
            except FailedError as error:
                failures[contender.name] = str(error)
    for series in found.values():
        series.failure = failures.get(series.name, "")
    return list(found.values())


def as_results(found: Sequence[Series], reference: Contender, operations: int) -> list[dict[str, Any]]:
    """Return what the JSON and the table have: each series with its ratio to the reference."""
    references = {series.kind: series for series in found if series.name == reference.name}
    return [_as_result(series, references[series.kind], operations) for series in found]


def _as_result(series: Series, reference: Series, operations: int) -> dict[str, Any]:
    result: dict[str, Any] = {"contender": series.name, "kind": series.kind, "operations": operations}
    if series.failure:
        return result | {"failure": series.failure}
    result |= {"seconds": series.seconds, "median": statistics.median(series.seconds)}
    result |= {"cpu": statistics.median(series.cpu)}
    if reference.failure:
        return result
    return result | {"ratio": ratio(series.seconds, reference.seconds), "cpu_ratio": ratio(series.cpu, reference.cpu)}


def ratio(own: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Return how many operations are done while the reference does one: lower quartile, median, upper quartile."""
    ratios = [theirs / mine if mine else 0.0 for mine, theirs in zip(own, reference, strict=True)]
    return statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
