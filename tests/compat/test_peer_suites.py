"""The test suites of the replaced libraries run on the shims, as far as their sources can be reached."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.cases import for_each
from tests.compat import celery_suite, kombu_suite, peer_suites
from tests.compat.peer_suites import ROOT, compare
from tests.services import MissingServiceError, eventually, start_redis

SOURCE = Path(os.environ["ONEJOB_PEER_SUITES"]) if "ONEJOB_PEER_SUITES" in os.environ else None
"""A folder with the archives, for a machine that cannot reach them."""


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_their_own_suites_pass(capfd: pytest.CaptureFixture[str]) -> None:
    """All tests of both libraries pass on the shims, but for those that the list gives a reason for."""
    code = peer_suites.main(["--source", str(SOURCE)] if SOURCE else [])
    told = capfd.readouterr()
    if code == peer_suites.UNREACHABLE:
        raise MissingServiceError(told.err.strip().splitlines()[-1])
    assert code == 0, told.out


@pytest.mark.deep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", [celery_suite.OLDEST, celery_suite.NEWEST])  # all: `make peer-suites`
def test_the_suite_of_celery_passes(version: str) -> None:
    """What passes of Celery's integration suite passes with onejob tasks, but for what the list gives a reason for."""
    _, found = celery_suite.differences(version, source=SOURCE)
    assert not found, "\n".join(found)


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_kombus_tests_of_transports_pass(store: str) -> None:
    """What kombu tests of every transport holds for `onejob://`, but for what needs a server."""
    found = kombu_suite.run(store, SOURCE)
    assert len(found) >= 30
    assert not compare("kombu", store, found, kombu_suite.FAILS)


@pytest.mark.deep
def test_both_versions_run_side_by_side(tmp_path: Path) -> None:
    """Neither version admits what the other has admitted, and the worker of either one releases the locks of both."""
    suites = peer_suites.suites().items()
    libraries = [str(peer_suites.fetch(name, suite, SOURCE) / "library") for name, suite in suites]
    server = start_redis(tmp_path)
    versions = ProgramVersions(libraries, server.url, tmp_path)
    try:
        old, new = versions.submit("old", "single", "a"), versions.submit("new", "single", "b")
        assert versions.submit("new", "single", "a") == old
        assert versions.submit("old", "single", "b") == new
        for first, second in (("old", "new"), ("new", "old")):
            assert versions.submit(first, "once", first) != "AlreadyQueued"
            assert versions.submit(second, "once", first) == "AlreadyQueued"
        assert len(versions.locks.keys()) == 4
        versions.run_all("new", 4)
        rolled_back = versions.submit("new", "single", "c")
        assert versions.submit("old", "single", "c") == rolled_back
        versions.run_all("old", 5)
    finally:
        versions.locks.close()
        server.stop()


class ProgramVersions:
    """One program with the libraries themselves (`old`) and with the shims (`new`), on one broker."""

    def __init__(self, libraries: list[str], url: str, folder: Path) -> None:
        self.folder, self.url, self.libraries = folder, url, libraries
        self.locks = redis.Redis.from_url(url.replace("/0", "/2"))
        self.ran = folder / "ran"
        self.ran.touch()

    def environment(self, version: str) -> dict[str, str]:
        paths = [*(self.libraries if version == "old" else []), str(ROOT / "src"), str(ROOT)]
        return os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "VERSION": version,
            "URL": self.url,
            "RAN": str(self.ran),
        }

    def submit(self, version: str, task: str, key: str) -> str:
        """Submit in a process of a version, and return the task's id, or `AlreadyQueued`."""
        command = [sys.executable, "-m", "tests.compat.two_versions", task, key]
        environment = self.environment(version)
        done = subprocess.run(command, cwd=self.folder, env=environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def run_all(self, version: str, runs: int) -> None:
        """Let a worker of a version run what is queued, until so many have run in all and no lock is left."""
        command = [sys.executable, "-m", "celery", "-A", "tests.compat.two_versions", "worker", "-c", "1"]
        with (self.folder / "worker.log").open("ab") as log:
            worker = subprocess.Popen(
                command, cwd=self.folder, env=self.environment(version), stdout=log, stderr=log, start_new_session=True
            )
        try:
            eventually(lambda: len(self.ran.read_text().splitlines()) == runs and not self.locks.keys())
        finally:
            worker.terminate()
            worker.wait()


@for_each("outcome, differences", [
    ({"known": "failure: it", "other": "passed"}, []), ({"known": "error: it", "unsteady": "failure: no"}, []),
    ({"known": "passed", "other": "passed"}, ["lib (alone): known is listed as failing, and passes"]),
    ({"known": "error: it", "other": "failure: no"}, ["lib (alone): other does not pass: failure: no"]),
])  # fmt: skip
def test_a_difference_to_the_list_is_reported(outcome: Mapping[str, str], differences: list[str]) -> None:
    """A failure without a reason and a reason without a failure are differences; a test that varies is none."""
    suite = {"fails_alone": {"known": "a reason"}, "varies": {"unsteady": "a reason"}}
    assert peer_suites.compare("lib", "alone", outcome, suite) == differences


def test_a_source_that_cannot_be_reached_is_no_pass(capsys: pytest.CaptureFixture[str], tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Without a source the exit code is 3, and the message says what is missing."""
    monkeypatch.setattr(peer_suites, "CACHE", tmp_path / "cache")
    assert peer_suites.main(["--source", str(tmp_path)]) == peer_suites.UNREACHABLE
    assert "has no celery-singleton.tar" in capsys.readouterr().err


def test_only_files_with_the_right_digest_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an archive the tests and the package are kept; with another digest they are refused and removed."""
    monkeypatch.setattr(peer_suites, "CACHE", tmp_path / "cache")
    with tarfile.open(tmp_path / "lib.tar", "w") as archive:
        for name in ("tests/test_it.py", "lib/code.py", "docs/conf.py", "tests/../../outside.py"):
            entry = tarfile.TarInfo(f"lib-1/{name}")
            entry.size = 4
            archive.addfile(entry, io.BytesIO(b"pass"))
    suite: dict[str, Any] = {"commit": "0123456789abcdef", "digest": "wrong", "repository": "nobody/lib"}
    with pytest.raises(ValueError, match="their source has changed") as raised:
        peer_suites.fetch("lib", suite, tmp_path)
    right = str(raised.value).partition("the digest ")[2].partition(",")[0]
    folder = peer_suites.fetch("lib", suite | {"digest": right}, tmp_path)
    kept = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}
    assert kept == {"tests/test_it.py", "library/lib/code.py"}
