"""The stage `api`: `POST /jobs` against a FastAPI endpoint that calls `delay()`, each in one uvicorn process."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from bench.http import PLAIN, compare, served
from bench.rounds import ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.servers import Servers


def measure(servers: Servers, stores: Sequence[str], *, rounds: int, requests: int) -> list[dict[str, Any]]:
    """Return what a request takes by each server."""
    with ExitStack() as stack:
        rates = compare(served(stack, servers, stores), requests, rounds)
    return [_result(name, kind, found, rates[PLAIN, kind], requests) for (name, kind), found in rates.items()]


def _result(name: str, kind: str, rates: list[float], plain: list[float], requests: int) -> dict[str, Any]:
    seconds, theirs = ([1 / rate for rate in some] for some in (rates, plain))
    return {
        "contender": name if name == PLAIN else f"onejob on {name}", "kind": kind, "operations": requests,
        "seconds": seconds, "median": statistics.median(seconds), "cpu": 0.0, "ratio": ratio(seconds, theirs),
    }  # fmt: skip
