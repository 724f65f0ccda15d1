"""In a test, jobs are submitted and completed in transactions of the test's own database, whatever that is."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

import onejob
from onejob.jobs.query import Query
from onejob.testing import Jobs, isolated
from tests.cases import for_each
from tests.testing import payments
from tests.testing.payments import charge_in_transaction, gateway, remind, sessions


@for_each("end, error", [("raise", ValueError), ("twice", onejob.OneJobError)])
def test_a_rolled_back_transaction_fails_the_job(till: Jobs, end: str, error: type[Exception]) -> None:
    """An error in the transaction rolls back effects and completion, and the job fails with it."""
    run = till.run_job(charge_in_transaction, "ann", end=end)
    assert (run.state, type(run.error), gateway.count()) == (onejob.State.FAILED, error, 0)


def test_a_job_is_submitted_with_its_transaction(till: Jobs) -> None:
    """A job of a committed transaction runs, and not before; one of a rolled back transaction was never submitted."""
    with sessions() as session:
        charge_in_transaction.submit("ann", session=session)
        session.rollback()
    till.assert_not_submitted(charge_in_transaction)
    with sessions() as session:
        charge_in_transaction.submit("ann", session=session)
        with pytest.raises(onejob.OneJobError, match="after its commit"):
            till.run_all()
        session.commit()
    till.assert_submitted(charge_in_transaction, "ann")
    assert (till.run_all(), gateway.count()) == (1, 1)


def test_a_job_is_submitted_again_after_its_savepoint(till: Jobs) -> None:
    """A job of a savepoint that was rolled back is gone at once, and an equal one of the same transaction runs."""
    with sessions.begin() as session:
        with session.begin_nested() as savepoint:
            charge_in_transaction.submit("ann", session=session)
            savepoint.rollback()
        assert charge_in_transaction.submit("ann", session=session).outcome == "admitted"
    till.assert_submitted(charge_in_transaction, "ann", times=1)
    assert (till.run_all(), gateway.count()) == (1, 1)


def test_a_rollback_gives_a_replaced_job_its_arguments_back(till: Jobs) -> None:
    """A job that was replaced in a transaction, twice and earlier, runs as before it; one queued next is gone."""
    first = remind.apply_async(("ann", "old"), countdown=60)
    before = till.get(first.id)
    with sessions() as session:
        outcomes = [remind.submit("ann", note, session=session).outcome for note in ("new", "newer")]
        session.rollback()
    assert (outcomes, till.get(first.id)) == (["replaced", "replaced"], before)
    till.travel(60)
    till.ledger.claim(first.id, nonce="nonce", node="node")
    with sessions() as session:
        assert remind.submit("ann", "new", session=session).outcome == "queued_next"
        session.rollback()
    till.recover()
    assert first.get(timeout=0) == "ann: old"
    assert [job.id for job in till.ledger.find(Query())] == [first.id]


def test_a_rollback_takes_webhooks_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A webhook that a rolled back submission has added, to its own job or another, is not sent."""
    monkeypatch.setitem(payments.app.conf, "onejob_webhook_secrets", ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])
    hook: Any = {"webhook_url": "https://hooks.example.com/jobs"}
    payments.gateway.open(tmp_path / "gateway.db")
    with isolated(payments.app) as jobs:
        first = remind.delay("ann", "note")
        with sessions() as session:
            for customer in ("ann", "bob"):
                remind.apply_async((customer, "note"), session=session, **hook)
            session.rollback()
        assert (jobs.run_all(), jobs.webhooks, first.get(timeout=0)) == (1, [], "ann: note")
        with sessions.begin() as session:
            remind.apply_async(("bob", "note"), session=session, **hook)
        jobs.run_all()
        assert len(jobs.webhooks) == 1


def test_a_connection_that_calls_nobody_back_is_refused(till: Jobs) -> None:
    """A plain connection, whose commit a test cannot see, is refused with what to use in its place."""
    refused = pytest.raises(onejob.errors.ConfigurationError, match="Use a Session in this test")
    with closing(sqlite3.connect(gateway.path)) as plain, refused:
        charge_in_transaction.submit("ann", session=plain)
    till.assert_not_submitted(charge_in_transaction)


def test_a_session_within_a_transaction_of_the_test_commits(till: Jobs) -> None:
    """A session in an outer transaction that the test rolls back works, as in many suites with SQLAlchemy."""
    bind: Any = sessions.kw["bind"]
    with bind.connect() as connection, connection.begin() as outer:
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            charge_in_transaction.submit("ann", session=session)
            session.commit()
        outer.rollback()
    till.run_all()
    till.assert_submitted(charge_in_transaction, "ann")
    assert gateway.count() == 1
