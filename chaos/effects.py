"""The effects of bodies: rows that say which number was started and applied, by which run."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Column, Engine, Integer, MetaData, Table, create_engine, event, insert, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from onejob.transactions.fence import HasToken

METADATA = MetaData()


def _table(name: str) -> Table:
    return Table(name, METADATA, Column("number", BigInteger), Column("token", BigInteger), Column("pid", Integer))


STARTED = _table("started")
APPLIED = _table("applied")


def engine_of(url: str, **connect_args: Any) -> Engine:
    """Return an engine whose every session has a connection of its own, so that it survives forks, kills and cuts."""
    waits = {"timeout": 30} if url.startswith("sqlite") else {}
    return create_engine(url, poolclass=NullPool, connect_args=waits | connect_args)


@cache
def sessions_of(url: str) -> sessionmaker[Session]:
    """Return what opens sessions on a database."""
    return sessionmaker(engine_of(url))


@cache
def async_sessions_of(url: str) -> async_sessionmaker[AsyncSession]:
    """Return what opens sessions of coroutines on a database, each with a connection of its own."""
    return async_sessionmaker(create_async_engine(url, poolclass=NullPool))


def create(url: str) -> None:
    """Make the tables."""
    engine = engine_of(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda connection, _: connection.execute("pragma journal_mode = wal"))
    METADATA.create_all(engine)


def write(session: Session, table: Table, number: int, run: HasToken, pid: int = 0) -> None:
    """Write one effect of a run."""
    session.execute(insert(table).values(number=number, token=run.token, pid=pid))


def tokens(url: str, table: Table) -> dict[int, list[int]]:
    """Return, for every number in a table, the tokens of the runs that wrote it."""
    found: dict[int, list[int]] = {}
    with sessions_of(url)() as session:
        for number, token in session.execute(select(table.c.number, table.c.token)):
            found.setdefault(number, []).append(token)
    return found


def counted(url: str, table: Table) -> Counter[int]:
    """Return how often each number stands in a table."""
    return Counter({number: len(runs) for number, runs in tokens(url, table).items()})
