"""Loads the Lua scripts of this package: a script carries the functions that it uses, with numbers for constants."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache

from onejob.stores.redis import rows
from onejob.stores.statement_files import CONSTANTS as SHARED_CONSTANTS
from onejob.stores.statement_files import statements

LUA = statements(__package__, ".lua")
CONSTANTS = {**rows.CONSTANTS, **{name.upper(): constant for name, constant in SHARED_CONSTANTS.items()}}
_CONSTANT = re.compile(rf"\b(?:{'|'.join(CONSTANTS)})\b")
_FUNCTION = re.compile(r"^local function (\w+)\(.*?^end$", re.MULTILINE | re.DOTALL)
_FUNCTIONS = {found[1]: found[0] for found in _FUNCTION.finditer(LUA["prelude"])}


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text, and its SHA-1 digest for EVALSHA."""

    text: str
    sha: str


@cache
def load_script(name: str) -> Script:
    """Return a script. Redis requires `#!lua` and its flags in the first line, so the rest is inserted after it."""
    shebang, _, body = LUA[name].partition("\n")
    code = body
    for function, definition in reversed(_FUNCTIONS.items()):  # each may use those before it
        if re.search(rf"\b{function}\b", code):
            code = f"{definition}\n{code}"
    text = f"{shebang}\n{_CONSTANT.sub(lambda found: json.dumps(CONSTANTS[found[0]]), code)}"
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
