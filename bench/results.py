"""The results of a run of the bench as a file, with the machine and the versions that they are from."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onejob

if TYPE_CHECKING:
    from bench.stages import Options

FOLDER = Path(__file__).parent / "results"


def about(options: Options) -> dict[str, Any]:
    """Return what one has to know to compare two files of results."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "tree": _describe(Path(onejob.__file__).parent),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "load": os.getloadavg()[0],
        "versions": {name: version(name) for name in ("celery", "kombu", "redis", "hiredis", "psycopg")},
        "options": asdict(options),
    }


def _describe(folder: Path) -> str:
    """Return the commit of the tree that is measured."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def write(found: dict[str, Any], path: Path | None) -> Path:
    """Write results, by default into a new file of the folder for results."""
    path = path or FOLDER / f"{found['about']['at'].replace(':', '')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return path


def read(path: Path) -> dict[str, Any]:
    """Read results."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
