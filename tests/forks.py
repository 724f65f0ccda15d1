"""Programs of Python that tests start: forked from a process that has imported what they import, if possible."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

from tests.services import STOP_SECONDS, Daemon, eventually

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PROGRAM = Path(__file__).with_name("forkserver.py")
CELERY = (
    "celery.bin.celery", "celery.apps.worker", "celery.worker.consumer", "celery.worker.components",
    "celery.worker.autoscale", "celery.concurrency.prefork", "celery.concurrency.solo", "celery.concurrency.thread",
    "celery.backends.redis", "celery.app.amqp", "celery.app.control", "celery.app.events", "celery.app.log",
    "celery.events.dispatcher", "celery.events.receiver", "celery.worker.strategy", "celery.fixups.django",
    "celery.loaders.app", "kombu.transport.redis", "billiard.popen_fork", "billiard.sharedctypes",
    "opentelemetry.sdk.trace", "sentry_sdk", "onejob", "onejob.stores.sqlite", "onejob.stores.redis",
)  # fmt: skip
"""What a worker imports."""
DJANGO = (
    *CELERY, "django.contrib.admin", "django.contrib.staticfiles.handlers", "django.core.management.commands.migrate",
    "django.db.backends.postgresql.base", "django.db.backends.sqlite3.base", "django.test.runner",
    "onejob.django.dashboard",
)  # fmt: skip
"""What a project of Django imports and can import without settings."""

FORKS = sys.platform == "linux"
"""Whether this system can fork a process that has imported much, and end the fork when its parent ends."""


class Prepared:
    """A process that has imported modules, to fork programs from."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.read_text(), *modules], cwd="/", env=environment, process_group=0,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        atexit.register(self._process.communicate)

    def request(self, **values: Any) -> Any:
        """Return the answer to a request."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(values).encode() + b"\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())


class Fork:
    """A program in a process group of its own that ends when this process does."""

    def __init__(self, prepared: Prepared, **values: Any) -> None:
        self._prepared = prepared
        self._code: int | None = None
        self.pid: int = prepared.request(**values)
        """The process id, and the id of the group."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.poll() is None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        if self._code is None:
            self._code = self._prepared.request(poll=self.pid)
        return self._code

    @property
    def process(self) -> Fork:
        """The process itself, where a `Daemon` has it."""
        return self

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.alive:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask the process to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process; its children may go on."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = 4 * STOP_SECONDS) -> int:
        """Wait for the end and return the exit code."""
        eventually(lambda: not self.alive, timeout)
        assert self._code is not None
        return self._code


@cache
def _prepared(modules: tuple[str, ...], environment: tuple[tuple[str, str], ...]) -> Prepared:
    return Prepared(modules, dict(environment))


def fork(
    argv: Sequence[str], *, environment: Mapping[str, str], cwd: Path, output: Path, errors: Path | None = None,
    modules: tuple[str, ...] = CELERY,
) -> Fork:  # fmt: skip
    """Start a program with these arguments of the interpreter and this environment, whole.

    What the interpreter reads from its environment at its start, the prepared process has read from an equal one.
    """
    read_at_start = {name: value for name, value in environment.items() if name.startswith(("PYTHON", "LC_", "LANG"))}
    prepared = _prepared(modules, tuple(sorted(({"PATH": os.environ["PATH"]} | read_at_start).items())))
    files = {"cwd": str(cwd), "output": str(output), "errors": str(errors or output)}
    return Fork(prepared, argv=[*argv], environment=dict(environment), **files)


def run(
    argv: Sequence[str], *, environment: Mapping[str, str], cwd: Path, modules: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, as `subprocess.run` does, in a fork where there are forks."""
    if not FORKS:
        argv = [sys.executable, *argv]
        return subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    with TemporaryDirectory() as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        program = fork(argv, environment=environment, cwd=cwd, output=output, errors=errors, modules=modules)
        try:
            program.wait(120)
        finally:
            program.kill()
        return subprocess.CompletedProcess(argv, program.wait(), output.read_text(), errors.read_text())


def interpret(argv: Sequence[str], *, environment: Mapping[str, str], cwd: Path, output: Path) -> Daemon:
    """Start a program in a new interpreter."""
    variables = [f"{name}={value}" for name, value in environment.items() if os.environ.get(name) != value]
    return Daemon(["env", *variables, sys.executable, *argv], log=output, cwd=cwd)
