"""What the checks read: the files of the project, once, by their places; and the list of the checks.

A check is a function from the project to its faults, each as `place:line: what is wrong`. It reads nothing but the
`Project` that it gets, so that `tests/project/test_checks.py` can give it one with a fault.
"""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "onejob"
SOURCE = "src/onejob/"
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Project:
    """The files of the project by their places; one that is not text is empty here."""

    files: Mapping[str, str]

    def __getitem__(self, place: str) -> str:
        """Return the text of a file."""
        return self.files[place]

    def under(self, folder: str, *suffixes: str) -> dict[str, str]:
        """Return the files of a folder and of those in it, by their places."""
        return {
            place: text
            for place, text in self.files.items()
            if place.startswith(folder) and place.endswith(suffixes or ("",))
        }

    def has(self, place: str) -> bool:
        """Return whether a place is a file, or a folder with one."""
        return place in self.files or any(name.startswith(f"{place}/") for name in self.files) or place in {"", "."}


Check: TypeAlias = "Callable[[Project], Iterable[str]]"
CHECKS: dict[str, Check] = {}
"""The checks by name."""


def check(function: Check) -> Check:
    """Add a function to the checks."""
    CHECKS[function.__name__] = function
    return function


@cache
def paths() -> tuple[Path, ...]:
    """Return every file that belongs to the project: what git tracks or would track; else what is not hidden."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        found = [ROOT / name for name in listed.split("\0") if name]
    else:
        found = [path for path in ROOT.rglob("*") if not _is_left_behind(path.relative_to(ROOT))]
    return tuple(sorted(path for path in found if path.is_file()))


def _is_left_behind(path: Path) -> bool:
    """Return whether a file was made by tools and runs."""
    hidden = any(part.startswith(".") for part in path.parts[:-1] if part not in {".ci", ".github"})
    return hidden or "__pycache__" in path.parts or path.parts[0] in {"build", "dist"}


@cache
def read_project() -> Project:
    """Read the project."""
    return Project({str(path.relative_to(ROOT)): _read(path) for path in paths()})


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def line_of(text: str, part: str) -> int:
    """Return the number of the first line with a part of a text, or 1."""
    return text.count("\n", 0, max(text.find(part), 0)) + 1


def differences(place: str, what: str, found: Any, wanted: Any) -> Iterator[str]:
    """Yield a fault if a value is not what it has to be."""
    if found != wanted:
        yield f"{place}: {what}: {found!r}, and it has to be {wanted!r}"


@cache
def parsed(source: str) -> ast.Module:
    """Return a module as a tree."""
    return ast.parse(source)


@cache
def functions(source: str) -> tuple[Function, ...]:
    """Return the functions and methods of a module, inner ones too."""
    return tuple(node for node in ast.walk(parsed(source)) if isinstance(node, Function))
