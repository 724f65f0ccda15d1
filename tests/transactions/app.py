"""The app of these tests, built from one JSON text: by a worker from its environment, by a test for its submissions.

Its bodies write notes into the database of the ledger, in transactions of their own, and do what `how` says besides.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import celery
import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import onejob
import tests.celery.app
from tests.intervals import read_intervals


class Effects(tests.celery.app.Checkpoints):
    """The checkpoints of bodies, and the effects that they write into the database of the ledger."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config["test_directory"])
        self.schema = config["onejob_namespace"]
        self.url = config["onejob_store"]
        self.engine = create_engine(self.url.replace("://", "+psycopg://"), poolclass=NullPool)

    def session(self) -> Session:
        return Session(self.engine)

    def insert(self, key: str) -> str:
        return f"insert into {self.schema}.notes values ('{key}')"  # noqa: S608 - names of the test itself

    def write(self, session: Any, key: str) -> None:
        session.execute(text(self.insert(key)) if isinstance(session, Session) else self.insert(key).encode())


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


BODIES: dict[str, Callable[[Effects, onejob.RunningJob, str], Any]] = {}


def body(function: Callable[[Effects, onejob.RunningJob, str], Any]) -> Any:
    """Register a body, which tests call by its name with spaces."""
    BODIES[function.__name__.replace("_", " ")] = function
    return function


@contextmanager
def completing(
    effects: Effects, job: onejob.RunningJob, key: str, result: object, connect: Callable[[], Any] | None = None
) -> Iterator[None]:
    """Run a block in a transaction after an effect and the completion of the job."""
    with job.transaction(connect or effects.session) as session:
        effects.write(session, key)
        job.complete_in(session, result)
        yield


@body
def commits(effects: Effects, job: onejob.RunningJob, key: str) -> str:
    with completing(effects, job, key, f"result of {key}"):
        return "not looked at"


@body
def commits_without_a_result(effects: Effects, job: onejob.RunningJob, key: str) -> str:
    with job.transaction(effects.session) as session:
        effects.write(session, key)
    return "not looked at"


@body
def waits_and_commits(effects: Effects, job: onejob.RunningJob, key: str) -> Any:
    effects.mark(key, "waits")
    effects.wait(key)
    return commits(effects, job, key)


@body
def raises_inside(effects: Effects, job: onejob.RunningJob, key: str) -> None:
    with completing(effects, job, key, "never"):
        raise LookupError(key)


@body
def raises_afterwards(effects: Effects, job: onejob.RunningJob, key: str) -> None:
    commits(effects, job, key)
    raise LookupError(key)


@body
def swallows_its_rollback(effects: Effects, job: onejob.RunningJob, key: str) -> str:
    with suppress(LookupError):
        raises_inside(effects, job, key)
    return f"result of {key}"


@body
def loses_the_answer(effects: Effects, job: onejob.RunningJob, key: str) -> None:
    with completing(effects, job, key, f"result of {key}", lambda: LostSession(effects.engine)):
        pass


@body
def loses_the_answer_plainly(effects: Effects, job: onejob.RunningJob, key: str) -> None:
    with completing(effects, job, key, f"result of {key}", lambda: LostConnection.connect(effects.url)):
        pass


async def coroutine_body(effects: Effects, job: onejob.RunningJob, key: str, how: str) -> Any:
    """Complete the job in a transaction of psycopg, as `how` says."""
    connect = partial(psycopg.AsyncConnection.connect, effects.url)
    if how == "forgets to commit":
        connection = await connect()
        await connection.execute(effects.insert(key).encode())
        await job.acomplete_in(connection, "never")
        return None
    async with job.atransaction(connect) as connection:
        await connection.execute(effects.insert(key).encode())
        await job.acomplete_in(connection, f"result of {key}")
    if how == "raises afterwards":
        raise LookupError(key)
    return "not looked at"


def build(config: dict[str, Any]) -> celery.Celery:
    app = celery.Celery("transactions", changes=config)
    read_intervals(app, config)
    effects = Effects(config)

    def effect(key: str, how: str = "commits") -> Any:
        return BODIES[how](effects, onejob.current_job(), key)

    def note(value: Any, key: str) -> Any:
        effects.mark(key, "noted")
        return [key, value]

    async def coroutine(key: str, how: str = "commits") -> Any:
        return await coroutine_body(effects, onejob.current_job(), key, how)

    options: dict[str, Any] = {"shared": False, "base": onejob.Task, "unique_on": ["key"]}
    retrying = {"autoretry_for": (Exception,), "max_retries": 2, "default_retry_delay": 0}
    define: Any = app.task  # the published types know no task that a base class gives options
    define(effect, name="effect", **options)
    define(effect, name="retrying", **retrying, **options)
    define(note, name="note", **options)
    define(coroutine, name="coroutine", **options)
    for name, conflict_policy in {"newest": "replace", "again": "run_again", "strict": "raise"}.items():
        define(effect, name=name, on_duplicate=conflict_policy, **options)
    define(effect, name="effect_alone", limits=[onejob.Limit(name="database", running=1)], **options)
    return app


if tests.celery.app.CONFIG in os.environ:
    app = build(json.loads(os.environ[tests.celery.app.CONFIG]))
