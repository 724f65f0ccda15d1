"""A reader can hold the project in the head: files stay short, functions stay small."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.project.tree import PACKAGE, functions, length, modules

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE_LINES = 400
FUNCTION_LINES = 60
SMALL_LINES = 35
SMALL_SHARE = 0.9
LONGER: Mapping[str, int] = {}
"""Files that may be longer, and how long at most. An entry that is not needed any more must go."""


def sources() -> dict[str, str]:
    """Return every module of the package by its place."""
    return {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in modules()}


def lengths(source: str) -> dict[str, int]:
    """Return the lines of each function of a module."""
    return {f"{function.name}:{function.lineno}": length(function) for function in functions(source)}


def test_files_are_short() -> None:
    """No module is longer than a reader can hold."""
    found = {place: len(source.splitlines()) for place, source in sources().items()}
    assert {place: lines for place, lines in found.items() if lines > LONGER.get(place, FILE_LINES)} == {}
    assert [place for place in LONGER if found.get(place, 0) <= FILE_LINES] == []


def test_functions_are_small() -> None:
    """No function is long, and nine in ten are small."""
    found = {(place, name): lines for place, source in sources().items() for name, lines in lengths(source).items()}
    assert {name: lines for name, lines in found.items() if lines > FUNCTION_LINES} == {}
    assert sum(lines < SMALL_LINES for lines in found.values()) >= SMALL_SHARE * len(found) > 0


def test_lengths_are_counted_whole() -> None:
    """A function's length counts its decorators, its docstring and every line to the last."""
    assert lengths('@a\n@b\ndef f():\n    """x"""\n    return (\n        1\n    )\n\n\nx = 1\n') == {"f:3": 7}
