"""Loads the Lua scripts of this package: `#!lua` line, prelude, body."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from onejob.stores.statement_files import statements

if TYPE_CHECKING:
    from collections.abc import Mapping

LUA = statements(__package__, ".lua")


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text, and its SHA-1 digest for EVALSHA."""

    text: str
    sha: str


@cache
def load_script(name: str) -> Script:
    """Return a script. Redis requires `#!lua` and its flags in the first line, so the prelude is inserted after it."""
    shebang, _, body = LUA[name].partition("\n")
    text = f"{shebang}\n{LUA['prelude']}\n{body}"
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def arguments(values: Mapping[str, Any]) -> list[str]:
    """Return names and values in turn, as the prelude parses them. None is omitted."""
    flat: list[str] = []
    for name, value in values.items():
        if value is not None:
            flat += (name, _format_value(value))
    return flat


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, frozenset):
        return " ".join(sorted(value))
    return str(value)
