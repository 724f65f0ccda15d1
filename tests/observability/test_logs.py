"""Logs: each job event is one record on one line, whatever its ids contain."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from onejob.observability.events import JobEvent
from onejob.observability.logs import JsonFormatter, format_fields, log
from onejob.stores.sqlite import SQLiteStore
from tests.cases import for_each
from tests.stores.support import submission

FORGED = "x\nERROR root: forged\r\u2028\x1b[2J"
CLAIMED = JobEvent("job_claimed", "job-1", "shop.invoice", {"attempt": 2, "node": "celery@vm", "wait_seconds": 0.25})


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("onejob.jobs")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def test_an_event_is_one_line(written: io.StringIO, caplog: pytest.LogCaptureFixture) -> None:
    """A record's message is `name=value`, in the order of the event's fields; as JSON it has the same fields."""
    log(CLAIMED)
    assert written.getvalue() == (
        "INFO onejob.jobs event=job_claimed job_id=job-1 task=shop.invoice attempt=2 node=celery@vm wait_seconds=0.25\n"
    )
    entry = json.loads(JsonFormatter().format(caplog.records[0]))
    assert datetime.fromisoformat(entry.pop("time")).tzinfo is not None
    assert entry.pop("message").startswith("event=job_claimed ")
    assert entry == {
        "level": "INFO", "logger": "onejob.jobs", "event": "job_claimed", "job_id": "job-1", "task": "shop.invoice",
        "attempt": 2, "node": "celery@vm", "wait_seconds": 0.25,
    }  # fmt: skip


@for_each("value, text", [
    ("plain-1.2:3/4@5+6_7", "plain-1.2:3/4@5+6_7"), ("", '""'), ("two words", '"two words"'), ("a=b", '"a=b"'),
    ('say "x"', r'"say \"x\""'), ("ž", r'"\u017e"'), ("a\nb", r'"a\nb"'), ("100%s", '"100%s"'), (True, "true"),
    (False, "false"), (0.0, "0"), (1e-7, "0"), (1 / 3, "0.333333"), (1e15, "1000000000000000"),
    (1_800_000_000_000_000, "1800000000000000"),
])  # fmt: skip
def test_values_are_quoted_when_they_need_it(value: Any, text: str) -> None:
    """Any value but a plain word is quoted, on one line of ASCII."""
    assert format_fields({"name": value}) == f"name={text}"


def test_no_text_can_inject_a_line(written: io.StringIO) -> None:
    """Whatever texts an event contains, its record is one line, as text and as JSON, without %-formatting."""
    log(JobEvent(FORGED, FORGED, FORGED, {"node": FORGED, "percent": "%s %d"}))
    assert len(written.getvalue().splitlines()) == 1
    record = logging.makeLogRecord({"msg": FORGED, "onejob": {"job_id": FORGED}})
    assert len(JsonFormatter().format(record).splitlines()) == 1


@pytest.mark.parametrize("name", ["onejob", "onejob.api"])
def test_no_id_can_inject_a_line_into_other_logs(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The messages of the project's other loggers stay on one line; printable messages are unchanged."""
    with caplog.at_level(logging.INFO, name):
        logging.getLogger(name).warning("job %s: %s", FORGED, ValueError(FORGED))
        logging.getLogger(name).warning("job %s: %r", "ž", ValueError("no"))
    forged, plain = caplog.records
    assert len(logging.Formatter().format(forged).splitlines()) == 1
    assert (plain.msg, plain.getMessage()) == ("job %s: %r", "job ž: ValueError('no')")


@for_each("event, level", [
    (CLAIMED, "INFO"), (JobEvent("claim_refused", "job-1", "t", {"state": "running"}), "DEBUG"),
    (JobEvent("sweep", fields={"published": 0, "purged": 0, "seen": 0}), "DEBUG"),
    (JobEvent("sweep", fields={"published": 1, "purged": 0, "seen": 1}), "INFO"),
    (JobEvent("sweep", fields={"published": 0, "purged": 0, "seen": 1}), "INFO"),
])  # fmt: skip
def test_routine_events_are_debug(written: io.StringIO, event: JobEvent, level: str) -> None:
    """A refused claim and an idle sweep are logged at DEBUG, all other events at INFO."""
    log(event)
    assert written.getvalue().splitlines()[-1].split(" ", 1)[0] == level


def test_json_formats_any_record() -> None:
    """A record of another library is one line, which includes its exception, and its stack if that was asked for."""
    try:
        raise ValueError("no\nway")
    except ValueError:
        values: dict[str, Any] = {"exc_info": sys.exc_info(), "stack_info": "Stack:\n  here"}
        record = logging.makeLogRecord({"msg": "%s went wrong", "args": (object,)} | values)
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert json.loads(text)["exception"].endswith("ValueError: no\nway")
    assert json.loads(text)["stack"] == "Stack:\n  here"


def test_the_level_of_the_logger_turns_logging_off(
    tmp_path: Path, written: io.StringIO, caplog: pytest.LogCaptureFixture
) -> None:
    """A ledger logs its events unless the level of the logger `onejob.jobs` is above INFO."""
    from onejob.config import Settings, build_ledger

    for level, lines in ((logging.INFO, 1), (logging.WARNING, 1)):
        caplog.set_level(level, "onejob.jobs")
        ledger = build_ledger(Settings(store=f"sqlite:///{tmp_path / 'l.db'}"), metrics_interval=0)
        assert isinstance(ledger.store, SQLiteStore)
        ledger.submit(submission(f"job-{level}"))
        ledger.close()
        assert len(written.getvalue().splitlines()) == lines
