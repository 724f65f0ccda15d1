"""A ledger in a SQLite file takes part in transactions on that file."""

import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

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
from onejob.jobs.query import Query
from onejob.ledger.ledger import Ledger
from onejob.transactions.sessions import transaction_of
from tests.cases import for_each
from tests.webhooks.receiver import SECRET


def _with_rows(folder: Path) -> Any:
    connection = CONNECT["plain"](folder)
    connection.row_factory = lambda cursor, row: {
        column[0]: each for column, each in zip(cursor.description, row, strict=True)
    }
    return connection


def _explicit(folder: Path) -> Any:
    connection = sqlite3.connect(folder / "shop.db", isolation_level=None)
    connection.execute("begin")
    return connection


def _engine(folder: Path, **options: Any) -> Any:
    return create_engine(f"sqlite:///{folder / 'shop.db'}", poolclass=NullPool, connect_args=options)


CONNECT: dict[str, Callable[[Path], Any]] = {
    "plain": lambda folder: sqlite3.connect(folder / "shop.db"),
    "with rows": _with_rows,
    "explicit": _explicit,
    "session": lambda folder: Session(_engine(folder)),
    "connection": lambda folder: _engine(folder).connect(),
}
OPEN: dict[str, Callable[[Path], Any]] = {"explicit": _explicit}
"""What has a transaction before its first statement."""
if sys.version_info >= (3, 12):  # sqlite3 has modes of PEP 249 since then
    OPEN |= {
        "pep 249": lambda folder: sqlite3.connect(folder / "shop.db", autocommit=False),
        "pep 249 session": lambda folder: Session(_engine(folder, autocommit=False)),
        "pep 249 connection": lambda folder: _engine(folder, autocommit=False).connect(),
    }
    CONNECT |= OPEN


def _echo(key: str) -> str:
    return key


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Any]:
    """Return a task whose ledger is in a file beside a table of the application."""
    memory.Channel.queues.clear()
    changes = {"onejob_store": f"sqlite:///{tmp_path / 'shop.db'}", "onejob_webhook_secrets": [SECRET]}
    with celery.Celery(broker="memory://", changes=changes) as app:
        define: Any = app.task
        define(_echo, base=onejob.Task, shared=False, name="other")
        note = define(_echo, base=onejob.Task, shared=False, name="note")
        ledger_of(note).store.get_many(["any"])
        with closing(CONNECT["plain"](tmp_path)) as connection:
            connection.execute("create table notes (key text)")
        yield note
        ledger_of(note).close()


def ledger_of(task: Any) -> Ledger:
    return app_state_of(task.app).ledger


@contextmanager
def transaction(folder: Path, ends: str = "commit", kind: str = "session") -> Iterator[Any]:
    with closing(CONNECT[kind](folder)) as session:
        yield session
        getattr(session, ends)()


@for_each("kind", CONNECT)
def test_the_job_is_a_part_of_the_transaction(task: Any, tmp_path: Path, kind: str) -> None:
    """A commit keeps the application's rows, the job and the record of a duplicate; a rollback keeps none."""
    live = task.delay("live")
    before = live.job.duplicate_count
    for ends in ("rollback", "commit"):
        insert = f"insert into notes values ('{ends} {kind}')"  # noqa: S608 - words of the test itself
        with transaction(tmp_path, ends, kind) as session:
            session.execute(text(insert) if hasattr(session, "get_transaction") else insert)
            job = task.submit(f"{ends} {kind}", session=session)
            assert task.submit("live", session=session).id == live.id
            assert ledger_of(task).get_or_none(job.id) is None
            assert job.state == "PENDING"
        with pytest.raises(onejob.errors.JobNotFoundError) if ends == "rollback" else nullcontext():
            assert not job.ready()
        found = ledger_of(task).get_or_none(job.id)
        assert (found and found.duplicate_count) == (0 if ends == "commit" else None)
        assert live.job.duplicate_count == before + (ends == "commit")
    with closing(CONNECT["plain"](tmp_path)) as connection:
        notes = [key for (key,) in connection.execute("select key from notes")]
    assert notes[-1] == f"commit {kind}"
    assert f"rollback {kind}" not in notes


def test_an_operation_that_fails_leaves_nothing_in_the_transaction(task: Any, tmp_path: Path) -> None:
    """A submission that fails half-way is undone by itself, and the transaction can go on."""
    job = task.delay("live").job
    with transaction(tmp_path, "rollback", "plain") as connection:
        connection.execute("drop table duplicate_counts")
        with pytest.raises(sqlite3.OperationalError, match="duplicate_counts"):
            task.submit("live", session=connection)
        assert connection.execute("select id, duplicate_count from jobs").fetchall() == [(job.id, 0)]


def test_a_transaction_reads_the_history_of_a_job(task: Any, tmp_path: Path) -> None:
    """Within a transaction, the history has what the transaction has written."""
    with transaction(tmp_path, "rollback", "plain") as connection:
        job = task.submit("new", session=connection)
        joined = ledger_of(task).in_transaction(transaction_of(connection))
        assert [entry.event for entry in joined.history(job.id)] == ["submit"]
        assert ledger_of(task).history(job.id) == []


def test_another_file_is_refused(task: Any, tmp_path: Path) -> None:
    """A transaction on another file, or in memory, is refused before anything is written."""
    for place in (tmp_path / "other.db", ":memory:"):
        with closing(sqlite3.connect(place)) as connection:
            with pytest.raises(onejob.errors.ConfigurationError, match="pass a session on that file"):
                task.submit("a", session=connection)
            with suppress(sqlite3.OperationalError):
                connection.execute("select 1 from jobs")
                pytest.fail("there is a table of the ledger")


@pytest.mark.parametrize(("kind", "is_told"), [("session", True), ("plain", False)])
def test_a_job_is_sent_once_after_its_commit(
    task: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, is_told: bool
) -> None:
    """A commit sends and reports each new job that is due; where nobody is told of it, a sweep may send it at once."""

    def messages() -> list[str]:
        return [each["headers"]["id"] for queue in memory.Channel.queues.values() for each in queue.queue]

    with caplog.at_level("INFO", "onejob.jobs"):
        with transaction(tmp_path, kind=kind) as session:
            new, again = task.submit_many([("new",), ("new",)], session=session)
            later = task.apply_async(("later",), session=session, countdown=60)
            assert messages() == []
            assert new.id == again.id
            assert "event=job_submitted" not in caplog.text
        assert messages() == [new.id] * is_told
    assert caplog.text.count("outcome=admitted") == 2 * is_told
    job, waiting = ledger_of(task).get(new.id), ledger_of(task).get(later.id)
    assert (job.wake_at or 0) - job.created_at == (job.lease if is_told else 0)
    assert (waiting.wake_at or 0) >= waiting.run_at


@pytest.mark.parametrize("hook", [None, "https://example.com/ended"])
def test_a_quota_and_webhooks_are_a_part_of_the_transaction(task: Any, tmp_path: Path, hook: str | None) -> None:
    """A submission in a transaction uses the quota of its submitter, and stores its webhook, with the commit."""
    with onejob.submitter("a", quota="1/hour"):
        for ends in ("rollback", "commit"):
            with transaction(tmp_path, ends) as session:
                task.apply_async(("a",), session=session, webhook_url=hook)
                with pytest.raises(onejob.errors.QuotaExceededError):
                    task.apply_async(("b",), session=session)
    assert len(ledger_of(task).find(Query(task=task.name))) == 1
    assert len(ledger_of(task).find(Query(task="onejob.webhook"))) == int(hook is not None)


def test_an_id_belongs_to_one_task_in_a_transaction(task: Any, tmp_path: Path) -> None:
    """A submission in a transaction under the id of another task's job or follower raises; of the same, it attaches."""
    for task_id in ("job", "follower"):
        task.apply_async(("same",), task_id=task_id)
    for task_id in ("job", "follower"):
        with transaction(tmp_path, "rollback") as session:
            with pytest.raises(TaskIdReusedError, match=f"'{task_id}' belongs"):
                task.app.tasks["other"].apply_async(("a",), session=session, task_id=task_id)
            assert task.apply_async(("same",), session=session, task_id=task_id).id == task_id


def test_statistics_fail_no_submission(
    task: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A duplicate in a transaction that cannot be recorded is answered all the same, and this is logged."""

    def refuse(*_: object) -> None:
        raise StoreUnavailableError("away")

    job = task.delay("same")
    monkeypatch.setattr(Ledger, "record", refuse)
    with transaction(tmp_path) as session:
        assert task.submit("same", session=session).id == job.id
    assert f"a duplicate of job {job.id} was not recorded: away" in caplog.text


@pytest.mark.parametrize("ends", ["return", "raise", "rollback"])
def test_a_completion_in_a_transaction_is_reported_once(
    task: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, ends: str
) -> None:
    """A run whose transaction has completed its job has that result, reported once, also if it raises afterwards."""

    def complete(key: str) -> str:
        with transaction(tmp_path, "rollback" if ends == "rollback" else "commit", "plain") as session:
            onejob.current_job().complete_in(session, {"key": key})
        if ends == "raise":
            raise ValueError(key)
        return "ignored"

    define: Any = task.app.task
    completing = define(complete, base=onejob.Task, name="completing", shared=False)
    job = completing.delay("a").job
    completing.__trace__ = build_tracer("completing", completing, app=task.app)
    with caplog.at_level("INFO"):
        answer, *_ = completing.__trace__(job.id, ("a",), {}, {"id": job.id, "hostname": "north"})
    committed, ended = ends != "rollback", ledger_of(task).get(job.id)
    assert ended.state == ("completed" if committed else "failed")
    assert (answer == {"key": "a"}) == committed
    assert caplog.text.count("event=job_completed") == committed
    assert ("was completed by its transaction, which then raised ValueError: a" in caplog.text) is (ends == "raise")
    assert ("its transaction was not committed" in ended.reason) is not committed


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has this mode since Python 3.12")
def test_a_connection_that_commits_by_itself_commits_the_job(task: Any, tmp_path: Path) -> None:
    """On a connection in autocommit mode a submission is a transaction of its own."""
    connect: Any = sqlite3.connect
    with closing(connect(tmp_path / "shop.db", autocommit=True)) as connection:
        job = task.submit("alone", session=connection)
        assert not connection.in_transaction
    assert ledger_of(task).get(job.id).id == job.id


@contextmanager
def _another_writer(folder: Path) -> Iterator[None]:
    """Have another connection write for half a second, and commit."""
    writer = sqlite3.connect(folder / "shop.db", isolation_level=None, check_same_thread=False)
    with closing(writer):
        writer.execute("begin immediate")
        writer.execute("insert into notes values ('of the writer')")
        end = threading.Timer(0.5, writer.execute, ["commit"])
        end.start()
        yield
        end.join()


@pytest.mark.parametrize("kind", OPEN)
def test_a_submission_in_an_open_transaction_waits_for_another_writer(task: Any, tmp_path: Path, kind: str) -> None:
    """A submission, plain, keyed or a duplicate, that is the first statement of a transaction waits for a writer."""
    live = task.delay("live")
    for name, key in (("plain", None), ("keyed", "key"), ("live", None)):
        with _another_writer(tmp_path), transaction(tmp_path, kind=kind) as session:
            job = task.apply_async((name,), session=session, idempotency_key=key)
            assert (job.id == live.id) is (name == "live")
        assert ledger_of(task).get(job.id).state is onejob.State.QUEUED


@pytest.mark.parametrize("kind", OPEN)
def test_a_completion_in_an_open_transaction_waits_for_another_writer(task: Any, tmp_path: Path, kind: str) -> None:
    """`complete_in` that is the first statement of a transaction waits for another writer, and commits with it."""

    def complete(key: str) -> str:
        with _another_writer(tmp_path), transaction(tmp_path, kind=kind) as session:
            onejob.current_job().complete_in(session, {"key": key})
        return "ignored"

    define: Any = task.app.task
    completing = define(complete, base=onejob.Task, name="completing", shared=False)
    job = completing.delay("a").job
    completing.__trace__ = build_tracer("completing", completing, app=task.app)
    answer, *_ = completing.__trace__(job.id, ("a",), {}, {"id": job.id, "hostname": "north"})
    assert (answer, ledger_of(task).get(job.id).state) == ({"key": "a"}, onejob.State.COMPLETED)


@pytest.mark.parametrize("kind", CONNECT)
def test_a_wait_for_a_job_ends_with_the_rollback_of_its_transaction(task: Any, tmp_path: Path, kind: str) -> None:
    """A job is awaited while its transaction is open, and after a rollback `get` raises `JobNotFoundError`."""
    with closing(CONNECT[kind](tmp_path)) as session:
        job = task.submit("later", session=session)
        with pytest.raises(celery.exceptions.TimeoutError):
            job.get(timeout=0.05)
        session.rollback()
        with pytest.raises(onejob.errors.JobNotFoundError):
            job.get(timeout=20.0)


def test_a_read_in_a_transaction_takes_no_lock(task: Any, tmp_path: Path) -> None:
    """A ledger that only reads in a transaction lets others write."""
    with transaction(tmp_path, "rollback", "explicit") as connection:
        joined = ledger_of(task).in_transaction(transaction_of(connection), writes=False)
        assert joined.get_or_none("nothing") is None
        assert task.delay("of another").job.state is onejob.State.QUEUED


@pytest.mark.parametrize("level", ["DEFERRED", None])
def test_a_submission_waits_for_another_writer(task: Any, tmp_path: Path, level: Any) -> None:
    """A keyed submission without a transaction waits for a writer, as the timeout says, and has one, or begins one."""
    writer = sqlite3.connect(tmp_path / "shop.db", isolation_level=None, check_same_thread=False)
    connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=level)
    with closing(writer), closing(connection), connection:
        writer.execute("begin immediate")
        end = threading.Timer(0.5, writer.execute, ["commit"])
        end.start()
        job = task.apply_async(("one",), idempotency_key="key", session=connection)
        end.join()
        assert connection.in_transaction is (level is not None)
    assert ledger_of(task).get(job.id).state is onejob.State.QUEUED
