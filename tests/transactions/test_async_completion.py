"""Completion in a transaction of an asynchronous session: effects, result and state are one commit."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg  # type: ignore[import-untyped] # ships no types
import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from onejob.celery.current_job import RunningJob
from onejob.errors import ConfigurationError, LeaseLost, OneJobError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Outcome
from tests.cases import for_each
from tests.celery.harness import PATIENCE
from tests.quiet import provokes
from tests.transactions.cluster import PostgresCluster
from tests.transactions.owners import configure_django, engine_of

Source = Callable[[str], Any]


def async_engine(url: str, driver: str = "asyncpg") -> Any:
    return engine_of(url, driver, create_async_engine)


@asynccontextmanager
async def pooled(url: str) -> AsyncIterator[Any]:
    """Open a connection of a pool of asyncpg."""
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        yield connection


SOURCES: dict[str, Source] = {
    "async_sessionmaker-asyncpg": lambda url: async_sessionmaker(async_engine(url)),
    "async_sessionmaker-psycopg": lambda url: async_sessionmaker(async_engine(url, "psycopg")),
    "AsyncEngine": async_engine,
    "AsyncSession": lambda url: AsyncSession(async_engine(url)),
    "psycopg": lambda url: lambda: psycopg.AsyncConnection.connect(url),
    "asyncpg": lambda url: lambda: asyncpg.connect(url),
    "a pool of asyncpg": lambda url: lambda: pooled(url),
}
each_source = for_each("kind", [*SOURCES])
ENDS = [("commits", "result of {}"), ("raises afterwards", "result of {}"), ("forgets to commit", None)]
"""What bodies do, and their results; None: the job fails."""


async def write(cluster: PostgresCluster, session: Any, key: str) -> None:
    """Write an effect in a transaction."""
    sql: Any = cluster.effects.insert(key)
    is_sqlalchemy = isinstance(session, AsyncSession | AsyncConnection)
    await session.execute(text(sql) if is_sqlalchemy else sql)


def source_of(cluster: PostgresCluster, kind: str) -> Any:
    return SOURCES[kind](cluster.url)


@each_source
def test_effects_and_completion_are_one_commit(cluster: PostgresCluster, kind: str) -> None:
    """The block's effects, the result and the state are committed at its end, and nobody sees them before."""
    run = cluster.started(kind)

    async def body() -> None:
        async with RunningJob(run).atransaction(source_of(cluster, kind)) as session:
            await write(cluster, session, kind)
            await RunningJob(run).acomplete_in(session, {"of": kind})
            assert (cluster.ledger.get(run.id).state, cluster.notes(kind)) == (State.RUNNING, 0)

    asyncio.run(body())
    job = cluster.ledger.get(run.id)
    assert (job.state, job.result, cluster.notes(kind)) == (State.COMPLETED, f'{{"of": "{kind}"}}', 1)
    assert run.find_committed() is not None


@each_source
def test_a_block_that_raises_changes_nothing(cluster: PostgresCluster, kind: str) -> None:
    """An exception or a cancellation in the block undoes all, and a later block, without a result, completes."""
    run = cluster.started(kind)
    job = RunningJob(run)

    async def body() -> None:
        for raised in (LookupError(kind), asyncio.CancelledError()):
            with pytest.raises(type(raised)):  # noqa: PT012 - a block
                async with job.atransaction(source_of(cluster, kind)) as session:
                    await write(cluster, session, kind)
                    await job.acomplete_in(session, 1)
                    raise raised
        assert (cluster.ledger.get(run.id), cluster.notes(kind)) == (run.job, 0)
        assert not run.completes_in_transaction
        async with job.atransaction(source_of(cluster, kind)) as session:
            await write(cluster, session, kind)

    asyncio.run(body())
    assert (cluster.ledger.get(run.id).result, cluster.notes(kind)) == ("null", 1)


@provokes(Transition.CRASH, because="the test ends the run")
@each_source
def test_a_late_run_loses_its_block(cluster: PostgresCluster, kind: str) -> None:
    """A block whose run has lost its lease raises `LeaseLost`, and its effects are rolled back."""
    run = cluster.started(kind)
    cluster.claim_again(run)

    async def body() -> None:
        async with RunningJob(run).atransaction(source_of(cluster, kind)) as session:
            await write(cluster, session, kind)

    with pytest.raises(LeaseLost):
        asyncio.run(body())
    assert cluster.notes(kind) == 0


def test_what_has_no_asynchronous_transaction_is_refused(cluster: PostgresCluster) -> None:
    """A synchronous session, Django's connection and other objects raise an error that says what to do."""
    configure_django(cluster.url)
    from django.db import connection

    run = cluster.started()
    wrong: list[tuple[Any, str]] = [
        (lambda: Session(create_engine("sqlite://")), r"Session; a synchronous session is one of job\.transaction"),
        (connection, "sync_to_async"),
        (object(), "builtins.object"),
    ]
    for source, message in wrong:

        async def body(source: Any = source) -> None:
            async with RunningJob(run).atransaction(source):
                raise AssertionError

        with pytest.raises(ConfigurationError, match=message):
            asyncio.run(body())
        with pytest.raises(ConfigurationError):
            asyncio.run(RunningJob(run).acomplete_in(object()))


def test_a_connection_without_a_transaction_is_refused(cluster: PostgresCluster) -> None:
    """`acomplete_in` refuses a connection that commits each statement."""
    run = cluster.started()
    connections: list[Callable[[], Awaitable[Any]]] = [
        lambda: asyncpg.connect(cluster.url),
        lambda: psycopg.AsyncConnection.connect(cluster.url, autocommit=True),
    ]

    async def body() -> None:
        for connect in connections:
            connection = await connect()
            with pytest.raises(ConfigurationError, match="autocommit"):
                await RunningJob(run).acomplete_in(connection)
            await connection.close()

    asyncio.run(body())
    assert cluster.ledger.get(run.id) == run.job


@for_each("kind", ["AsyncEngine", "psycopg", "asyncpg"])
def test_a_coroutine_submits_in_its_transaction(cluster: PostgresCluster, kind: str) -> None:
    """`asubmit(session=...)` writes the job in the transaction of the session, whose rollback leaves no job."""

    async def submit(*, commits: bool) -> Any:
        source = source_of(cluster, kind)
        found = source() if callable(source) else source.connect()
        session = await found if inspect.isawaitable(found) else found
        if kind == "asyncpg":
            transaction = session.transaction()
            await transaction.start()
        else:
            transaction = session
        result = await cluster.effect.asubmit(kind, session=session)
        await (transaction.commit() if commits else transaction.rollback())
        await session.close()
        return result

    lost = asyncio.run(submit(commits=False))
    assert cluster.ledger.get_or_none(lost.id) is None
    kept = asyncio.run(submit(commits=True))
    assert (kept.outcome, cluster.ledger.get(kept.id).state) == (Outcome.ADMITTED, State.QUEUED)


@provokes(logs=["raised unexpected"], because="bodies fail")
@for_each("how, result", ENDS)
def test_a_coroutine_completes_in_its_transaction(working: PostgresCluster, how: str, result: str | None) -> None:
    """A committed block completes the job, whatever comes after it; a transaction that is left open is rolled back."""
    assert_ends(working, how, result)


@provokes(logs=["raised unexpected"], because="bodies fail")
def test_a_coroutine_of_the_pool_completes_in_its_transaction(cluster: PostgresCluster) -> None:
    """The same holds in the pool onejob, whose bodies share an event loop."""
    cluster.worker("--pool", "onejob", "-c", "4")
    for how, result in ENDS:
        assert_ends(cluster, how, result)


def assert_ends(working: PostgresCluster, how: str, result: str | None) -> None:
    key = f"coroutine-{how}".replace(" ", "-")
    answer = working.coroutine.delay(key, how)
    if result is None:
        with pytest.raises(OneJobError, match="was not committed"):
            answer.get(timeout=PATIENCE)
    else:
        assert answer.get(timeout=PATIENCE) == result.format(key)
    assert working.notes(key) == (result is not None)
