"""The statement files of a store: one statement per file, or several short ones, each after a line `-- name: ...`."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FRAGMENTS = "fragments"
"""The file whose parts are no statements: other files name them in braces, and the part takes the name's place."""
_HEADING = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)
_FRAGMENT = re.compile(r"\{(\w+)\}")


@cache
def statements(package: str, suffix: str) -> dict[str, str]:
    """Return the statements beside a module of `package` by name, without their comments."""
    fragments: dict[str, str] = {}
    found: dict[str, str] = {}
    for file in files(package).iterdir():
        stem = file.name.removesuffix(suffix)
        if stem != file.name:
            (fragments if stem == FRAGMENTS else found).update(_parts(stem, file.read_text(encoding="utf-8")))
    for name, text in fragments.items():  # each may name those before it
        fragments[name] = _filled(text, fragments)
    return {name: _filled(text, fragments) for name, text in found.items()}


def _filled(text: str, fragments: Mapping[str, str]) -> str:
    return _FRAGMENT.sub(lambda part: fragments[part[1]], text)


def _parts(stem: str, text: str) -> dict[str, str]:
    whole, *named = _HEADING.split(text)
    parts = dict(zip(named[::2], named[1::2], strict=True)) or {stem: whole}
    return {name: _COMMENT.sub("", part).strip() for name, part in parts.items()}
