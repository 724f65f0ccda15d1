"""The shop: its Celery app, the job that charges an order, and how an order is placed."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import sessionmaker

import onejob
from examples.payments.books import REFUSED, Order, book, settle
from examples.payments.cards import DeclinedError, NoAnswerError, take_money

POSTGRES = os.environ.get("PAYMENTS_POSTGRES", "postgresql://localhost/postgres")
REDIS = os.environ.get("PAYMENTS_REDIS", "redis://localhost:6379/0")
GATEWAY = os.environ.get("PAYMENTS_GATEWAY", "")
SCHEMA = os.environ.get("PAYMENTS_SCHEMA", "payments")

engine = create_engine(
    POSTGRES.replace("postgresql://", "postgresql+psycopg://"), connect_args={"options": f"-csearch_path={SCHEMA}"}
)
Session = sessionmaker(engine)

app = Celery("payments", broker=REDIS)
app.conf.update(
    onejob_store=POSTGRES,  # the ledger of jobs lives where the books live
    onejob_namespace=f"{SCHEMA}_jobs",
    onejob_lease=3,
    onejob_crash_limit=100,  # workers are killed on purpose here: no job is to blame
    task_default_queue=SCHEMA,
    broker_transport_options={"global_keyprefix": f"{SCHEMA}:"},
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
)


@app.task(
    base=onejob.Task,
    name="charge",
    unique_on=["order_id"],
    autoretry_for=(NoAnswerError, OperationalError),
    retry_backoff=1,
    retry_backoff_max=2,
    max_retries=20,
    throws=(DeclinedError,),
)
def charge(order_id: int) -> dict[str, Any]:
    """Take the money for an order, and book it."""
    job = onejob.current_job()
    with Session() as session:
        order = session.get_one(Order, order_id)
    if order.job != job.id:  # a click after the end of the order's own job
        return {"order": order_id, "see": order.job}
    try:
        charge_id = take_money(GATEWAY, job.effect_key("charge"), order_id, order.cents, order.card)
    except DeclinedError:
        with Session.begin() as session:
            settle(session, order, REFUSED)
        raise
    with job.transaction(Session) as session:
        book(session, order, charge_id)
        job.complete_in(session, {"order": order_id, "charge": charge_id})
    return {}  # not looked at: the result was committed with the books


def place(customer: str, cents: int, card: str) -> tuple[onejob.AsyncResult, onejob.AsyncResult]:
    """Place an order together with its job, and click once more. Returns the answers to both clicks."""
    with Session.begin() as session:
        order = Order(customer=customer, cents=cents, card=card)
        session.add(order)
        session.flush()  # now the order has a number
        first = charge.submit(order.id, session=session)
        order.job, number = first.id, order.id
    return first, charge.delay(number)
