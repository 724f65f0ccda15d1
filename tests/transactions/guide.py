"""The code of docs/guides/transactions.md, which shows parts of this file word for word."""

import os

import celery
from fastapi import FastAPI
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from sqlalchemy.pool import NullPool

import onejob

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


@app.task(base=onejob.Task)
def invoice(order_id: int) -> None:
    job = onejob.current_job()
    with job.transaction(sessions) as session:
        order = session.get_one(Order, order_id)
        order.invoice = f"R-{order_id:06}"
        job.complete_in(session, order.invoice)


@app.task(base=onejob.Task)
def book(order_id: int) -> None:
    job = onejob.current_job()
    charge(order_id, idempotency_key=job.effect_key("charge"))
    with books.begin() as session:
        if onejob.fence(session, job, "entry"):
            session.add(Entry(order_id=order_id))


api = FastAPI()


@api.post("/orders")
def place_order(customer: str) -> dict[str, object]:
    with sessions.begin() as session:
        order = Order(customer=customer)
        session.add(order)
        session.flush()
        job = invoice.submit(order.id, session=session)
        answer: dict[str, object] = {"order": order.id, "job": job.id}
    return answer  # when the transaction has been committed


@api.post("/orders/async")
async def place_order_async(customer: str) -> dict[str, object]:
    async with async_sessions.begin() as session:
        order = Order(customer=customer)
        session.add(order)
        await session.flush()
        job = await invoice.asubmit(order.id, session=session)
    return {"order": order.id, "job": job.id}
