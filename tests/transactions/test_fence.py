"""Fence rows in databases other than the ledger's, and idempotency keys for effects on third parties."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import onejob
from onejob import ConfigurationError, InvalidArgumentsError
from onejob.celery.current_job import RunningJob
from onejob.jobs.lifecycle import State
from onejob.ledger.ledger import Ledger
from onejob.stores import open_store
from onejob.transactions.fence import TABLE
from onejob.uniqueness.canonical_json import Limits
from tests.cases import for_each
from tests.contract.support import submission
from tests.transactions.owners import connect_psycopg2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Run:
    """The attributes of a run that a fence needs."""

    id: str = "job-1"
    token: int = 1


def _sqlalchemy(url: str) -> Any:
    return Session(create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool))


CONNECT: dict[str, Callable[[str], Any]] = {
    "psycopg": psycopg.connect,
    "psycopg2": connect_psycopg2,
    "sqlalchemy-postgresql": _sqlalchemy,
    "sqlalchemy-sqlite": _sqlalchemy,
    "sqlite3": lambda url: sqlite3.connect(url.removeprefix("sqlite:///")),
}


@dataclass
class Guarded:
    """A database of the application."""

    url: str
    connect: Callable[[str], Any]

    def make_table(self) -> None:
        """Create the table of the fence rows."""
        if self.url.startswith("sqlite"):
            sqlite3.connect(self.url.removeprefix("sqlite:///")).execute(TABLE).connection.close()
            return
        with psycopg.connect(self.url) as connection:
            connection.execute(TABLE.encode())

    def fence(self, job: Run, name: str = "", *, commit: bool = True) -> bool:
        """Insert a fence row in a separate transaction."""
        session = self.connect(self.url)
        first = onejob.fence(session, job, name)
        session.commit() if commit else session.rollback()
        session.close()
        return first


@pytest.fixture(params=sorted(CONNECT))
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Guarded:
    """Return a database without the table."""
    if "sqlite" in request.param:
        return Guarded(f"sqlite:///{tmp_path / 'application.db'}", CONNECT[request.param])
    schema = request.getfixturevalue("postgres_schema")
    url = f"{request.getfixturevalue('postgres_server').url}?options=-csearch_path%3D{schema}"
    return Guarded(url, CONNECT[request.param])


@pytest.fixture
def guarded(bare: Guarded) -> Guarded:
    """Return a database with the table."""
    bare.make_table()
    return bare


@pytest.fixture
def running_job(tmp_path: Path) -> Iterator[RunningJob]:
    """Return a running job of a ledger in SQLite."""
    store = open_store(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger = Ledger(store)
    ledger.submit(submission("job-1"))
    claimed = ledger.claim("job-1", nonce="n", node="test").job
    assert claimed is not None
    assert claimed.state is State.RUNNING
    yield RunningJob(claimed, ledger, Limits())
    store.close()


@pytest.fixture
def plain_sqlite(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Return a connection of sqlite3 to a database with the table."""
    with closing(sqlite3.connect(tmp_path / "plain.db")) as connection:
        connection.execute(TABLE)
        yield connection


# --- fences ---------------------------------------------------------------------------------------------------------


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
    together = threading.Barrier(2)

    def run(token: int) -> bool:
        together.wait(10)
        return guarded.fence(Run(token=token))

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(run, (1, 2)))
    assert sorted(answers) == [False, True]


def test_a_missing_table_is_reported_with_its_ddl(bare: Guarded) -> None:
    """Where the table is missing, the error says how to create it."""
    session = bare.connect(bare.url)
    with pytest.raises(ConfigurationError, match="create it once") as caught:
        onejob.fence(session, Run())
    session.rollback()
    session.close()
    assert TABLE in str(caught.value)


@for_each("name", ["x" * 256, None, 7])
def test_names_of_fences_are_short_texts(plain_sqlite: sqlite3.Connection, name: Any) -> None:
    """A name that does not fit the column is refused."""
    with pytest.raises(InvalidArgumentsError, match="at most 255 characters"):
        onejob.fence(plain_sqlite, Run(), name)


def test_a_sqlite_connection_in_autocommit_is_refused(
    plain_sqlite: sqlite3.Connection, running_job: RunningJob
) -> None:
    """A sqlite3 connection in autocommit mode is refused, unless a transaction has begun."""
    plain_sqlite.isolation_level = None
    plain_sqlite.row_factory = sqlite3.Row
    with pytest.raises(ConfigurationError, match="autocommit mode"):
        onejob.fence(plain_sqlite, Run())
    plain_sqlite.execute("begin")
    assert [onejob.fence(plain_sqlite, job) for job in (running_job, running_job.job)] == [True, False]
    plain_sqlite.execute("rollback")


# --- effect keys ----------------------------------------------------------------------------------------------------


def test_effect_keys_never_change(running_job: RunningJob) -> None:
    """The key of an effect is the same in every release, process and attempt, and other for another job or name."""
    assert running_job.effect_key("charge") == "onejob-fed8cfb0-8eb8-533a-9dcc-a40ab913435b"
    ledger = running_job._ledger
    ledger.crash(running_job.job, "lost", "{}")
    keys = [running_job.effect_key(name) for name in ("charge", "mail", "Charge", "1:charge")]
    for job_id in ("job-1", "job-2", "job-1:1"):
        ledger.submit(submission(job_id))
        job = ledger.claim(job_id, nonce="m", node="test").job
        assert job is not None
        keys.append(RunningJob(job, ledger, Limits()).effect_key("charge"))
    assert (keys.count(keys[0]), len(set(keys))) == (2, len(keys) - 1)


@for_each("name", ["", None, 7, b"charge", "x" * 256, "a\0b"])
def test_an_effect_needs_a_name(running_job: RunningJob, name: Any) -> None:
    """An invalid name is refused."""
    with pytest.raises(InvalidArgumentsError, match="an effect must be"):
        running_job.effect_key(name)
