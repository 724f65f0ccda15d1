"""Whatever observes a submission cannot fail it: a listener, a logging handler, the metrics."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import celery
import pytest

import onejob
from onejob.celery.app_state import app_state_of
from onejob.errors import StoreUnavailableError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Outcome
from onejob.ledger.ledger import Ledger
from onejob.observability.logs import emit_to
from onejob.observability.meter import write_all
from onejob.stores import open_store
from tests.celery.harness import await_
from tests.submissions import submission_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from onejob.observability.events import JobEvent

FAILURE = "the observer failed"


@pytest.fixture
def task_with(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Return a way to define a task of an app with settings, on a ledger in a SQLite file."""
    apps: list[celery.Celery] = []

    def define(**settings: Any) -> Any:
        changes = {"broker_url": "memory://", "onejob_store": f"sqlite:///{tmp_path / 'ledger.db'}", **settings}
        apps.append(celery.Celery("observed", changes=changes, set_as_current=False))

        @apps[-1].task(name="observed", shared=False, base=onejob.Task)
        def observed(number: int) -> int:
            return number

        return observed

    yield define
    for app in apps:
        app_state_of(app).close()


def test_a_listener_that_raises_fails_no_operation(
    task_with: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The error of a listener is logged with its event, and the operation returns as without one."""

    def fail(event: JobEvent) -> None:
        raise OSError(FAILURE)

    ledger = Ledger(open_store(f"sqlite:///{tmp_path / 'other.db'}", namespace="onejob"), emit=emit_to(fail))
    admission = ledger.submit(submission_of(task_with(), args=(1,)))
    assert ledger.cancel(admission.job.id).state is State.CANCELED
    ledger.close()
    assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [(FAILURE,)] * 2  # type: ignore[union-attr]
    assert f"job_submitted of job {admission.job.id}" in caplog.text


def test_logs_and_metrics_that_fail_cost_no_submission(
    task_with: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a logging handler that raises, submissions are published and counted, also without a broker."""
    task, handler, logger = task_with(), logging.Handler(), logging.getLogger("onejob")
    store = app_state_of(task.app).ledger.store
    with monkeypatch.context() as patch:
        patch.setattr(handler, "emit", lambda _: (_ for _ in ()).throw(OSError(FAILURE)))
        patch.setattr(logger, "handlers", [handler])
        patch.setattr(logger, "level", logging.DEBUG)
        assert task.delay(1).outcome is Outcome.ADMITTED
        assert [each.outcome for each in task.submit_many([(1,), (2,)])] == [Outcome.ATTACHED, Outcome.ADMITTED]
        away = task_with(broker_url="redis://127.0.0.1:1/0", onejob_publish_timeout=0.2)
        assert away.delay(3).job.id == task.delay(3).id
    write_all()
    assert store.totals()['["submissions_total", "observed", "admitted"]'] == 3.0


def test_metrics_go_on_after_an_outage_that_cannot_be_logged(
    task_with: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts that cannot be written fail no submission; later ones are written, also if a logging handler raises."""
    task, handler = task_with(onejob_metrics_interval=0.01), logging.Handler()
    writers: list[threading.Thread] = []
    store = app_state_of(task.app).ledger.store

    def refuse(_amounts: object, **_: object) -> None:
        writers.append(threading.current_thread())
        raise StoreUnavailableError(FAILURE)

    with monkeypatch.context() as patch:
        patch.setattr(handler, "emit", lambda _: (_ for _ in ()).throw(OSError(FAILURE)))
        patch.setattr(logging.getLogger("onejob"), "handlers", [handler])
        patch.setattr(logging.getLogger("onejob"), "level", logging.DEBUG)
        patch.setattr(store, "increment", refuse)
        assert task.delay(1).outcome is Outcome.ADMITTED
        await_(lambda: writers and not writers[0].is_alive())
    assert task.delay(1).outcome is Outcome.ATTACHED
    await_(lambda: store.totals().get('["submissions_total", "observed", "attached"]') == 1.0)
