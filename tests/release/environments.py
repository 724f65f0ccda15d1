"""Virtual environments with other packages or another Python, kept from run to run in the cache of pytest."""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.services import MissingServiceError

ROOT = Path(__file__).parents[2]
DEV_LOCK = ROOT / "requirements" / "dev.txt"


def overlay(folder: Path, lock: Path) -> Path:
    """Return a Python with all packages of this one, of which those of a lock have its versions."""
    return _overlay(folder, lock.read_text(encoding="utf-8"), "--require-hashes", "--requirement", str(lock))


def overlay_with(folder: Path, pins: Sequence[str], base: Path | None = None) -> Path:
    """Return a Python with all packages of this one, or of `base`, and those of `pins`, each as "name==version"."""
    return _overlay(folder, "\n".join(pins), *pins, base=base)


def _overlay(folder: Path, built_from: str, *packages: str, base: Path | None = None) -> Path:
    """Return a Python with all packages of another, and before them those that options of an installer name."""
    base = base or Path(sys.executable)
    packages_of = "import sysconfig; print(sysconfig.get_path('purelib'))"
    below = subprocess.run([str(base), "-c", packages_of], capture_output=True, text=True, check=True).stdout.strip()

    def build(python: Path) -> None:
        install([str(base), "-m", "venv", "--without-pip", str(folder)])
        library = next(folder.glob("lib/python*/site-packages"))
        (library / "base.pth").write_text(below)
        install([*installer_of(base), "--no-deps", "--target", str(library), *packages])

    return _kept(folder, f"{built_from}\n# on {below}", build)


def environment(folder: Path, interpreter: str) -> Path:
    """Return a Python of another version with the locked packages."""

    def build(python: Path) -> None:
        install([interpreter, "-m", "venv", str(folder)])
        install([*installer_of(python), "--require-hashes", "--requirement", str(DEV_LOCK)])

    return _kept(folder, DEV_LOCK.read_text(encoding="utf-8"), build)


def new_environment(folder: Path, *requirements: str) -> Path:
    """Return a new Python with the newest versions of packages that this machine can get."""
    python = folder / "bin" / "python"
    install([sys.executable, "-m", "venv", str(folder)])
    install([*pip_of(python), *requirements])
    return python


def clean_environment(folder: Path, requirement: str) -> Path:
    """Return a new Python with one requirement, and of what that needs the locked versions."""
    python, versions = folder / "bin" / "python", folder / "versions.txt"
    install([sys.executable, "-m", "venv", str(folder)])
    versions.write_text("\n".join(_locked_versions(DEV_LOCK)), encoding="utf-8")
    install([*pip_of(python), "--constraint", str(versions), requirement])
    return python


def download_source(folder: Path, python: str, name: str, version: str) -> Path:
    """Return the source distribution of a release in a folder. Raises `MissingServiceError`."""
    source = folder / f"{name}-{version}.tar.gz"
    if not source.exists():
        pip = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name]
        install([*pip, "--dest", str(folder), f"{name}=={version}"])
    return source


def installer_of(python: Path) -> list[str]:
    """Return the command that installs a lock for an interpreter: uv where `scripts/install` has it, or else pip."""
    uv = Path(sys.executable).with_name("uv")
    return [str(uv), "pip", "install", "--quiet", "--python", str(python)] if uv.exists() else pip_of(python)


def pip_of(python: Path) -> list[str]:
    """Return the command by which users install packages for an interpreter."""
    return [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]


def install(command: list[str]) -> None:
    """Run a command that installs packages. Raises `MissingServiceError`, for example without a package index."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode != 0:
        msg = f"packages of another environment cannot be installed: {done.stderr.strip()[-300:]}"
        raise MissingServiceError(msg)


def _kept(folder: Path, built_from: str, build: Callable[[Path], None]) -> Path:
    """Return the Python of a folder, built anew when the text that it was built from is another one."""
    python, kept = folder / "bin" / "python", folder / "built-from.txt"
    with folder.with_name(f"{folder.name}.building").open("w") as building:
        fcntl.flock(building, fcntl.LOCK_EX)  # two test processes may want the same one
        if not kept.exists() or kept.read_text(encoding="utf-8") != built_from:
            shutil.rmtree(folder, ignore_errors=True)
            build(python)
            kept.write_text(built_from, encoding="utf-8")
    return python


def _locked_versions(lock: Path) -> Iterable[str]:
    """Return the requirements of a lock without their hashes."""
    return re.findall(r"^[a-z0-9][^\\\n]*==[^\\\n]*", lock.read_text(encoding="utf-8"), re.MULTILINE)


def later_python(folder: Path, *versions: str) -> Path:
    """Return this Python if it has one of these versions, or else a locked environment of the first that is here.

    Raises `MissingServiceError` when this machine has none of them.
    """
    if not versions or f"3.{sys.version_info.minor}" in versions:
        return Path(sys.executable)
    for version in versions:
        if interpreter := find_python(version):
            return environment(folder / version, interpreter)
    msg = f"there is no Python {' or '.join(versions)}"
    raise MissingServiceError(msg)


def find_python(version: str) -> str | None:
    """Return an interpreter of a version such as "3.12" that this machine has; None without one."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *map(str, pyenv)):
        check = f"import sys, ensurepip, sqlite3, ssl, venv; assert '%d.%d' % sys.version_info[:2] == '{version}'"
        if candidate and subprocess.run([candidate, "-c", check], capture_output=True, check=False).returncode == 0:
            return candidate
    return None
