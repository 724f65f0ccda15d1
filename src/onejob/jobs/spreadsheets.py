"""Texts in CSV, which a spreadsheet may open."""

from __future__ import annotations

import re

_FORMULA = re.compile(r"(?:^|(?<=[;\t\r\n]))(?=[^\S\t\r\n]*[=+\-@\uff1d\uff0b\uff0d\uff20])|^(?=[\t\r\n])")
"""The places where a cell begins that a spreadsheet may execute (OWASP, CSV Injection), for any separator."""


def guard_cell(text: str) -> str:
    """Return a text with a quote before each part that a spreadsheet would execute as a formula."""
    return _FORMULA.sub("'", text)
