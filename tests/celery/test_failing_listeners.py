"""Whatever observes a submission cannot fail it: a listener, a logging handler, the metrics."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import celery

import onejob
from onejob.celery.app_state import app_state_of
from onejob.celery.submission import build_submission
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Outcome
from onejob.jobs.records import Query
from onejob.ledger.ledger import Ledger
from onejob.observability.logs import safe_listener
from onejob.observability.meter import write_all
from onejob.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from onejob.observability.events import JobEvent

FAILURE = "the observer failed"


def task_of(path: Path, **settings: Any) -> Any:
    """Return a task of an app with its ledger in a SQLite file."""
    changes = {"broker_url": "memory://", "onejob_store": f"sqlite:///{path / 'ledger.db'}", **settings}
    app = celery.Celery("observed", changes=changes, set_as_current=False)

    @app.task(name="observed", shared=False, base=onejob.Task)
    def observed(number: int) -> int:
        return number

    return observed


class FailingHandler(logging.Handler):
    """A logging handler that raises, as one without a network may."""

    def emit(self, record: logging.LogRecord) -> None:
        """Raise an error."""
        raise OSError(FAILURE)


@contextmanager
def failing_logs() -> Iterator[None]:
    """Have every log record of a logger `onejob` raise an error."""
    logger, handler = logging.getLogger("onejob"), FailingHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def test_a_listener_that_raises_fails_no_operation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The error of a listener is logged with its event, and the operation returns as without one."""

    def fail(event: JobEvent) -> None:
        raise OSError(FAILURE)

    task = task_of(tmp_path)
    submission = build_submission(task, (1,), {}, {})
    ledger = Ledger(open_store(f"sqlite:///{tmp_path / 'other.db'}", namespace="onejob"), emit=safe_listener(fail))
    admission = ledger.submit(submission)
    assert ledger.cancel(admission.job.id).state is State.CANCELED
    ledger.close()
    assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [(FAILURE,)] * 2  # type: ignore[union-attr]
    assert f"job_submitted of job {admission.job.id}" in caplog.text


def test_a_logging_handler_that_raises_fails_no_submission(tmp_path: Path) -> None:
    """With a logging handler that raises, submissions succeed, are published and counted, also without a broker."""
    task = task_of(tmp_path)
    with failing_logs():
        assert task.delay(1).outcome is Outcome.ADMITTED
        assert [each.outcome for each in task.submit_many([(1,), (2,)])] == [Outcome.ATTACHED, Outcome.ADMITTED]
    write_all()
    totals = app_state_of(task.app).ledger.store.totals()
    assert totals['["submissions_total", "observed", "admitted"]'] == 2.0
    app_state_of(task.app).close()
    away = task_of(tmp_path, broker_url="redis://127.0.0.1:1/0", onejob_publish_timeout=0.2)
    with failing_logs():
        job_id = away.delay(3).id
    assert [job.id for job in app_state_of(away.app).ledger.find(Query(limit=1))] == [job_id]
