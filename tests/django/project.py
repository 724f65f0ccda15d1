"""A project of Django, run in processes of its own: settings of one test do not reach another."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.forks import DJANGO
from tests.services import Daemon

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "shop_project"
on_both = pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True, scope="module")
"""Run a test that uses `project` on both kinds of database, also outside the deep tier."""
SETUP = "import json, sys, django; django.setup()\n"


@dataclass
class Project:
    settings: dict[str, Any]
    imported: tuple[str, ...] = DJANGO
    """What its commands and scripts find imported."""
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        given = [str(Path(entry).resolve()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        return os.environ | {
            "DJANGO_SETTINGS_MODULE": "shop.settings", "SHOP_SETTINGS": json.dumps(self.settings),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), *given]), "PYTHONDONTWRITEBYTECODE": "1",
            **self.variables,
        }  # fmt: skip

    def run(self, *command: str, code: int = 0) -> str:
        """Run Python in the folder of the project; return what it has written to both outputs."""
        done = forks.run(command, environment=self.environment, cwd=FOLDER, modules=self.imported)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def start(self, *command: str, log: Path) -> Daemon | forks.Fork:
        """Start Python in the folder of the project; both its outputs are in a log."""
        begin = partial(forks.fork, modules=self.imported) if forks.FORKS else forks.interpret
        return begin(command, environment=self.environment, cwd=FOLDER, output=log)

    def manage(self, *command: str, code: int = 0) -> str:
        return self.run("manage.py", *command, code=code)

    def onejob(self, *command: str, code: int = 0) -> str:
        return self.run(
            "-c", "import sys; from onejob.cli.commands import main; main()", "-A", "shop", *command, code=code
        )

    def script(self, text: str, *arguments: object) -> Any:
        """Run a script after `django.setup()`; return the value of its last line of output, which is JSON."""
        output = self.run("-c", SETUP + text, *(json.dumps(each) for each in arguments))
        return json.loads(output.strip().splitlines()[-1])


def sqlite(name: object) -> dict[str, Any]:
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(name), "OPTIONS": {"transaction_mode": "IMMEDIATE"}}
