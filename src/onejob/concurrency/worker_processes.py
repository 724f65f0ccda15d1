"""Runs a worker of Celery in several processes, each a worker by itself: `celery -A shop worker --processes 4`.

This process starts the others, passes signals on to them, and starts those again that die. It runs no jobs. Each of the
others holds one end of a pipe, and shuts down as by SIGTERM when this process is gone.
"""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

LIFELINE = "ONEJOB_WORKER_LIFELINE"
"""The environment variable with the descriptor of the pipe that ends when the first process does."""
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1)
STOPPING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
STARTING = 10.0
"""Seconds within which a process that dies has not started: the next one would die, too."""
RESTART_PAUSE = 1.0
"""Seconds between the death of a process and its restart."""
LOOK = 0.1
REFUSED = {
    "detach": "start it by systemd, supervisord or a container",
    "beat": "its schedule would run in each of them: run `celery beat` by itself, or set onejob_beat = True",
    "purge": "those that start later would purge what came meanwhile: run `celery purge` before",
}
"""The options that several processes cannot have, and what to do instead."""
FILES = ("pidfile", "statedb")
"""The options with the name of a file that each process needs for itself."""


def run(number: int, options: Mapping[str, Any], arguments: Sequence[str]) -> None:
    """Run a worker in several processes until all have ended, and exit.

    `options`: those of `celery worker`, as Celery has read them; `arguments`: those of the command line.
    Raises `click.UsageError` for options that several processes cannot have.
    """
    check(options)
    rest = [*without_processes(arguments)]
    commands = [[*rest, "--hostname", name] for name in names(str(options["hostname"]), number)]
    sys.exit(Supervisor(commands).run())


def check(options: Mapping[str, Any]) -> None:
    """Raise `click.UsageError` for options that several processes cannot have."""
    for option, instead in REFUSED.items():
        if options.get(option):
            raise click.UsageError(f"--{option} cannot be used with --processes: {instead}")
    for option in FILES:
        path = str(options.get(option) or "")
        if path and not any(part in path for part in ("%n", "%N", "%p", "%P")):
            raise click.UsageError(
                f"--{option}: all processes would have the file {path}: write %n, which is the name of each, as in "
                f"--{option}=/run/celery/%n{Path(path).suffix}"
            )


def names(name: str, number: int) -> list[str]:
    """Return the names of the nodes: of `w@host` w-1@host, w-2@host, and so on."""
    node, _, host = name.partition("@")
    return [f"{node}-{each}@{host}" for each in range(1, number + 1)]


def without_processes(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the arguments of a command line without the option `--processes`. Raises `click.UsageError`."""
    found, left = False, iter(arguments)
    for each in left:
        if each == "--processes":
            found = next(left, None) is not None
        elif each.startswith("--processes="):
            found = True
        else:
            yield each
    if not found:
        raise click.UsageError("--processes works on the command line only: start several workers instead")


class Supervisor:
    """The processes of one worker, by the arguments of `celery` for each."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self._commands = commands
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._began: dict[int, float] = {}
        self._start_at = dict.fromkeys(range(len(commands)), 0.0)
        """When the processes that do not run start, by their places."""
        self._signals: deque[int] = deque()
        """The signals that have come and were not passed on: a handler may run while a process is being started."""
        self._stops = False
        self._code = 0
        self._lifeline, self._held = os.pipe()
        """The end for the other processes, and that of this process, which ends with it."""

    def run(self) -> int:
        """Run the processes until all have ended; return the exit code: that of a process which died at its start."""
        for number in FORWARDED:
            signal.signal(number, lambda received, _frame: self._signals.append(received))
        while self._processes or self._start_at:
            self._look()
            time.sleep(LOOK)
        return self._code

    def _start(self, place: int) -> None:
        command = [sys.executable, "-m", __name__, *self._commands[place]]
        self._began[place] = time.monotonic()
        # Signals of a terminal reach this process alone, which passes them on once.
        self._processes[place] = subprocess.Popen(  # noqa: S603 - the arguments of this command
            command, pass_fds=[self._lifeline], env=os.environ | {LIFELINE: str(self._lifeline)}, start_new_session=True
        )

    def _look(self) -> None:
        while self._signals:
            self._forward(self._signals.popleft())
        for place, process in [*self._processes.items()]:
            if (code := process.poll()) is not None:
                del self._processes[place]
                self._note_end(place, code)
        for place, at in [*self._start_at.items()]:
            if time.monotonic() >= at:
                del self._start_at[place]
                self._start(place)

    def _note_end(self, place: int, code: int) -> None:
        """Start a process again that has died; end all if it has not come to run. One that was shut down stays so."""
        if self._stops or code == 0:
            return
        what = f"signal {-code}" if code < 0 else f"exit code {code}"
        if time.monotonic() - self._began[place] < STARTING:
            click.echo(f"onejob: process {place + 1} of the worker ended at its start ({what})", err=True)
            self._code = code if code > 0 else 128 - code
            self._forward(signal.SIGTERM)
        else:
            click.echo(f"onejob: process {place + 1} of the worker died ({what}), and is started again", err=True)
            self._start_at[place] = time.monotonic() + RESTART_PAUSE

    def _forward(self, number: int) -> None:
        if number in STOPPING:
            self._stops = True
            self._start_at.clear()
        for process in self._processes.values():
            process.send_signal(number)


# --- in each of the processes -----------------------------------------------------------------------------------------


def hold(lifeline: int) -> None:
    """Shut this process down as by SIGTERM when the other end of a pipe is closed, by a thread of the system."""

    def wait() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    _thread.start_new_thread(wait, ())  # before anything could be patched


if __name__ == "__main__":
    hold(int(os.environ[LIFELINE]))
    from celery.__main__ import main

    main()
