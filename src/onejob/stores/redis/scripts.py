"""The Lua scripts beside this file, ready to be called: `#!lua` line, prelude, body."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text, and the digest by which a server knows it."""

    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """Return the script `name`. Redis wants `#!lua` and its flags in the first line, so the prelude comes after it."""
    shebang, _, body = _lua(name).partition("\n")
    text = f"{shebang}\n{_lua('prelude')}\n{body}"
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@cache
def _lua(name: str) -> str:
    return files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")


def arguments(values: Mapping[str, Any]) -> list[str]:
    """Return names and values in turn, as the prelude reads them. A value that is None is not sent."""
    flat: list[str] = []
    for name, value in values.items():
        if value is not None:
            flat += (name, _text(value))
    return flat


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, frozenset):
        return " ".join(sorted(value))
    return str(value)
