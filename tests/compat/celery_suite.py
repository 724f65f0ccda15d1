"""Runs Celery's own integration suite, on several versions, with every task a onejob task: `make peer-suites`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.compat.peer_suites import CACHE, ROOT, UNREACHABLE, compare
from tests.release.environments import download_source, overlay
from tests.services import MissingServiceError

LIST = Path(__file__).with_suffix(".toml")
LIBRARIES = {
    "5.4.0": ROOT / "requirements" / "oldest.txt",
    "5.6.3": Path(__file__).with_name("celery-5.6.txt"),
    "5.7.0": None,
}
"""The versions of Celery, and the libraries that each needs besides those of this environment."""
OLDEST, *_, NEWEST = LIBRARIES
MODULES = tuple(
    f"t/integration/test_{name}.py"
    for name in ("canvas", "tasks", "inspect", "worker", "loader", "serialization", "connection_recovery", "security")
)
"""The modules whose tests have tasks of their own, or start workers; older versions have some of them."""
LONGEST = "allow_error_cb"
"""A part of the names of the tests that wait for minutes for what must not come: those of a flag of Celery's own."""
PROCESSES = 4
"""Processes of pytest for one version, since its tests wait more than they compute; some start 20 processes."""
TEST_SECONDS = 500
KNOWN_SECONDS = 20
"""What a test may take that is listed as failing: those that would wait for a minute or two for what never comes."""


def fetch(version: str, source: Path | None = None) -> Path:
    """Return a folder with the tests of a version. Raises `MissingServiceError` if they cannot be had.

    `source`: a folder with `celery-<version>.tar.gz`, for a machine without the package index.
    """
    return unpack("celery", version, ("t/integration/", "t/__init__.py", "t/canvas_"), source)


def unpack(name: str, version: str, parts: Sequence[str], source: Path | None) -> Path:
    """Return a folder with the files of a release whose names begin like that. Raises `MissingServiceError`."""
    target = CACHE / f"{name}-{version}"
    if not target.is_dir():
        CACHE.mkdir(exist_ok=True)
        archive = download_source(source or CACHE, sys.executable, name, version)
        with tarfile.open(archive) as packed, tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            names = tuple(f"{name}-{version}/{part}" for part in parts)
            members = [each for each in packed.getmembers() if each.name.startswith(names)]
            packed.extractall(scratch, members, filter="data")
            with suppress(OSError):  # it is not empty: another process has unpacked it meanwhile
                (Path(scratch) / f"{name}-{version}").rename(target)
    return target


def python_with(version: str) -> str:
    """Return an interpreter with a version of Celery. Raises `MissingServiceError`."""
    libraries = LIBRARIES[version]
    return sys.executable if libraries is None else str(overlay(CACHE / f"venv-{version}", libraries))


def run(
    python: str, folder: Path, task_class: str, *tests: str, known: Iterable[str] = (), ledger: str = "",
    processes: int = PROCESSES,
) -> dict[str, str]:  # fmt: skip
    """Return the outcome of each test that is not skipped, `passed` or its last line of trouble, by its id.

    `known`: tests that fail, which may take `KNOWN_SECONDS`. `ledger`: the kind of the ledger that delivers the jobs;
    without one a Redis is the broker and has the ledger.
    """
    with tempfile.TemporaryDirectory() as scratch:
        outcomes = Path(scratch) / "outcomes.json"
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
            "CELERY_SUITE_OUTCOMES": str(outcomes), "CELERY_SUITE_TASK_CLASS": task_class,
            "CELERY_SUITE_KNOWN": json.dumps([KNOWN_SECONDS, *known]), "CELERY_SUITE_FIRST": LONGEST,
            "CELERY_SUITE_LEDGER": ledger,
            "PATH": os.pathsep.join([str(_with_command(Path(scratch), python)), os.environ["PATH"]]),
            "TMPDIR": scratch, "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT, LIST.parent, folder))),
        }  # fmt: skip
        command = [
            python, "-m", "pytest", "-q", "-p", "celery_plugin", "-p", "celery.contrib.pytest", "-p", "no:onejob",
            "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder), "-o", "python_classes=test_* Test*",
            "-n", str(processes), "--dist", "worksteal", "--timeout", str(TEST_SECONDS), *tests,
        ]  # fmt: skip
        done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
        if not outcomes.exists() or not (found := json.loads(outcomes.read_text(encoding="utf-8"))):
            raise RuntimeError(done.stdout + done.stderr)
        return dict(found)


def _with_command(folder: Path, python: str) -> Path:
    """Return a folder with the command `celery`, which some tests start."""
    command = folder / "celery"
    command.write_text(f'#!/bin/sh\nexec "{python}" -m celery "$@"\n', encoding="utf-8")
    command.chmod(0o700)
    return folder


def differences(
    version: str, *, plain: bool = False, source: Path | None = None, ledger: str = ""
) -> tuple[int, list[str]]:
    """Return how many tests of a version pass, and where the outcome differs from the list.

    A failure that the list does not have counts if the test fails alone, too. Raises `MissingServiceError`.
    """
    folder, python = fetch(version, source), python_with(version)
    task_class = "celery.app.task:Task" if plain else "onejob:Task"
    listed = reasons(version, plain=plain, ledger=ledger)
    some = () if version == NEWEST else ("-k", f"not {LONGEST}")  # where every version is the same
    modules = [each for each in MODULES if (folder / each).exists()]
    found = run(python, folder, task_class, *modules, *some, known=listed["fails"], ledger=ledger)
    known = {
        kind: {test: why for test, why in part.items() if kind == "varies" or test in found}
        for kind, part in listed.items()
    }
    again = [f"t/integration/{test}" for test, ended in found.items() if ended != "passed" and not _is_in(known, test)]
    if again:
        found |= run(python, folder, task_class, *again, ledger=ledger, processes=0)
    passed = sum(ended == "passed" for ended in found.values())
    return passed, compare("celery", version, found, known)


def reasons(version: str, *, plain: bool, ledger: str = "") -> dict[str, dict[str, Any]]:
    """Return the tests that do not pass with a version, and those of which it `varies`, with the reasons."""
    listed = tomllib.loads(LIST.read_text(encoding="utf-8"))
    parts = [listed, listed.get("versions", {}).get(version, {}), *([listed["ledger"]] if ledger else [])]
    names = ("fails",) if plain else ("fails", "fails_onejob")
    fails = {test: reason for part in parts for name in names for test, reason in part.get(name, {}).items()}
    varies = {test: reason for part in parts for test, reason in part.get("varies", {}).items()}
    return {"fails": fails, "varies": varies}


def _is_in(known: Mapping[str, Mapping[str, Any]], test: str) -> bool:
    return any(test in part for part in known.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite on all versions; return 0, 1 for a difference, or 3 if a version cannot be had."""
    parser = argparse.ArgumentParser(prog="celery-suite", description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--source", type=Path, help="a folder of archives celery-<version>.tar.gz")
    parser.add_argument("--plain", action="store_true", help="run it with Celery's own tasks")
    parser.add_argument("--version", choices=[*LIBRARIES], action="append", help="only this version")
    parser.add_argument("--ledger", choices=("postgresql", "sqlite"), default="", help="that delivers the jobs itself")
    options = parser.parse_args(arguments)
    different = False
    for version in options.version or LIBRARIES:
        try:
            passed, found = differences(version, plain=options.plain, source=options.source, ledger=options.ledger)
        except MissingServiceError as error:
            sys.stderr.write(f"not run: {error}\n")
            return UNREACHABLE
        sys.stdout.write(f"celery {version}: {passed} tests pass\n" + "".join(f"  {each}\n" for each in found))
        different = different or bool(found)
    return int(different)


if __name__ == "__main__":
    sys.exit(main())
