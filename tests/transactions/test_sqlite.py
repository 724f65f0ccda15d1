"""A ledger in a SQLite file takes part in transactions on that file."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import celery
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import onejob
from onejob.celery.app_state import app_state_of
from onejob.celery.current_job import RunningJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from onejob.ledger.ledger import Ledger


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Any]:
    """Return a task whose ledger is in a file beside a table of the application."""
    app = celery.Celery(broker="memory://")
    app.conf.onejob_store = f"sqlite:///{tmp_path / 'shop.db'}"

    @app.task(base=onejob.Task, shared=False)
    def note(key: str) -> str:
        return key

    app_state_of(app).ledger.store.get_many(["any"])
    with closing(_plain(tmp_path)) as connection:
        connection.execute("create table notes (key text)")
    yield note
    app_state_of(app).ledger.close()
    app.close()


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


def _session(folder: Path) -> Any:
    return Session(create_engine(f"sqlite:///{folder / 'shop.db'}", poolclass=NullPool))


def _connection(folder: Path) -> Any:
    return create_engine(f"sqlite:///{folder / 'shop.db'}", poolclass=NullPool).connect()


KINDS: list[Callable[[Path], Any]] = [_plain, _with_rows, _explicit, _session, _connection]


def _note(session: Any, key: str) -> None:
    statement = f"insert into notes values ('{key}')"  # noqa: S608 - a name of the test itself
    session.execute(text(statement) if hasattr(session, "get_transaction") else statement)


def _notes(folder: Path) -> list[str]:
    with closing(_plain(folder)) as connection:
        return [row[0] for row in connection.execute("select key from notes")]


def _ledger(task: Any) -> Ledger:
    return app_state_of(task.app).ledger


@pytest.mark.parametrize("connect", KINDS)
def test_the_job_is_a_part_of_the_transaction(task: Any, tmp_path: Path, connect: Callable[[Path], Any]) -> None:
    """A commit keeps the application's rows and the job, a rollback neither, and nobody else sees the job before."""
    for key, ends in {"lost": "rollback", "kept": "commit"}.items():
        session = connect(tmp_path)
        _note(session, key)
        job = task.submit(key, session=session)
        assert _ledger(task).get_or_none(job.id) is None
        getattr(session, ends)()
        session.close()
        assert (_ledger(task).get_or_none(job.id) is not None) == (ends == "commit")
    assert _notes(tmp_path) == ["kept"]


@pytest.mark.parametrize("connect", KINDS)
def test_a_duplicate_in_a_transaction_attaches(task: Any, tmp_path: Path, connect: Callable[[Path], Any]) -> None:
    """A duplicate within a transaction is answered by the existing job, and recorded without waiting for a lock."""
    job = task.delay("same")
    session = connect(tmp_path)
    _note(session, "same")
    assert task.submit("same", session=session).id == job.id
    session.commit()
    session.close()
    assert _ledger(task).get(job.id).duplicate_count == 1


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_job_completes_with_its_effects(task: Any, tmp_path: Path, ends: str) -> None:
    """`complete_in` and the effects of the body are one commit on the file."""
    job, ledger = task.delay("a"), _ledger(task)
    claimed = ledger.claim(job.id, nonce="nonce", node="test").job
    assert claimed is not None
    run = RunningJob(claimed, ledger, app_state_of(task.app).settings.limits)
    with closing(_plain(tmp_path)) as connection:
        _note(connection, "a")
        run.complete_in(connection, "done")
        getattr(connection, ends)()
    committed = ends == "commit"
    assert (ledger.get(job.id).state, _notes(tmp_path)) == (("completed", ["a"]) if committed else ("running", []))


def test_another_file_is_refused(task: Any, tmp_path: Path) -> None:
    """A transaction on another file, or in memory, is refused before anything is written."""
    for place in (tmp_path / "other.db", ":memory:"):
        with closing(sqlite3.connect(place)) as connection:
            with pytest.raises(onejob.ConfigurationError, match="pass a session on that file"):
                task.submit("a", session=connection)
            with suppress(sqlite3.OperationalError):
                connection.execute("select 1 from jobs")
                pytest.fail("there is a table of the ledger")
