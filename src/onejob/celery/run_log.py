"""The log of a run: its lines are kept in the ledger while the run goes on, so that people can read them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache

from onejob.errors import StoreError
from onejob.jobs.run_log import end_of_log

logger = logging.getLogger("onejob")
FLUSH_SECONDS = 1.0
"""Seconds after which a new line is in the ledger at the latest, while the store answers."""
LINE_LIMIT = 8_192
"""How many characters of one record are kept."""
_capturing: ContextVar[RunLogWriter | None] = ContextVar("onejob_capturing", default=None)
"""The log of the run in whose context records are captured."""


class RunLogWriter:
    """Keeps the end of a run's log. Safe to use from the threads of a body.

    `keep` writes the whole text to the ledger, and returns False if the run has lost its job: then the writer stops.
    A run that logs nothing writes nothing.
    """

    def __init__(self, keep: Callable[[str], bool]) -> None:
        self._keep = keep
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        """Held during a write, so that a body that adds a record does not wait for the store."""
        self._text = ""
        self._timer: threading.Timer | None = None
        self._is_lost = False

    def add(self, text: str) -> None:
        """Add a record. It is in the ledger after `FLUSH_SECONDS`, or at the end of the run."""
        line = text if len(text) <= LINE_LIMIT else f"{text[:LINE_LIMIT]}..."
        with self._lock:
            self._text = end_of_log(f"{self._text}{line}\n")
            if self._timer is None and not self._is_lost:
                self._timer = threading.Timer(FLUSH_SECONDS, self.flush)
                self._timer.daemon = True
                self._timer.start()

    def flush(self) -> None:
        """Write the new lines to the ledger; an outage of the store is logged, and the next write has them, too."""
        with self._writing:
            with self._lock:
                timer, self._timer = self._timer, None
                text = self._text
            if timer is None or self._is_lost:
                return
            timer.cancel()
            try:
                self._is_lost = not self._keep(text)
            except StoreError as error:
                logger.warning("the log of a run could not be kept: %s", error)


def format_line(message: str, fields: dict[str, object]) -> str:
    """Return a line with the time in UTC, and the fields as `name=value`."""
    return " ".join([_time_text(time.time()), message, *(f"{name}={value}" for name, value in fields.items())])


def _time_text(at: float) -> str:
    """Return seconds since the epoch as a time in UTC, to the millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextmanager
def capturing(writer: RunLogWriter) -> Iterator[None]:
    """Add the records of `logging` that are made in this context to a run's log."""
    _install_handler()
    token = _capturing.set(writer)
    try:
        yield
    finally:
        _capturing.reset(token)


class _Handler(logging.Handler):
    """Adds a record to the log of the run in whose context it was made, if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        writer = _capturing.get()
        if writer is None:
            return
        try:
            writer.add(self.format(record))
        except Exception:  # noqa: BLE001 - as every handler of `logging` does
            self.handleError(record)


@cache
def _install_handler() -> None:
    handler = _Handler()
    handler.setFormatter(_UTCFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)


class _UTCFormatter(logging.Formatter):
    """Formats the time of a record as the lines of `job.log` have it."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802 - its signature
        return _time_text(record.created)
