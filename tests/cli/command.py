"""What the tests of the command line share: an app, and a way to run a command."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from click.testing import CliRunner, Result

from onejob.cli.commands import main

APP = """
import celery, onejob
app = celery.Celery("shop", broker="memory://")
app.conf.onejob_store = "sqlite:///{path}"

@app.task(base=onejob.Task, unique_on=["order_id"], shared=False)
def invoice(order_id, note=""): ...
"""


def call(*args: str, text: str | None = None) -> Result:
    """Run the command, with a text at its input."""
    return CliRunner().invoke(main, args, catch_exceptions=False, input=text)


@dataclass(frozen=True)
class Shell:
    """The command with some options of the program, such as those that name the ledger."""

    options: tuple[str, ...]

    def __call__(self, *args: str, text: str | None = None) -> Result:
        return call(*self.options, *args, text=text)

    def json(self, *args: str) -> Any:
        """Return what a command prints with `--json`."""
        return json.loads(self(*args, "--json").stdout)

    def lines(self, *args: str) -> list[str]:
        return self(*args).output.splitlines()

    def ids(self, *args: str) -> list[str]:
        """Return the ids of the jobs that `jobs list` has with some options."""
        return [job["id"] for job in self.json("jobs", "list", *args)]
