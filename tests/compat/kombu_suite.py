"""Runs kombu's own tests of transports with `broker_url = "onejob://"`: `make peer-suites`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from tests.compat.celery_suite import unpack
from tests.compat.peer_suites import LIST, ROOT, UNREACHABLE, compare, outcomes
from tests.services import MissingServiceError, start_postgres

POSTGRES = "KOMBU_SUITE_POSTGRES"
"""Environment variable: the URL of a PostgreSQL, whose ledgers get schemas of their own; without one, SQLite."""
TESTS = LIST.with_name("kombu_transport.py")
NO_SERVER = "SQLite has no server that a connection could miss: the first message fails"
FAILS = {
    "fails_sqlite": {
        f"kombu_transport.TestBasicFunctionality.test_failed_{what}": NO_SERVER
        for what in ("connect", "connection", "channel")
    }
}
"""The tests that do not pass, by the store, with the reason."""


def run(store: str, source: Path | None = None) -> dict[str, str]:
    """Return the outcome of each test, with its messages in a kind of store. Raises `MissingServiceError`."""
    folder = unpack("kombu", version("kombu"), ("t/integration/", "t/__init__.py"), source)
    postgres = start_postgres() if store == "postgresql" else None
    try:
        with tempfile.TemporaryDirectory() as scratch:
            report = Path(scratch) / "report.xml"
            environment = {
                "PATH": os.environ["PATH"], "TMPDIR": scratch, "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT, folder))),
                **({POSTGRES: postgres.url} if postgres else {}),
            }  # fmt: skip
            command = [
                sys.executable, "-m", "pytest", "-q", "-p", "no:onejob", "-p", "no:cacheprovider", "-c", os.devnull,
                "--rootdir", str(TESTS.parent), f"--junitxml={report}", str(TESTS),
            ]  # fmt: skip
            done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
            if not report.exists():
                raise RuntimeError(done.stdout + done.stderr)
            return dict(outcomes(report))
    finally:
        if postgres is not None:
            postgres.remove()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests on both stores; return 0, 1 for a difference, or 3 if their source cannot be reached."""
    parser = argparse.ArgumentParser(prog="kombu-suite", description=__doc__)
    parser.add_argument("--source", type=Path, help="a folder with kombu-<version>.tar.gz")
    source = parser.parse_args(arguments).source
    differences: list[str] = []
    for store in ("sqlite", "postgresql"):
        try:
            found = run(store, source)
        except MissingServiceError as error:
            sys.stderr.write(f"not run: {error}\n")
            return UNREACHABLE
        passed = sum(ended == "passed" for ended in found.values())
        sys.stdout.write(f"kombu on {store}: {passed} of {len(found)} tests pass\n")
        differences += compare("kombu", store, found, FAILS)
    sys.stdout.writelines(f"{each}\n" for each in differences)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
