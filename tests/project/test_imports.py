"""Imports go one way, the core is pure: the contracts of pyproject.toml hold, and each of them can fail."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.project.tree import PACKAGE, ROOT, files, modules

if TYPE_CHECKING:
    from pathlib import Path

CORE = ("errors.py", "jobs", "ledger", "stores/protocol.py", "transactions", "uniqueness")
CLOCKS = frozenset({"now", "utcnow", "today", "monotonic", "perf_counter", "time_ns"})
LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True, no_logo=True))"


def lint_imports(source: Path) -> subprocess.CompletedProcess[str]:
    """Check the project's contracts on the package that lies in `source`."""
    environment = {**os.environ, "PYTHONPATH": str(source), "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, "-c", LINT]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def clocks(source: str) -> list[str]:
    """Return the calls in a module that read a clock."""
    calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [ast.unparse(call) for call in calls if isinstance(call, ast.Attribute) and call.attr in CLOCKS]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a folder with a copy of the package that a test may spoil."""
    for path in files():
        if path.is_relative_to(PACKAGE):
            place = tmp_path / "onejob" / path.relative_to(PACKAGE)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
    return tmp_path


def test_contracts_hold() -> None:
    """Every import in the package obeys every contract."""
    checked = lint_imports(ROOT / "src")
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("errors.py", "from onejob import jobs", "Imports go one way"),
        ("helpers.py", "", "Imports go one way"),
        ("stores/protocol.py", "from onejob import ledger", "Imports go one way"),
        ("jobs/model.py", "from onejob.jobs import transitions", "No import circle"),
        ("celery/message.py", "from onejob.celery import task", "No import circle"),
        ("demo/scenario.py", "if TYPE_CHECKING:\n    from onejob.demo.supervisor import Stack", "No import circle"),
        ("ledger/ledger.py", "import time", "The core has no I/O"),
        ("jobs/model.py", "import celery", "The core has no I/O"),
        ("stores/sqlite/store.py", "from onejob.stores import redis", "No store knows another"),
        ("stores/redis/__init__.py", "import kombu", "A store knows its driver"),
    ],
)
def test_contracts_can_fail(copy: Path, file: str, line: str, contract: str) -> None:
    """One wrong import, or a module without a place, breaks the contract that forbids it."""
    with (copy / "onejob" / file).open("a", encoding="utf-8") as module:
        module.write(f"\n{line}\n")
    checked = lint_imports(copy)
    verdicts = [text for text in checked.stdout.splitlines() if text.startswith(contract)]
    assert checked.returncode == 1
    assert verdicts, checked.stdout + checked.stderr
    assert verdicts[0].endswith("BROKEN")


def test_core_reads_no_clock() -> None:
    """No core module reads a clock, not even by a type that it may import."""
    core = [path for path in modules() for place in CORE if path.is_relative_to(PACKAGE / place)]
    assert len(core) > len(CORE)
    assert {path.name: found for path in core if (found := clocks(path.read_text(encoding="utf-8")))} == {}


def test_a_clock_is_seen() -> None:
    """A clock is recognised under any name it was imported by."""
    assert clocks("import datetime as d\nx = d.datetime.now(d.UTC)\ny = d.timedelta(1)\n") == ["d.datetime.now"]
