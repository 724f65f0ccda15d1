"""Bring the job API up with its own PostgreSQL and Redis, and take it down.

python -m examples.job_api up            # until Ctrl-C, or `down` from elsewhere
python -m examples.job_api workers kill  # as the loss of their machine would; also stop, start
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.job_api.place import Place, StackError
from onejob.errors import OneJobError
from tests.services import ServiceError, eventually, free_port

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
"""Seconds until a command fails that waits for the stack."""


def main() -> int:
    """Run the command of the command line. Returns the exit code."""
    options = _options()
    place = Place(options.folder)
    try:
        match options.command:
            case "up":
                up(place, options.port or free_port(), options.workers)
            case "down":
                down(place)
            case "workers":
                {"stop": stop_workers, "start": start_workers, "kill": kill_workers}[options.what](place)
    except (StackError, ServiceError, OneJobError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _options() -> argparse.Namespace:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m examples.job_api", description=summary)
    parser.add_argument("--folder", type=Path, default=ROOT / ".up", help="where everything is kept [.up]")
    commands = parser.add_subparsers(dest="command", required=True)
    begin = commands.add_parser("up", help="start everything, and keep it up until Ctrl-C")
    begin.add_argument("--port", type=int, default=0, help="the port of the API [a free one]")
    begin.add_argument("--workers", type=int, default=1, help="how many workers [1]")
    commands.add_parser("down", help="end what `up` has started")
    workers = commands.add_parser("workers", help="stop, start or kill the workers of a stack that is up")
    workers.add_argument("what", choices=["stop", "start", "kill"])
    return parser.parse_args()


def up(place: Place, port: int, workers: int) -> None:
    """Start everything, and keep it running until a signal. Raises `StackError`, `ServiceError`."""
    from examples.job_api.stack import Stack, make_key, servers

    ending = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ending.set())  # no exception: it could interrupt a start before its record
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # so that a pipe gets each line at once
    with place.held():
        print(f"PostgreSQL, Redis, the API and {workers} worker{'s' * (workers != 1)} are starting ...")
        make_key(place)
        with servers(place) as started, closing(Stack(place, started, ending, port=port, workers=workers)) as stack:
            stack.start()
            if not ending.is_set():
                _welcome(place, stack.url)
            stack.keep()
            print("ending ...")
    print("down; the data stays until `make clean`")


def _welcome(place: Place, url: str) -> None:
    folder = os.path.relpath(place.folder)
    print(f"The job API answers at {url}, with the key in {folder}/key:")
    print(f'  curl -H "authorization: Bearer $(cat {folder}/key)" {url}/jobs')
    print(f"Logs are in {folder}/logs. Ctrl-C ends everything; so does `make down` from elsewhere.")


def down(place: Place) -> None:
    """End the stack of a place, and wait for its end. Raises `StackError`."""
    if not place.taken:
        print("nothing is up")
        return
    with suppress(ProcessLookupError):
        os.kill(_state(place)["pid"], signal.SIGTERM)
    _await(lambda: not place.taken, "the end")


def stop_workers(place: Place) -> None:
    """Stop the workers, and start no others. Raises `StackError`."""
    _state(place)
    place.paused.touch()
    _await(lambda: not _state(place)["workers"], "the end of the workers")


def start_workers(place: Place) -> None:
    """Start as many workers as there were at first. Raises `StackError`."""
    _state(place)
    place.paused.unlink(missing_ok=True)
    _await(lambda: len(_state(place)["workers"]) == _state(place)["wanted"], "the workers")


def kill_workers(place: Place) -> None:
    """Kill the workers with all their processes; the stack starts others. Raises `StackError`."""
    killed = dict(_state(place)["workers"])
    for pid in killed.values():
        os.killpg(pid, signal.SIGKILL)
    _await(lambda: not killed.keys() & _state(place)["workers"].keys(), "the end of the workers")


def _state(place: Place) -> dict[str, Any]:
    """Return the state of the stack. Raises `StackError` if it is not up."""
    if not place.taken:
        raise StackError("nothing is up: `make up` starts it")
    return place.state()


def _await(condition: Callable[[], bool], what: str) -> None:
    try:
        eventually(condition, PATIENCE)
    except AssertionError:
        msg = f"waited {PATIENCE:g} s in vain for {what}: look at the output of `make up`"
        raise StackError(msg) from None


if __name__ == "__main__":
    sys.exit(main())
