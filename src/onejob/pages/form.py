"""The body of a submitted form."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from onejob.api.checked_request import CheckedRequest
from onejob.api.problems import Problem

if TYPE_CHECKING:
    from starlette.requests import Request

FIELD_LIMIT = 2000
"""How many fields a form has at most."""
CONTENT_TYPE = "application/x-www-form-urlencoded"


class Form:
    """The fields of a form; those of the same name keep their order."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self._fields = fields

    def text(self, name: str) -> str:
        """Return the first value of a field; "" without one."""
        return next((value for field, value in self._fields if field == name), "")

    def texts(self, name: str) -> list[str]:
        """Return all values of a field."""
        return [value for field, value in self._fields if field == name]

    def number(self, name: str) -> int:
        """Return the value of a field as a count; 0 without one. Raises `Problem`."""
        text = self.text(name) or "0"
        if not text.isdecimal() or len(text) > 9:  # noqa: PLR2004 - more than any ledger has
            raise Problem("invalid-request", f"the field {name} must be a number")
        return int(text)

    def described(self, *, without: str) -> list[tuple[str, str]]:
        """Return the fields for the audit log, without the token and empty ones; `filter` is the query of a list."""
        fields = [field for field in self._fields if field[0] not in {without, "filter", "back"} and field[1]]
        return fields + [(f"filter.{name}", value) for name, value in parse_qsl(self.text("filter"))]


async def read_form(request: Request) -> Form:
    """Read a form. Raises `Problem` for another content type, a body that is too large, or too many fields."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != CONTENT_TYPE:
        raise Problem("wrong-content-type", f"send a form, with the header content-type: {CONTENT_TYPE}")
    checked = CheckedRequest(request.scope, request.receive)
    checked.check_framing()
    await checked.read_body()
    try:
        text = (checked.checked_body or b"").decode("ascii")
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=FIELD_LIMIT, errors="strict")
    except ValueError:
        raise Problem("invalid-request", "the form cannot be read") from None
    if any("\x00" in value for field in fields for value in field):
        raise Problem("invalid-request", "the form has a NUL character")
    return Form(fields)
