"""An app of one file beside real packages, its workers and its scripts, in processes of an environment of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onejob.jobs.query import Query
from onejob.ledger.ledger import Ledger
from tests.release.environments import ROOT
from tests.services import Daemon, eventually
from tests.stores.support import StoreAddress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onejob.jobs.model import JobRow

on_both_brokers = pytest.mark.parametrize("direct", [False, True], ids=["redis", "onejob"])
"""Run a test with a Redis as the broker, and with the ledger itself."""
KIT = Path(__file__).with_name("kit.py")
READY = " ready."
"""What a worker logs when it takes messages."""


@dataclass
class Log:
    """What a process has written to both its outputs."""

    path: Path
    daemon: Daemon

    @property
    def text(self) -> str:
        """All of it, so far."""
        return self.path.read_text(errors="replace")

    def await_text(self, text: str) -> None:
        """Wait until the process has written something. Fails when it ends before."""
        eventually(lambda: text in self.text or not self.daemon.alive)
        assert text in self.text, self.text[-4000:]


@dataclass
class Program:
    """An app, `shop.py`, in a folder of its own."""

    folder: Path
    python: Path
    variables: dict[str, str]

    def write(self, text: str) -> None:
        """Write the module with the app."""
        shutil.copy(KIT, self.folder)
        (self.folder / "shop.py").write_text(text, encoding="utf-8")

    def run(self, script: str = "") -> Any:
        """Run lines after `from shop import *`; return what they assign to `answer`, as JSON has it."""
        lines = ["from shop import *", "answer = None", script, "print(json.dumps(answer, default=str))"]
        done = self.command("-c", "\n".join(["import json", *lines]))
        return json.loads(done.splitlines()[-1])

    def command(self, *arguments: str) -> str:
        """Run the Python of the environment to its end; return its output. Fails unless the exit code is 0."""
        command = [str(self.python), *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, check=False, timeout=90
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout

    @contextmanager
    def start(self, *arguments: str, ready: str) -> Iterator[Log]:
        """Run the Python of the environment during the block, which begins when its log has a text."""
        path = self.folder / f"{len([*self.folder.glob('*.log')])}.log"
        changed = [f"{name}={value}" for name, value in self._environment.items() if os.environ.get(name) != value]
        with Daemon(["env", *changed, str(self.python), *arguments], log=path, cwd=self.folder) as daemon:
            log = Log(path, daemon)
            try:
                log.await_text(ready)
                yield log
            finally:
                daemon.end(signal.SIGTERM)
                print(f"--- {' '.join(arguments)}\n{log.text[-6000:]}")  # noqa: T201 - pytest shows it on a failure

    @contextmanager
    def worker(self, *options: str) -> Iterator[Log]:
        """Run a worker during the block."""
        usual = ("-l", "INFO", "-c", "2", "--without-gossip", "--without-mingle")
        with self.start("-m", "celery", "-A", "shop", "worker", *usual, *options, ready=READY) as log:
            yield log

    @property
    def marks(self) -> list[list[Any]]:
        """What the program has left by `mark`."""
        path = self.folder / "marks.txt"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def await_marks(self, number: int) -> list[list[Any]]:
        """Wait until there are so many marks, and return all."""
        eventually(lambda: len(self.marks) >= number)
        return self.marks

    def jobs(self, task: str | None = None) -> list[JobRow]:
        """Return the jobs of the ledger, or those of a task, oldest first."""
        address = StoreAddress(self.variables["SHOP_LEDGER"], self.variables["SHOP_NAMESPACE"])
        with address.opened() as store:
            return Ledger(store).find(Query(task=task))[::-1]

    def await_states(self, *states: str, task: str | None = None) -> list[JobRow]:
        """Wait until the jobs have these states, oldest first, and return the jobs."""
        eventually(lambda: [job.state for job in self.jobs(task)] == [*states])
        return self.jobs(task)

    @property
    def _environment(self) -> dict[str, str]:
        given = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        source = {"PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": ""}
        return given | source | self.variables


MakeProgram = Callable[..., Program]
"""The fixture `program`: it makes one of the text of `shop.py`."""
