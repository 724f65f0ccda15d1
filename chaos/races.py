"""Play the boundary cases many thousand times: in every order, no illegal history and no false answer.

    python -m chaos.races --store redis --rounds 10000

Each race is a function of `tests/stores/races.py`, which asserts after every round what must hold. The counts
show how often each result occurred: a race that always ends the same way has tested nothing.
"""

from __future__ import annotations

import random
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

from chaos.command import STORES, parser, report
from chaos.testbed import NAMESPACE, start_testbed
from onejob.stores import open_store
from tests.stores.races import CROWD, RACES


@dataclass(frozen=True, slots=True)
class Campaign:
    """The parameters of a run."""

    store: str
    rounds: int
    races: list[str]
    seed: int


@dataclass(slots=True)
class Count:
    """For each race, how often each result occurred."""

    seconds: float = 0.0
    races: dict[str, dict[str, int]] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    """The races in which something did not hold."""

    @property
    def held(self) -> bool:
        """Whether everything held, and something was played."""
        return bool(self.races) and not self.broken


def run(campaign: Campaign) -> Count:
    """Play the races, each on a ledger of its own."""
    random.seed(campaign.seed)
    count = Count()
    began = time.monotonic()
    for name in campaign.races:
        print(f"{name} ...", file=sys.stderr, flush=True)
        with start_testbed(campaign.store) as place, ExitStack() as stack:
            stores = [open_store(place.store, namespace=NAMESPACE) for _ in range(CROWD)]
            for store in stores:
                stack.callback(store.close)
            try:
                count.races[name] = dict(RACES[name](stores, campaign.rounds))
            except AssertionError as error:
                count.broken[name] = str(error)
    count.seconds = round(time.monotonic() - began, 1)
    return count


def main() -> int:
    """Parse the command line, run, and print the counts. The exit code is 0 if the promise held."""
    options = parser(__doc__)
    options.add_argument("--store", choices=STORES, default="postgresql")
    options.add_argument("--rounds", type=int, default=10_000)
    options.add_argument("--race", dest="races", action="append", choices=sorted(RACES), help="may be repeated; all")
    given = options.parse_args()
    return report(Campaign(given.store, given.rounds, given.races or sorted(RACES), given.seed), run)


if __name__ == "__main__":
    sys.exit(main())
