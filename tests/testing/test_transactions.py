"""In a test, jobs are submitted and completed in transactions of the test's own database, whatever that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from celery import Celery
from sqlalchemy.orm import Session, sessionmaker

import onejob
from onejob.testing import isolated
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onejob.testing import Jobs

app = Celery("transactions", broker="redis://broker.invalid:1/0", set_as_current=False)
SessionMaker = sessionmaker()


@app.task(shared=False, base=onejob.Task)
def charge(order: int, end: str = "commit") -> str:
    job = onejob.current_job()
    with job.transaction(SessionMaker) as session:
        session.execute(sqlalchemy.text("insert into charges values (:id)"), {"id": order})
        job.complete_in(session, {"order": order})
        if end == "raise":
            raise ValueError(order)
        if end == "twice":
            job.complete_in(session, {})
    return "ignored"


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    """The jobs of this app, whose database is empty."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("create table charges (id integer)"))
    SessionMaker.configure(bind=engine)
    with isolated(app) as isolated_jobs:
        yield isolated_jobs
    engine.dispose()


def charges() -> int:
    with SessionMaker() as session:
        return int(session.execute(sqlalchemy.text("select count(*) from charges")).scalar_one())


def test_a_body_completes_its_job_in_its_transaction(jobs: Jobs) -> None:
    """The result is that of `complete_in`, and the effects are committed."""
    run = jobs.run_job(charge, 7)
    assert run.result == {"order": 7}
    assert charges() == 1


@for_each("end, error", [("raise", ValueError), ("twice", onejob.OneJobError)])
def test_a_rolled_back_transaction_fails_the_job(jobs: Jobs, end: str, error: type[Exception]) -> None:
    """An error in the transaction rolls back effects and completion, and the job fails with it."""
    run = jobs.run_job(charge, 7, end=end)
    assert (run.state, type(run.error), charges()) == (onejob.State.FAILED, error, 0)


def test_a_late_worker_cannot_commit(jobs: Jobs) -> None:
    """A run that froze before its completion is refused, and its effects are rolled back with it."""
    result = charge.delay(7)
    jobs.freeze("start")
    jobs.run_all()
    assert result.get(timeout=0) == {"order": 7}
    assert [run.points[-1] for run in jobs.ledger.runs] == ["before_complete", "after_complete"]
    assert charges() == 1


@pytest.mark.parametrize("at", ["start", "before_complete", "after_complete"])
def test_effects_are_committed_once_whenever_a_worker_is_lost(jobs: Jobs, at: str) -> None:
    """A worker that dies before the commit leaves nothing, and one that dies after it an ended job."""
    result = charge.delay(7)
    jobs.lose_worker(at)
    jobs.run_all()
    assert charges() == (1 if at == "after_complete" else 0)
    jobs.recover()
    assert result.get(timeout=0) == {"order": 7}
    assert charges() == 1


def test_a_job_is_submitted_with_its_transaction(jobs: Jobs) -> None:
    """A job of a committed transaction runs, and not before; one of a rolled back transaction was never submitted."""
    with SessionMaker() as session:
        charge.submit(1, session=session)
        session.rollback()
    jobs.assert_not_submitted(charge)
    with SessionMaker() as session:
        charge.submit(1, session=session)
        with pytest.raises(onejob.OneJobError, match="after its commit"):
            jobs.run_all()
        session.commit()
    jobs.assert_submitted(charge, 1)
    assert (jobs.run_all(), charges()) == (1, 1)


def test_a_session_within_a_transaction_of_the_test_commits(jobs: Jobs) -> None:
    """A session in an outer transaction that the test rolls back works, as in many suites with SQLAlchemy."""
    bind: Any = SessionMaker.kw["bind"]
    with bind.connect() as connection, connection.begin() as outer:
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            charge.submit(3, session=session)
            session.commit()
        outer.rollback()
    jobs.run_all()
    jobs.assert_submitted(charge, 3)
    assert charges() == 1
