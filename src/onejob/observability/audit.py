"""The audit log: what operators did, who logged in, and which requests were refused, with when and from where."""

from __future__ import annotations

import logging
import re
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from onejob.errors import OneJobError
from onejob.observability.events import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.jobs.records import AuditEntry

logger = logging.getLogger("onejob.audit")
TEXT_LIMIT = 500
"""Characters of each text in an entry."""
API_KEY = re.compile(r"onejob_[\w-]+")
REDACTED = "[redacted]"


def record(append: Callable[[AuditEntry], object] | None, entry: AuditEntry) -> None:
    """Log an entry, and `append` it to the audit log of a ledger, if there is one.

    Its texts are escaped and cut, and API keys in them left out. A failure is logged, and never fails what the entry
    reports.
    """
    entry = _clean(entry)
    fields = asdict(entry)
    text = " ".join(f"{name}={fields[name]!r}" for name in ("actor", "address", "target", "outcome", "detail", "count"))
    logger.info("%s %s %s", entry.source, entry.action, text)
    try:
        if append is not None:
            append(entry)
    except OneJobError as error:
        logger.error("the audit log has no entry of %s %s: %s", entry.action, entry.target, error)  # noqa: TRY400 - known


def _clean(entry: AuditEntry) -> AuditEntry:
    texts: dict[str, Any] = {name: value for name, value in asdict(entry).items() if isinstance(value, str)}
    texts = {name: one_line(API_KEY.sub(REDACTED, text)[:TEXT_LIMIT])[:TEXT_LIMIT] for name, text in texts.items()}
    return replace(entry, **texts)
