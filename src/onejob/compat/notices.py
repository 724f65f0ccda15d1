"""Says once per process where a shim keeps another promise than the library that it replaces."""

from __future__ import annotations

from functools import cache

from onejob.observability.logs import log_warning


@cache
def notice_once(text: str) -> None:
    """Log a warning; a repeated call with the same text does nothing.

    It is a log record and no `warnings.warn`, which a program that turns warnings into errors would not survive.
    """
    log_warning("%s", text)
