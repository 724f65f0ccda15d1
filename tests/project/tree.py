"""What stands in the project: its text files, its modules, their functions. The tests of the project read only this."""

from __future__ import annotations

import ast
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "onejob"
STORES = PACKAGE / "stores"

HEADING = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
"""What begins a statement in a file of several."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Text:
    """A text file: its place in the project, and its lines."""

    place: str
    lines: tuple[str, ...]


@cache
def files() -> tuple[Path, ...]:
    """Return every file that belongs to the project: what git tracks or would track; else what is not hidden."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        found = [ROOT / name for name in listed.split("\0") if name]
    else:
        found = [path for path in ROOT.rglob("*") if not _made_here(path.relative_to(ROOT))]
    return tuple(sorted(path for path in found if path.is_file()))


def _made_here(path: Path) -> bool:
    """Tell what tools and runs leave behind."""
    hidden = any(part.startswith(".") for part in path.parts[:-1] if part != ".ci")
    return hidden or "__pycache__" in path.parts or path.parts[0] in {"build", "dist"}


def texts() -> Iterator[Text]:
    """Yield every file of the project that is text."""
    for path in files():
        try:
            content = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        yield Text(str(path.relative_to(ROOT)), tuple(content.splitlines()))


def modules(folder: Path = PACKAGE) -> list[Path]:
    """Return the Python files of a folder."""
    return [path for path in files() if path.suffix == ".py" and path.is_relative_to(folder)]


def statements(store: str) -> dict[str, str]:
    """Return the statements, scripts and fragments of a store by name, with their comments."""
    found: dict[str, str] = {}
    for path in files():
        if path.parent == STORES / store and path.suffix in {".sql", ".lua"}:
            whole, *named = HEADING.split(path.read_text(encoding="utf-8"))
            found |= dict(zip(named[::2], named[1::2], strict=True)) or {path.stem: whole}
    return found


def functions(source: str) -> list[Function]:
    """Return the functions and methods of a module, inner ones too."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, Function)]


def length(function: Function) -> int:
    """Return how many lines a function takes, its decorators and docstring included."""
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    return (function.end_lineno or first) - first + 1
