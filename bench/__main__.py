"""Measure onejob beside plain Celery and other libraries, on servers of our own that end with it.

    python -m bench                                     # everything
    python -m bench --only submit,duplicate,bulk --stores redis --peers singleton
    python -m bench chart bench/results/....json        # write the chart of the README

In every round each contender does the same once, in an order that changes from round to round. A ratio compares
within a round: 2.00 is twice as many operations per second as the first line of its kind. The columns are medians
over the rounds. The processor time is that of the contender and of the servers: other work on the machine changes it
less, and it leaves out what waits for a disk.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from bench import chart, results
from bench.contenders import STORES
from bench.stages import KINDS, STAGES, Options, stages_of

QUICK = {"rounds": 1, "operations": 20, "jobs": 200, "requests": 40, "clients": 2, "stored": 100, "sizes": (100, 1_000)}


def main(arguments: list[str]) -> None:
    """Measure, print and write."""
    if arguments[:1] == ["chart"]:
        chart.write(results.read(Path(arguments[1])), chart.PATH)
        return
    options, path = parsed(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that workers and servers are ended
    found: dict[str, Any] = {"about": results.about(options)}
    for name in stages_of(options.only):
        found[name] = STAGES[name].run(options)
        path = results.write(found, path)
    print(f"written: {path}")


def parsed(arguments: list[str]) -> tuple[Options, Path | None]:
    """Return what to measure, and where to write it."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = tuple(dict.fromkeys((*KINDS, *STAGES)))
    parser.add_argument("--only", type=words, default=known, help=f"some of {','.join(known)}")
    parser.add_argument("--stores", type=words, help=f"some of {','.join(STORES)}")
    parser.add_argument("--peers", type=words, help="modules of bench.peers, the other libraries; default: all")
    parser.add_argument("--rounds", type=int, help="default: 9")
    parser.add_argument("--operations", type=int, help="submissions of a kind in a round; default: 500")
    parser.add_argument("--jobs", type=int, help="that run in a round; default: 2000")
    parser.add_argument("--requests", type=int, help="to each server in a round; default: 2000")
    parser.add_argument("--clients", type=int, help="of the stage `clients`; default: 16")
    parser.add_argument("--stored", type=int, help="jobs whose memory is measured; default: 10000")
    parser.add_argument("--sizes", type=numbers, help="jobs of the ledgers that grow; default: 1000,1000000")
    parser.add_argument("--output", type=Path, help="the file of the results; default: a new one in bench/results")
    parser.add_argument("--quick", action="store_true", help="a few operations of each kind: whether everything runs")
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    path, quick = given.pop("output", None), QUICK if given.pop("quick") else {}
    if unknown := {*given["only"]} - {*known}:
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(known)}")
    return Options(**{**quick, **given}), path


def words(text: str) -> tuple[str, ...]:
    """Return the words between commas."""
    return tuple(word for word in text.split(",") if word)


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers between commas."""
    return tuple(map(int, words(text)))


if __name__ == "__main__":
    main(sys.argv[1:])
