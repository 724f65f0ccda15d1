"""Fence rows in databases other than the ledger's, and idempotency keys for effects on third parties."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from sqlalchemy.orm import Session

import onejob
from onejob.celery import run as runs
from onejob.celery.current_job import RunningJob
from onejob.errors import ConfigurationError, InvalidArgumentsError
from onejob.jobs.text_limits import TextLimits
from onejob.ledger.ledger import Ledger
from onejob.stores import open_store
from onejob.transactions.fence import TABLE
from tests.cases import for_each
from tests.stores.races import together
from tests.stores.support import start, submission, submit
from tests.transactions.owners import connect_psycopg2, engine_of

CONNECT: dict[str, Callable[[str], Any]] = {
    "psycopg": psycopg.connect,
    "psycopg2": connect_psycopg2,
    "sqlalchemy-postgresql": lambda url: Session(engine_of(url)),
    "sqlalchemy-sqlite": lambda url: Session(engine_of(url, "pysqlite")),
    "sqlite3": lambda url: sqlite3.connect(url.removeprefix("sqlite:///")),
}


class Run(NamedTuple):
    id: str = "job-1"
    token: int = 1


class Guarded(NamedTuple):
    url: str
    connect: Callable[[str], Any]

    def fence(self, job: Run, name: str = "", *, commit: bool = True) -> bool:
        """Insert a fence row in a separate transaction."""
        with closing(self.connect(self.url)) as session:
            first = onejob.fence(session, job, name)
            session.commit() if commit else session.rollback()
        return first


@pytest.fixture(params=sorted(CONNECT))
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Guarded:
    if "sqlite" in request.param:
        return Guarded(f"sqlite:///{tmp_path / 'application.db'}", CONNECT[request.param])
    schema = request.getfixturevalue("postgres_schema")
    url = f"{request.getfixturevalue('postgres_server').url}?options=-csearch_path%3D{schema}"
    return Guarded(url, CONNECT[request.param])


@pytest.fixture
def guarded(bare: Guarded) -> Guarded:
    with closing(CONNECT["sqlite3" if bare.url.startswith("sqlite") else "psycopg"](bare.url)) as connection:
        connection.execute(TABLE)
        connection.commit()
    return bare


@pytest.fixture
def running_job(tmp_path: Path) -> Iterator[RunningJob]:
    with closing(open_store(f"sqlite:///{tmp_path / 'ledger.db'}")) as store:
        submit(store)
        yield RunningJob(runs.Run(start(store), Ledger(store), TextLimits()))


@pytest.fixture
def plain_sqlite(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "plain.db")) as connection:
        connection.execute(TABLE)
        yield connection


def test_a_fence_opens_once(guarded: Guarded) -> None:
    """A fence is True for the first run that commits it, and False for this and every other run of the job after it."""
    assert guarded.fence(Run(), commit=False)
    assert [guarded.fence(Run(token=token)) for token in (1, 1, 2)] == [True, False, False]
    pairs = [(job, name) for job in ("job-1", "job-2") for name in ("", "charge", "%s", "it's")][1:]
    assert all(guarded.fence(Run(job), name) for job, name in pairs)
    assert not any(guarded.fence(Run(job), name) for job, name in pairs)


@pytest.mark.parametrize("bare", ["psycopg", "sqlite3"], indirect=True)
def test_one_of_two_concurrent_runs_passes(guarded: Guarded) -> None:
    """Of two concurrent runs, exactly one passes the fence."""
    assert sorted(together(*[partial(guarded.fence, Run(token=token)) for token in (1, 2)])) == [False, True]


def test_a_missing_table_is_reported_with_its_ddl(bare: Guarded) -> None:
    """Where the table is missing, the error says how to create it."""
    with closing(bare.connect(bare.url)) as session:
        with pytest.raises(ConfigurationError, match="create it once") as caught:
            onejob.fence(session, Run())
        session.rollback()
    assert TABLE in str(caught.value)


def test_a_sqlite_connection_in_autocommit_is_refused(
    plain_sqlite: sqlite3.Connection, running_job: RunningJob
) -> None:
    """A sqlite3 connection in autocommit mode is refused, unless a transaction has begun."""
    plain_sqlite.isolation_level = None
    plain_sqlite.row_factory = sqlite3.Row
    with pytest.raises(ConfigurationError, match="autocommit mode"):
        onejob.fence(plain_sqlite, Run())
    plain_sqlite.execute("begin")
    assert [onejob.fence(plain_sqlite, job) for job in (running_job, running_job._run.job)] == [True, False]
    plain_sqlite.execute("rollback")


def test_effect_keys_never_change(running_job: RunningJob) -> None:
    """The key of an effect is the same in every release, process and attempt, and other for another job or name."""
    assert running_job.effect_key("charge") == "onejob-fed8cfb0-8eb8-533a-9dcc-a40ab913435b"
    run: runs.Run = running_job._run
    ledger = run._ledger
    ledger.crash(run.job, "lost", "{}")
    keys = [running_job.effect_key(name) for name in ("charge", "mail", "Charge", "1:charge")]
    for job_id in ("job-1", "job-2", "job-1:1"):
        ledger.submit(submission(job_id))
        run = runs.Run(start(ledger.store, job_id), ledger, TextLimits())
        keys.append(RunningJob(run).effect_key("charge"))
    assert (keys.count(keys[0]), len(set(keys))) == (2, len(keys) - 1)


@for_each("name", ["", None, 7, b"charge", "x" * 256, "a\0b"])
def test_effects_and_fences_have_short_names(
    running_job: RunningJob, plain_sqlite: sqlite3.Connection, name: Any
) -> None:
    """A name of an effect that is no text of 1 to 255 characters is refused; one of a fence may also be empty."""
    with pytest.raises(InvalidArgumentsError, match="the name of an effect must be"):
        running_job.effect_key(name)
    if name not in ("", "a\0b"):
        with pytest.raises(InvalidArgumentsError, match="at most 255 characters"):
            onejob.fence(plain_sqlite, Run(), name)
