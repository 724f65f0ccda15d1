"""Log records of job events, as a logfmt line (`name=value`) or a line of JSON; and of the audit log.

The audit log has the actions of operators, logins, and refused requests, each with its time and origin.
"""

import json
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from onejob.errors import OneJobError
from onejob.jobs.audit_entries import AuditEntry
from onejob.jobs.timestamps import format_timestamp
from onejob.observability import tracing
from onejob.observability.events import CLAIM_REFUSED, SWEEP, JobEvent, Listener, Value, one_line
from onejob.stores.urls import REDACTED

logger = logging.getLogger("onejob.jobs")
_errors = logging.getLogger("onejob")
_audit_logger = logging.getLogger("onejob.audit")
_PLAIN = re.compile(r"[\w.:@/+\-]+", re.ASCII)
TEXT_LIMIT = 500
"""Characters of each text in an entry of the audit log."""
API_KEY = re.compile(r"onejob_[\w-]+")


def log(event: JobEvent) -> None:
    """Log an event at level INFO; a refused claim, and a sweep without work, at level DEBUG."""
    if not logger.isEnabledFor(logging.INFO):
        return
    is_routine = event.name == CLAIM_REFUSED or (event.name == SWEEP and not any(event.fields.values()))
    level = logging.DEBUG if is_routine else logging.INFO
    if logger.isEnabledFor(level):
        about = {"event": event.name, "job_id": event.job_id, "task": event.task}
        fields = {**{name: text for name, text in about.items() if text}, **event.fields}
        logger.log(level, format_fields(fields), extra={"onejob": fields})


def emit_to(*listeners: Listener) -> Listener:
    """Return a listener that calls `listeners` and the tracer, whatever errors they raise.

    The job has changed already when its event is emitted, so an error of a listener is only logged.
    """

    def emit(event: JobEvent) -> None:
        is_traced = tracing.tracer is not tracing.NO_TRACER
        for listener in (*listeners, tracing.tracer.on_event) if is_traced else listeners:
            try:
                listener(event)
            except Exception:  # noqa: BLE001 - logged below
                with suppress(Exception):  # an error of a logging handler
                    _errors.exception("a listener failed for the event %s of job %s", event.name, event.job_id)

    return emit


def log_warning(message: str, *args: object) -> None:
    """Log a warning about a submission, which an error of a handler must not fail."""
    with suppress(Exception):
        _errors.warning(message, *args, stacklevel=2)


def format_fields(fields: dict[str, Value]) -> str:
    """Return the fields in logfmt: `name=value`, separated by spaces; any value but a plain word is quoted."""
    return " ".join(f"{name}={_format_value(value)}" for name, value in fields.items())


def _format_value(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


class OneLineFilter(logging.Filter):
    """Keeps the message of a record on one line, to prevent log injection by ids and error messages."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape unprintable characters in the message."""
        message = record.getMessage()
        if not message.isprintable():
            record.msg, record.args = one_line(message), None
        return True


for _name in ("onejob", "onejob.api"):
    logging.getLogger(_name).addFilter(OneLineFilter())


class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON: time, level, logger, message, and the fields of a job event.

    `trace_id` and `span_id` name the open span, where `onejob.opentelemetry` traces the process. `context` returns more
    fields; fields of the record precede them.
    """

    def __init__(self, context: Callable[[], Mapping[str, str]] = dict) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a line break."""
        trace = tracing.tracer.context().get("traceparent", "").split("-")[1:]
        entry = {
            "time": format_timestamp(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._context(),
            **dict(zip(("trace_id", "span_id"), trace, strict=False)),
            **getattr(record, "onejob", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            entry["stack"] = self.formatStack(record.stack_info)
        return json.dumps(entry, default=str)


def record_audit(append: Callable[[AuditEntry], object] | None, entry: AuditEntry) -> OneJobError | None:
    """Log an entry, and `append` it to the audit log of a ledger, if there is one.

    Its texts are escaped and cut, and API keys in them left out. A failure is logged and returned; it never fails the
    action that the entry reports.
    """
    fields: dict[str, Any] = asdict(entry)
    for name, value in fields.items():
        if isinstance(value, str):
            fields[name] = one_line(API_KEY.sub(REDACTED, value)[:TEXT_LIMIT])[:TEXT_LIMIT]
    entry = AuditEntry(**fields)
    text = " ".join(f"{name}={fields[name]!r}" for name in ("actor", "address", "target", "outcome", "detail", "count"))
    _audit_logger.info("%s %s %s", entry.source, entry.action, text)
    try:
        if append is not None:
            append(entry)
    except OneJobError as error:
        _audit_logger.error("the audit log has no entry of %s %s: %s", entry.action, entry.target, error)  # noqa: TRY400 - known
        return error
    return None
