"""A slice of the suite on the oldest supported Celery, and on every supported Python that this machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.services import MissingServiceError

ROOT = Path(__file__).parents[2]
OLDEST = ("celery==5.4.0", "kombu==5.4.0", "redis==5.2.1")
"""The oldest versions that pyproject.toml allows."""
OTHER_PYTHONS = [name for minor in range(11, 15) if minor != sys.version_info.minor for name in [f"3.{minor}"]]
SLICE = (
    "tests/fundamentals",
    "tests/celery/test_crash.py",
    "tests/celery/test_retry.py",
    "tests/celery/test_submit.py",
    "tests/contract/core/test_claim.py",
    "tests/contract/core/test_submit.py",
    "tests/unit/test_identity.py",
    "tests/unit/test_payload.py",
)
CELERY_SLICE = (
    *SLICE, "tests/celery/test_canvas.py", "tests/celery/test_signals_to_celery.py", "tests/celery/test_wire.py",
)  # fmt: skip
"""With what depends most on the version of Celery."""
pytestmark = [pytest.mark.deep, pytest.mark.timeout(1800)]


@pytest.fixture
def environments(pytestconfig: pytest.Config) -> Path:
    """Return the folder of the environments that are kept from run to run."""
    return pytestconfig.cache.mkdir("versions")


def test_the_oldest_celery_runs_a_slice_of_the_suite(environments: Path) -> None:
    """Celery 5.4 with kombu 5.4 and redis-py 5.2 keeps the promises that the newest versions keep."""
    python = _overlay(environments / "oldest", OLDEST)
    _run_slice(python, *CELERY_SLICE, "-W", "ignore::DeprecationWarning")


@pytest.mark.parametrize("version", OTHER_PYTHONS)
def test_other_pythons_run_a_slice_of_the_suite(environments: Path, version: str) -> None:
    """Every supported Python that is installed keeps the promises, with the locked versions of all packages."""
    interpreter = _find_python(version)
    if interpreter is None:
        pytest.skip(f"no Python {version} with venv, ssl and sqlite3 on this machine")
    _run_slice(_environment(environments / version, interpreter), *SLICE)


def _find_python(version: str) -> str | None:
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *map(str, pyenv)):
        check = f"import sys, ensurepip, sqlite3, ssl, venv; assert '%d.%d' % sys.version_info[:2] == '{version}'"
        if candidate and subprocess.run([candidate, "-c", check], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


def _overlay(folder: Path, packages: tuple[str, ...]) -> Path:
    """Return a Python with all packages of this one, of which some have other versions."""
    python, done = folder / "bin" / "python", folder / "done"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        _install([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        library = next(folder.glob("lib/python*/site-packages"))
        (library / "base.pth").write_text(sysconfig.get_path("purelib"))
        _install([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(library), *packages])
        done.touch()
    return python


def _environment(folder: Path, interpreter: str) -> Path:
    """Return a Python of another version with the locked packages."""
    python, done = folder / "bin" / "python", folder / "done"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        _install([interpreter, "-m", "venv", str(folder)])
        locked = str(ROOT / "requirements" / "dev.txt")
        _install([str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "--requirement", locked])
        done.touch()
    return python


def _install(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode != 0:
        msg = f"packages for another version cannot be installed: {done.stderr.strip()[-300:]}"
        raise MissingServiceError(msg)


def _run_slice(python: Path, *arguments: str) -> None:
    """Run the slice in another environment, on the source of this one."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [str(python), "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider"]
    command += ["-m", "not deep", *arguments]
    source = {"PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=variables | source)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
