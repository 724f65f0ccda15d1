"""Measure onejob against plain Celery and against other libraries, side by side, on servers of our own.

    python -m bench                                        # everything, some twenty minutes
    python -m bench --only new,duplicate,bulk --stores redis --peers ''

Every round does the same with every contender once, in an order that changes from round to round; a ratio compares
within a round: 2.0 says twice as many operations per second as the reference, the first line of each table.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from bench import runs, submissions, table
from bench.contenders import STORES, chosen
from bench.servers import Servers

STAGES = ("new", "duplicate", "bulk", "run")


def main() -> None:
    """Measure and print."""
    options = parsed()
    with ExitStack() as stack:
        servers = Servers(stack)
        kinds = [name for name in ("new", "duplicate", "bulk") if name in options.only]
        peers = options.peers
        if kinds:
            contenders = chosen("submit", options.stores, peers)
            found = submissions.compare(
                servers, contenders, kinds, rounds=options.rounds, operations=options.operations
            )
            print(table.compared("submissions by one client", found), flush=True)
        if "run" in options.only:
            contenders = chosen("run", options.stores, peers)
            found = runs.compare(servers, contenders, rounds=options.rounds, jobs=options.jobs)
            print(table.compared("runs of no-op jobs by a worker of two processes", found), flush=True)


def parsed() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=words, default=list(STAGES), help=f"some of {','.join(STAGES)}")
    parser.add_argument("--stores", type=words, default=list(STORES), help=f"some of {','.join(STORES)}")
    parser.add_argument("--peers", type=words, help="modules of bench.peers; default: all, '': none")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--operations", type=int, default=500, help="submissions of each kind in a round")
    parser.add_argument("--jobs", type=int, default=2000, help="that run in a round")
    return parser.parse_args()


def words(text: str) -> list[str]:
    """Return the words between commas."""
    return [word for word in text.split(",") if word]


if __name__ == "__main__":
    main()
