"""A ledger in a SQLite file takes part in transactions on that file."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import celery
import pytest
from celery.app.trace import build_tracer
from kombu.transport import memory
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import onejob
from onejob.celery.app_state import app_state_of
from onejob.errors import StoreUnavailableError, TaskIdReusedError
from onejob.jobs.records import Query
from onejob.ledger.ledger import Ledger
from tests.cases import for_each
from tests.webhooks.receiver import SECRET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Any]:
    app = celery.Celery(broker="memory://")
    app.conf.onejob_store = f"sqlite:///{tmp_path / 'shop.db'}"
    app.conf.onejob_webhook_secrets = [SECRET]
    memory.Channel.queues.clear()

    @app.task(base=onejob.Task, shared=False)
    def note(key: str) -> str:
        return key

    define: Any = app.task
    for name, on_duplicate in {"newest": "replace", "again": "run_again"}.items():
        define(_save, base=onejob.Task, name=name, unique_on=["key"], on_duplicate=on_duplicate, shared=False)
    app_state_of(app).ledger.store.get_many(["any"])
    with closing(_plain(tmp_path)) as connection:
        connection.execute("create table notes (key text)")
    yield note
    app_state_of(app).ledger.close()
    app.close()


def _save(key: str, text: str = "") -> str:
    return key + text


def _messages() -> list[str]:
    return [each["headers"]["id"] for queue in memory.Channel.queues.values() for each in queue.queue]


def _plain(folder: Path) -> Any:
    return sqlite3.connect(folder / "shop.db")


def _with_rows(folder: Path) -> Any:
    connection = _plain(folder)
    connection.row_factory = sqlite3.Row
    return connection


def _explicit(folder: Path) -> Any:
    connection = sqlite3.connect(folder / "shop.db", isolation_level=None)
    connection.execute("begin")
    return connection


def _connection(folder: Path) -> Any:
    return create_engine(f"sqlite:///{folder / 'shop.db'}", poolclass=NullPool).connect()


def _session(folder: Path) -> Any:
    return Session(create_engine(f"sqlite:///{folder / 'shop.db'}", poolclass=NullPool))


KINDS: list[Callable[[Path], Any]] = [_plain, _with_rows, _explicit, _session, _connection]


def _note(session: Any, key: str) -> None:
    statement = f"insert into notes values ('{key}')"  # noqa: S608 - a name of the test itself
    session.execute(text(statement) if hasattr(session, "get_transaction") else statement)


def _notes(folder: Path) -> list[str]:
    with closing(_plain(folder)) as connection:
        return [row[0] for row in connection.execute("select key from notes")]


def _ledger(task: Any) -> Ledger:
    return app_state_of(task.app).ledger


@for_each("connect", KINDS)
def test_the_job_is_a_part_of_the_transaction(task: Any, tmp_path: Path, connect: Callable[[Path], Any]) -> None:
    """A commit keeps the application's rows, the job and the record of a duplicate; a rollback keeps none."""
    live = task.delay("live")
    before = live.job.duplicate_count
    for ends in ("rollback", "commit"):
        key = f"{ends} {connect.__name__}"
        session = connect(tmp_path)
        _note(session, key)
        job = task.submit(key, session=session)
        assert task.submit("live", session=session).id == live.id
        assert _ledger(task).get_or_none(job.id) is None
        getattr(session, ends)()
        session.close()
        assert (_ledger(task).get_or_none(job.id) is not None) == (ends == "commit")
        assert live.job.duplicate_count == before + (ends == "commit")
    assert _notes(tmp_path)[-1] == f"commit {connect.__name__}"
    assert not any("rollback" in each for each in _notes(tmp_path))


def test_another_file_is_refused(task: Any, tmp_path: Path) -> None:
    """A transaction on another file, or in memory, is refused before anything is written."""
    for place in (tmp_path / "other.db", ":memory:"):
        with closing(sqlite3.connect(place)) as connection:
            with pytest.raises(onejob.ConfigurationError, match="pass a session on that file"):
                task.submit("a", session=connection)
            with suppress(sqlite3.OperationalError):
                connection.execute("select 1 from jobs")
                pytest.fail("there is a table of the ledger")


@pytest.mark.parametrize(("connect", "is_told"), [(_session, True), (_plain, False)])
def test_a_job_is_sent_once_after_its_commit(
    task: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, connect: Callable[[Path], Any], is_told: bool
) -> None:
    """A commit sends and reports each new job that is due; where nobody is told of it, a sweep may send it at once."""
    with caplog.at_level("INFO", "onejob.jobs"):
        session = connect(tmp_path)
        _note(session, "a")
        new, again = task.submit_many([("new",), ("new",)], session=session)
        later = task.apply_async(("later",), session=session, countdown=60)
        assert (_messages(), new.id == again.id) == ([], True)
        assert "event=job_submitted" not in caplog.text
        session.commit()
        session.close()
    assert _messages() == [new.id] * is_told
    assert caplog.text.count("outcome=admitted") == 2 * is_told
    job, waiting = _ledger(task).get(new.id), _ledger(task).get(later.id)
    assert (job.wake_at or 0) - job.created_at == (job.lease if is_told else 0)
    assert (waiting.wake_at or 0) >= waiting.run_at


@pytest.mark.parametrize("hook", [None, "https://example.com/ended"])
def test_a_quota_and_webhooks_are_a_part_of_the_transaction(task: Any, tmp_path: Path, hook: str | None) -> None:
    """A submission in a transaction uses the quota of its submitter, and stores its webhook, with the commit."""
    with onejob.submitter("a", quota="1/hour"):
        for ends in ("rollback", "commit"):
            session = _session(tmp_path)
            task.apply_async(("a",), session=session, webhook_url=hook)
            with pytest.raises(onejob.QuotaExceededError):
                task.apply_async(("b",), session=session)
            getattr(session, ends)()
            session.close()
    assert len(_ledger(task).find(Query(task=task.name))) == 1
    assert len(_ledger(task).find(Query(task="onejob.webhook"))) == int(hook is not None)


def test_an_id_belongs_to_one_task_in_a_transaction(task: Any, tmp_path: Path) -> None:
    """A submission in a transaction under the id of another task's job or follower raises; of the same, it attaches."""
    task.apply_async(("same",), task_id="job")
    task.apply_async(("same",), task_id="follower")
    for task_id in ("job", "follower"):
        session = _session(tmp_path)
        with pytest.raises(TaskIdReusedError, match=f"'{task_id}' belongs"):
            task.app.tasks["newest"].apply_async(("a",), session=session, task_id=task_id)
        assert task.apply_async(("same",), session=session, task_id=task_id).id == task_id
        session.rollback()
        session.close()


def test_statistics_fail_no_submission(
    task: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A duplicate in a transaction that cannot be recorded is answered all the same, and this is logged."""

    def refuse(*_: object) -> None:
        raise StoreUnavailableError("away")

    job = task.delay("same")
    session = _session(tmp_path)
    monkeypatch.setattr(Ledger, "record", refuse)
    assert task.submit("same", session=session).id == job.id
    session.commit()
    session.close()
    assert f"a duplicate of job {job.id} was not recorded: away" in caplog.text


@pytest.mark.parametrize("ends", ["return", "raise", "roll back"])
def test_a_completion_in_a_transaction_is_reported_once(
    task: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, ends: str
) -> None:
    """A run whose transaction has completed its job has that result, reported once, also if it raises afterwards."""

    def complete(key: str) -> str:
        with closing(_plain(tmp_path)) as connection:
            onejob.current_job().complete_in(connection, {"key": key})
            (connection.rollback if ends == "roll back" else connection.commit)()
        if ends == "raise":
            raise ValueError(key)
        return "ignored"

    define: Any = task.app.task
    completing = define(complete, base=onejob.Task, name="completing", shared=False)
    job = completing.delay("a").job
    completing.__trace__ = build_tracer("completing", completing, app=task.app)
    with caplog.at_level("INFO"):
        answer, *_ = completing.__trace__(job.id, ("a",), {}, {"id": job.id, "hostname": "north"})
    committed = ends != "roll back"
    assert caplog.text.count("event=job_completed") == committed
    assert (_ledger(task).get(job.id).state, answer == {"key": "a"}) == (
        "completed" if committed else "failed", committed,
    )  # fmt: skip
    assert ("was completed by its transaction, which then raised ValueError: a" in caplog.text) is (ends == "raise")
    assert ("its transaction was not committed" in _ledger(task).get(job.id).reason) is not committed
