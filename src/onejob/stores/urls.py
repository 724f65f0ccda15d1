"""URLs for messages: their schemes, and their texts without secrets."""

from __future__ import annotations

import re

REDACTED = "[redacted]"
_SCHEME = re.compile(r"[a-z][a-z0-9.-]*(\+[a-z0-9.+-]*)?", re.IGNORECASE)


def scheme_of(url: str) -> str:
    """Return the part of a URL before "://", lower case and without a "+driver"; "" when there is none."""
    scheme, separator, _ = url.partition("://")
    return scheme.lower().partition("+")[0] if separator and _SCHEME.fullmatch(scheme) else ""


def redacted(url: str) -> str:
    """Return an invalid URL for a message, without the parts that may be secret: user, password, options and fragment.

    A password may have any character. So the text before an `@` is left out, or the text after a `?` or `#`; if a URL
    has both, they cannot be told apart, and only its scheme is left.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        return REDACTED
    cut = min((at for at in map(rest.find, "?#") if at >= 0), default=None)
    if "@" in rest:
        place = REDACTED + ("" if cut is not None else rest[rest.rfind("@") :])
    else:
        place = rest if cut is None else f"{rest[: cut + 1]}{REDACTED}"
    return f"{scheme}://{place}"
