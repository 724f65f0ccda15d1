"""The position after a job in a list of jobs, as text: the same in Python, over HTTP and on the pages."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Any

CURSOR_PATTERN = r"^([0-4][0-9a-f]{15}([0-9a-f]{2})*)?\.[0-9]{1,9}$"
"""The form of a cursor: the bits of a time, and the bytes of an id; and how many jobs to skip after that one.

Every text of this form is the cursor of some position, so the OpenAPI document can say which ones are accepted.
"""
CURSOR_LIMIT = 2100
"""Characters of a cursor: an id has at most 255 characters, of four bytes at most."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position after a job: its `created_at` and id, None for the beginning of the list; and how many to skip."""

    before: float | None
    before_id: str | None
    offset: int = 0

    def encode(self) -> str:
        """Return the cursor as text of the form `CURSOR_PATTERN`."""
        position = b"" if self.before is None else struct.pack(">d", self.before) + (self.before_id or "").encode()
        return f"{position.hex()}.{self.offset}"


def decode_cursor(cursor: str | None) -> dict[str, Any]:
    """Return the fields of a `Query` that begins at a cursor. Raises `ValueError` for a text of another form."""
    if cursor is None:
        return {}
    if len(cursor) > CURSOR_LIMIT or re.fullmatch(CURSOR_PATTERN, cursor) is None:
        raise ValueError("the cursor is invalid: use the `next` of a page")
    position, _, offset = cursor.partition(".")
    before = before_id = None
    if position:
        (before,) = struct.unpack(">d", bytes.fromhex(position[:16]))
        before_id = bytes.fromhex(position[16:]).decode(errors="replace").replace("\0", "")
    return {"before": before, "before_id": before_id, "offset": int(offset)}
