"""Facts as log records: a line of `name=value` for people and their tools, or a line of JSON."""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING

from onejob.jobs.timestamps import format_timestamp
from onejob.observability.events import CLAIM_REFUSED, SWEEP, one_line

if TYPE_CHECKING:
    from onejob.observability.events import JobEvent, Value

logger = logging.getLogger("onejob.jobs")
_PLAIN = re.compile(r"[\w.:@/+\-]+", re.ASCII)


def log(event: JobEvent) -> None:
    """Log a fact, at level INFO; a claim that was refused, and a sweep that had nothing to do, at level DEBUG."""
    level = logging.DEBUG if _is_small(event) else logging.INFO
    if logger.isEnabledFor(level):
        fields = fields_of(event)
        logger.log(level, line(fields), extra={"onejob": fields})


def _is_small(event: JobEvent) -> bool:
    return event.event == CLAIM_REFUSED or (event.event == SWEEP and not any(event.fields.values()))


def fields_of(event: JobEvent) -> dict[str, Value]:
    """Return a fact as names and values."""
    about = {"job_id": event.job_id, "task": event.task}
    return {"event": event.event, **{name: text for name, text in about.items() if text}, **event.fields}


def line(fields: dict[str, Value]) -> str:
    """Return names and values as `name=value`, with spaces between them; a value that is no plain word is quoted."""
    return " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())


def _quoted(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


class OneLine(logging.Filter):
    """Keeps what a record says on one line, whatever id or error is in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape the odd characters of a message that has some."""
        message = record.getMessage()
        if not message.isprintable():
            record.msg, record.args = one_line(message), None
        return True


for _name in ("onejob", "onejob.api"):
    logging.getLogger(_name).addFilter(OneLine())


class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON: time, level, logger, message, and the fields of a fact."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        told = {
            "time": format_timestamp(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "onejob", {}),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)
