"""The command line of every script: print the parameters, run, print the counts, and set the exit code."""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = TypeVar("P")
STORES = ("sqlite", "postgresql", "redis")
BROKERS = ("redis", "ledger")


class Verdict(Protocol):
    """The counts of a run, and whether it passed."""

    @property
    def held(self) -> bool:
        """Whether the run showed what it was meant to show."""
        ...


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a command line parser with `--seed`; `doc` is the docstring of the script."""
    arguments = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    arguments.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    return arguments


def add_broker(arguments: argparse.ArgumentParser) -> None:
    """Add the option `--broker`, of which `Testbed.broker_url` makes a URL."""
    arguments.add_argument("--broker", choices=BROKERS, default="redis", help="what delivers the jobs")


def add_workers(arguments: argparse.ArgumentParser, count: int, *, concurrency: int = 4) -> None:
    """Add the options of the workers of a run: how many there are, what each runs at once, and the lease of a job."""
    arguments.add_argument("--workers", type=int, default=count)
    arguments.add_argument("--concurrency", type=int, default=concurrency, help="jobs that a worker runs at once")
    arguments.add_argument("--lease", type=float, default=6.0, help="seconds")


def add_pool(arguments: argparse.ArgumentParser) -> None:
    """Add the option of the pool of the workers."""
    arguments.add_argument("--pool", default="prefork", help="the pool of the workers")


def report(parameters: P, run: Callable[[P], Verdict]) -> int:
    """Print the parameters, run, print the counts, and return the exit code: 0 only when the promise held."""
    print(json.dumps(_plain(parameters)), flush=True)
    count = run(parameters)
    print(json.dumps(_plain(count), indent=2), flush=True)
    return 0 if count.held else 1


def _plain(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}
