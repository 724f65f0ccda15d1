"""Runs the test suites of celery-singleton and celery-once on our shims: `make peer-suites`."""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import urllib.error
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.services import MissingServiceError, start_redis

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".peer-suites"
LIST = Path(__file__).with_suffix(".toml")
DOWNLOAD_SECONDS = 60
UNREACHABLE = 3
"""The exit code when a source cannot be reached: then nothing is known."""


def suites() -> dict[str, dict[str, Any]]:
    """Return what the list says, by the name of the library."""
    return tomllib.loads(LIST.read_text(encoding="utf-8"))


def fetch(name: str, suite: Mapping[str, Any], source: Path | None) -> Path:
    """Return the folder with the tests of a library, and itself below `library`; `source` has archives by name.

    Raises `MissingServiceError`, or `ValueError` for a wrong digest.
    """
    target = CACHE / f"{name}-{suite['commit'][:12]}"
    if not (target / "tests").is_dir():
        with tarfile.open(fileobj=io.BytesIO(_archive(name, suite, source))) as archive:
            unpack(archive, target, package=name.replace("-", "_"))
    found = digest(target)
    if found != suite["digest"]:
        shutil.rmtree(target)
        msg = f"the files of {name} have the digest {found}, and not {suite['digest']}: their source has changed"
        raise ValueError(msg)
    return target


def _archive(name: str, suite: Mapping[str, Any], source: Path | None) -> bytes:
    if source is not None:
        found = sorted(source.glob(f"{name}.tar*"))
        if not found:
            msg = f"{source} has no {name}.tar or {name}.tar.gz"
            raise MissingServiceError(msg)
        return found[0].read_bytes()
    url = f"https://github.com/{suite['repository']}/archive/{suite['commit']}.tar.gz"
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_SECONDS) as response:
            return bytes(response.read())
    except (urllib.error.URLError, OSError) as error:
        msg = f"{url} cannot be reached ({error}); --source names a folder with the archive"
        raise MissingServiceError(msg) from error


def unpack(archive: tarfile.TarFile, target: Path, *, package: str) -> None:
    """Write the tests of an archive below `tests`, and its package below `library`."""
    places = {"tests": target, package: target / "library"}
    for member in archive.getmembers():
        parts = Path(member.name).parts
        top = next((index for index, part in enumerate(parts[:2]) if part in places), None)
        if member.isfile() and top is not None and ".." not in parts:
            path = places[parts[top]].joinpath(*parts[top:])
            path.parent.mkdir(parents=True, exist_ok=True)
            content = archive.extractfile(member)
            path.write_bytes(content.read() if content else b"")


def digest(folder: Path) -> str:
    """Return the SHA-256 of the names and contents of the Python files in a folder, however they were packed."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        total.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)
    return total.hexdigest()


def run(name: str, suite: Mapping[str, Any], folder: Path, mode: str) -> dict[str, str]:
    """Return the outcome of each test, `passed` or its first line of trouble, by its id."""
    with tempfile.TemporaryDirectory() as scratch:
        server = start_redis(Path(scratch), "--databases", "16")
        try:
            report = Path(scratch) / "report.xml"
            environment = {
                "PEER_SUITE": name, "PEER_MODE": mode, "PEER_REDIS_URL": server.url, "PYTHONDONTWRITEBYTECODE": "1",
                "CELERY_SINGLETON_TEST_REDIS_URL": server.url, "REDIS_URL": server.url.removesuffix("/0"),
                "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(LIST.parent)]), "PATH": os.environ["PATH"],
                "TMPDIR": scratch,
            }  # fmt: skip
            command = [
                sys.executable, "-m", "pytest", "-q", "-p", "peer_plugin", "-p", "no:cacheprovider",
                "-p", "no:onejob", "-c", os.devnull, "--rootdir", str(folder), f"--junitxml={report}",
                "-o", "python_classes=Test*", "--import-mode=importlib", *suite["paths"],
            ]  # fmt: skip
            done = subprocess.run(
                command, cwd=folder, env=environment, check=False, timeout=600, capture_output=True, text=True
            )
            if not report.exists():
                raise RuntimeError(done.stdout + done.stderr)
            return dict(outcomes(report))
        finally:
            server.stop()


def outcomes(report: Path) -> Iterator[tuple[str, str]]:
    """Yield each test of a JUnit report, and how it ended."""
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - our own report
        trouble = [each for each in case if each.tag in {"failure", "error", "skipped"}]
        place = ".".join(filter(None, [case.get("classname"), case.get("name")]))
        ended = "passed" if not trouble else f"{trouble[0].tag}: {(trouble[0].get('message') or '').splitlines()[:1]}"
        yield place, ended


def compare(name: str, mode: str, found: Mapping[str, str], suite: Mapping[str, Any]) -> list[str]:
    """Return where the outcome differs from the list: a failure without a reason, a reason without a failure."""
    known = suite.get("fails", {}) | suite.get(f"fails_{mode}", {})
    varies = suite.get("varies", {}).keys()
    failed = {place for place, ended in found.items() if ended != "passed"}
    new = [f"{place} does not pass: {found[place]}" for place in sorted(failed - known.keys() - varies)]
    gone = [f"{place} is listed as failing, and passes" for place in sorted(known.keys() - failed - varies)]
    return [f"{name} ({mode}): {each}" for each in new + gone]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all suites in all modes; return 0, 1 for a difference, or 3 if a source cannot be reached."""
    parser = argparse.ArgumentParser(prog="peer-suites", description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--source", type=Path, help="a folder of archives <library>.tar, instead of the network")
    source = parser.parse_args(arguments).source
    differences: list[str] = []
    for name, suite in suites().items():
        try:
            folder = fetch(name, suite, source)
        except MissingServiceError as error:
            sys.stderr.write(f"not run: {error}\n")
            return UNREACHABLE
        for mode in ("alone", "sharing"):
            found = run(name, suite, folder, mode)
            passed = sum(ended == "passed" for ended in found.values())
            sys.stdout.write(f"{name} ({mode}): {passed} of {len(found)} tests pass\n")
            differences += compare(name, mode, found, suite)
    sys.stdout.writelines(f"{each}\n" for each in differences)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
