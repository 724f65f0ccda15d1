"""The app of these tests, built from one JSON text: by a worker from its environment, by a test for its submissions.

Its bodies write notes into the database of the ledger, in transactions of their own, and do what `how` says besides.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

import celery
import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import onejob
import tests.celery.app


class Stage(tests.celery.app.Stage):
    """Where the bodies leave marks, wait for gates that the test opens, and write their effects."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config["test_stage"])
        self.schema = config["onejob_namespace"]
        self.url = config["onejob_store"]
        self.engine = create_engine(self.url.replace("://", "+psycopg://"), poolclass=NullPool)

    def session(self) -> Session:
        """Return a new session on the database of the ledger."""
        return Session(self.engine)

    def insert(self, key: str) -> str:
        """Return the statement of an effect."""
        return f"insert into {self.schema}.notes values ('{key}')"  # noqa: S608 - names of the test itself

    def write(self, session: Session, key: str) -> None:
        """Write an effect."""
        session.execute(text(self.insert(key)))

    def mark_and_wait(self, key: str) -> None:
        """Wait until the test opens the gate of a key."""
        self.mark(key, "waits")
        self.wait(key)


class LostSession(Session):
    """A session that commits and loses the response."""

    def commit(self) -> None:
        super().commit()
        self.invalidate()
        raise OperationalError("commit", None, RuntimeError("server closed the connection unexpectedly"))


class LostConnection(psycopg.Connection[Any]):
    """A connection that commits and loses the response."""

    def commit(self) -> None:
        super().commit()
        self.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")


# --- bodies ---------------------------------------------------------------------------------------------------------


def _commits(stage: Stage, job: onejob.RunningJob, key: str) -> str:
    with job.transaction(stage.session) as session:
        stage.write(session, key)
        job.complete_in(session, f"result of {key}")
    return "not looked at"


def _commits_without_a_result(stage: Stage, job: onejob.RunningJob, key: str) -> str:
    with job.transaction(stage.session) as session:
        stage.write(session, key)
    return "not looked at"


def _waits_and_commits(stage: Stage, job: onejob.RunningJob, key: str) -> str:
    stage.mark_and_wait(key)
    return _commits(stage, job, key)


def _raises_inside(stage: Stage, job: onejob.RunningJob, key: str) -> None:
    with job.transaction(stage.session) as session:
        stage.write(session, key)
        job.complete_in(session, "never")
        raise LookupError(key)


def _raises_afterwards(stage: Stage, job: onejob.RunningJob, key: str) -> None:
    _commits(stage, job, key)
    raise LookupError(key)


def _forgets_to_commit(stage: Stage, job: onejob.RunningJob, key: str) -> str:
    with stage.session() as session:
        stage.write(session, key)
        job.complete_in(session, "never")
    return "not looked at"


def _swallows_its_rollback(stage: Stage, job: onejob.RunningJob, key: str) -> str:
    with suppress(LookupError):
        _raises_inside(stage, job, key)
    return f"result of {key}"


def _leaves_it_open(stage: Stage, job: onejob.RunningJob, key: str) -> None:
    left_open.append(stage.session())
    stage.write(left_open[-1], key)
    job.complete_in(left_open[-1], "never")


left_open: list[Session] = []


def _cannot_be_stored(stage: Stage, job: onejob.RunningJob, key: str) -> None:
    with job.transaction(stage.session) as session:
        stage.write(session, key)
        job.complete_in(session, object())


def _loses_the_answer(stage: Stage, job: onejob.RunningJob, key: str) -> None:
    with job.transaction(lambda: LostSession(stage.engine)) as session:
        stage.write(session, key)
        job.complete_in(session, f"result of {key}")


def _loses_the_answer_plainly(stage: Stage, job: onejob.RunningJob, key: str) -> None:
    with job.transaction(lambda: LostConnection.connect(stage.url)) as connection:
        connection.execute(stage.insert(key).encode())
        job.complete_in(connection, f"result of {key}")


def _loses_its_lease(stage: Stage, job: onejob.RunningJob, key: str) -> None:
    """Lose the lease inside of the block, and try to suppress the exception."""
    try:
        with job.transaction(stage.session) as session:
            stage.write(session, key)
            stage.mark_and_wait(key)
            job.complete_in(session, "late")
    except Exception:  # noqa: BLE001 - what bodies do
        stage.mark(key, "swallowed")
    finally:
        stage.mark(key, "left")
    stage.mark(key, "went-on")


BODIES: dict[str, Any] = {
    "commits": _commits,
    "commits without a result": _commits_without_a_result,
    "waits and commits": _waits_and_commits,
    "raises inside": _raises_inside,
    "raises afterwards": _raises_afterwards,
    "forgets to commit": _forgets_to_commit,
    "swallows its rollback": _swallows_its_rollback,
    "leaves it open": _leaves_it_open,
    "cannot be stored": _cannot_be_stored,
    "loses the answer": _loses_the_answer,
    "loses the answer plainly": _loses_the_answer_plainly,
    "loses its lease": _loses_its_lease,
}


def build(config: dict[str, Any]) -> celery.Celery:
    """Return an app with the tasks of these tests."""
    app = celery.Celery("transactions", changes=config)
    stage = Stage(config)

    def body(key: str, how: str = "commits") -> Any:
        return BODIES[how](stage, onejob.current_job(), key)

    options: dict[str, Any] = {"shared": False, "base": onejob.Task, "unique_on": ["key"]}
    greedy = {"autoretry_for": (Exception,), "max_retries": 2, "default_retry_delay": 0}
    define: Any = app.task  # the published types know no task that a base class gives options
    define(body, name="effect", **options)
    define(body, name="greedy", **greedy, **options)
    define(_note(stage), name="note", **options)
    for name, conflict_policy in {"newest": "replace", "again": "run_again", "strict": "raise"}.items():
        define(body, name=name, on_duplicate=conflict_policy, **options)
    return app


def _note(stage: Stage) -> Any:
    def note(value: Any, key: str) -> Any:
        """Take the result of the previous task."""
        stage.mark(key, "noted")
        return [key, value]

    return note


if tests.celery.app.CONFIG in os.environ:
    app = build(json.loads(os.environ[tests.celery.app.CONFIG]))
