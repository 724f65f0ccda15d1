"""What type checkers say about users' code: right calls are accepted, and every mistake is reported on its line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest

from tests.project.tree import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES = Path(__file__).parent / "samples"
TYPED = ("celery", "kombu", "amqp", "billiard", "vine")
"""The packages that celery-types has stubs for."""
Found: TypeAlias = "set[tuple[str, int, str]]"
"""The file, the line and the code of each error."""


def project(folder: Path, *, stubs: bool) -> Path:
    """Return a user's project: the samples, and an environment with onejob, Celery and, if `stubs`, its types."""
    venv.create(folder / "venv", symlinks=True)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    installed = Path(sysconfig.get_path("purelib"))
    for name in (*TYPED, "click", "redis", *(f"{name}-stubs" for name in TYPED if stubs)):
        (site / name).symlink_to(installed / name)
    (site / "onejob").symlink_to(PACKAGE)
    return Path(shutil.copytree(SAMPLES, folder / "code"))


def run_mypy(code: Path) -> Found:
    """Return the errors of `mypy --strict`."""
    python = str(code.parent / "venv" / "bin" / "python")
    options = ["--strict", "--config-file=", "--cache-dir", "../cache", "--output=json", "--python-executable", python]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *sorted(path.name for path in code.glob("*.py"))],
        cwd=code, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode < 2, done.stdout + done.stderr
    entries = [json.loads(line) for line in done.stdout.splitlines()]
    return {(each["file"], each["line"], each["code"]) for each in entries if each["severity"] == "error"}


def run_pyright(code: Path) -> Found:
    """Return the errors of basedpyright in pyright's strict mode."""
    config = {"typeCheckingMode": "strict", "venvPath": "..", "venv": "venv", "include": ["."]}
    (code / "pyrightconfig.json").write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "."],
        cwd=code,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode < 2, done.stdout + done.stderr
    entries = json.loads(done.stdout)["generalDiagnostics"]
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["rule"])
        for each in entries
        if each["severity"] == "error"
    }


def expected(code: Path) -> dict[tuple[str, int], set[str]]:
    """Return the codes in the comments `# E: code ...` of each line."""
    return {
        (path.name, number): set(comment[1].split())
        for path in code.glob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (comment := re.search(r"# E: (.*)$", line))
    }


def compare(code: Path, check: Callable[[Path], Found]) -> None:
    """Assert that a type checker reports the expected lines and codes, and no other."""
    found, lines = check(code), expected(code)
    unexpected = sorted(each for each in found if each[2] not in lines.get(each[:2], set()))
    missing = sorted(lines.keys() - {each[:2] for each in found})
    assert (unexpected, missing) == ([], [])


@pytest.mark.parametrize("check", [run_mypy, run_pyright])
def test_calls_of_tasks_are_checked(tmp_path: Path, check: Callable[[Path], Found]) -> None:
    """In a project that has only onejob and Celery, each checker reports every mistake, and nothing else."""
    compare(project(tmp_path, stubs=False), check)


@pytest.mark.deep
@pytest.mark.parametrize("check", [run_mypy, run_pyright])
def test_calls_of_tasks_are_checked_beside_the_published_types(tmp_path: Path, check: Callable[[Path], Found]) -> None:
    """With celery-types in the project the same holds."""
    compare(project(tmp_path, stubs=True), check)
