"""A payment as a user writes it, with a gateway whose charges outlive any process: right and wrong in each way."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy
from celery import Celery
from sqlalchemy.orm import sessionmaker

import onejob

app = Celery("payments", broker="redis://broker.invalid:1/0", set_as_current=False)


class Gateway:
    """A third party: it charges for each call, but once for each idempotency key."""

    def __init__(self) -> None:
        self.path = Path()

    def open(self, path: Path) -> None:
        self.path = path
        sessions.configure(bind=sqlalchemy.create_engine(f"sqlite:///{path}", poolclass=sqlalchemy.NullPool))
        self._execute("create table if not exists charges (customer text, key text unique)")
        self._execute("delete from charges")

    def charge(self, customer: str, key: str | None = None) -> str:
        self._execute("insert or ignore into charges values (?, ?)", customer, key)
        return f"charged {customer}"

    def count(self) -> int:
        return int(self._execute("select count(*) from charges")[0][0])

    def _execute(self, statement: str, *values: str | None) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(statement, values).fetchall()


gateway = Gateway()
sessions = sessionmaker()
"""Sessions on the database of the gateway, for a shop that has its payments in a table of its own."""
memory: list[str] = []


@app.task(shared=False, base=onejob.Task)
def charge_bare(customer: str) -> str:
    job = onejob.current_job()
    job.progress(0, 1)
    charged = gateway.charge(customer)
    job.progress(1, 1)
    return charged


@app.task(shared=False, base=onejob.Task)
def charge_step(customer: str) -> str:
    return str(onejob.current_job().step("charge", gateway.charge, customer))


@app.task(shared=False, base=onejob.Task)
def charge_safely(customer: str) -> str:
    job = onejob.current_job()
    job.progress(0, 1)
    return str(job.step("charge", gateway.charge, customer, key=job.effect_key("charge")))


@app.task(shared=False, base=onejob.Task)
def charge_in_finally(customer: str) -> None:
    job = onejob.current_job()
    try:
        job.progress(0, 1)
    finally:
        gateway.charge(customer, job.effect_key("charge") if job.attempt > 1 else f"cleanup {job.id}")


@app.task(shared=False, base=onejob.Task)
def charge_in_memory(customer: str) -> None:
    job = onejob.current_job()
    job.step("charge", remember, job.effect_key("charge"))


def remember(key: str) -> None:
    if key not in memory:
        memory.append(key)


@app.task(shared=False, base=onejob.Task)
def swallow(customer: str) -> str:
    try:
        return str(onejob.current_job().step("charge", gateway.charge, customer, key="only"))
    except BaseException:  # noqa: BLE001 - what a body must not do, and some do
        return "swallowed"


@app.task(shared=False, base=onejob.Task, bind=True)
def charge_with_retry(self: Any, customer: str) -> str:
    job = onejob.current_job()
    charged = job.step("charge", gateway.charge, customer, key=job.effect_key("charge"))
    if self.request.retries == 0:
        raise self.retry(countdown=60)
    return str(charged)


@app.task(shared=False, base=onejob.Task)
def charge_in_transaction(customer: str, end: str = "commit") -> str:
    job = onejob.current_job()
    with job.transaction(sessions) as session:
        session.execute(sqlalchemy.text("insert into charges values (:customer, null)"), {"customer": customer})
        job.complete_in(session, f"charged {customer}")
        if end == "raise":
            raise ValueError(customer)
        if end == "twice":
            job.complete_in(session, {})
    return "ignored"


@app.task(shared=False, base=onejob.Task, unique_on=["customer"], on_duplicate="replace")
def remind(customer: str, note: str) -> str:
    return f"{customer}: {note}"
