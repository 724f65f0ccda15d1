"""What the code of docs/guides/transactions.md needs: its blocks continue this file."""

import os
from collections.abc import Iterator  # noqa: F401 - the blocks use it
from typing import Annotated  # noqa: F401 - the same

import celery
from fastapi import Depends, FastAPI  # noqa: F401 - the same
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker  # noqa: F401 - the same
from sqlalchemy.pool import NullPool

import onejob  # noqa: F401 - the blocks use it

DATABASE = os.environ.get("SHOP_DATABASE", "postgresql://shop@localhost:5432/shop")
BOOKS = os.environ.get("BOOKS_DATABASE", "sqlite:///books.db")
BROKER = os.environ.get("SHOP_BROKER", "redis://localhost:6379/0")

app = celery.Celery("shop", broker=BROKER, set_as_current=False)
app.conf.onejob_store = DATABASE

sessions = sessionmaker(create_engine(DATABASE.replace("://", "+psycopg://"), poolclass=NullPool))
async_sessions = async_sessionmaker(
    create_async_engine(DATABASE.replace("://", "+asyncpg://"), poolclass=NullPool), expire_on_commit=False
)
books = sessionmaker(create_engine(BOOKS, poolclass=NullPool))


class Base(DeclarativeBase):
    """What all tables have in common."""


class Order(Base):
    """Somebody's order."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    invoice: Mapped[str] = mapped_column(default="")


class Entry(Base):
    """A line in the books, which are another database."""

    __tablename__ = "entries"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]


CHARGES: dict[str, int] = {}
"""A third party that takes idempotency keys."""


def charge(order_id: int, idempotency_key: str) -> None:
    """Charge once for each key."""
    CHARGES.setdefault(idempotency_key, order_id)


api = FastAPI()
