"""The app of the HTTP tests: built by a test in its own process, or from the environment in a server process."""

from __future__ import annotations

import os
from datetime import date
from typing import Any

import celery
from pydantic import BaseModel

import onejob
from tests.intervals import set_intervals

STORE = "ONEJOB_TEST_STORE"
BROKER = "ONEJOB_TEST_BROKER"


class Line(BaseModel):
    """One line of an order."""

    sku: str
    count: int = 1


def build(store: str, broker: str = "memory://", **settings: Any) -> celery.Celery:
    app = celery.Celery("shop", broker=broker, set_as_current=False)
    app.conf.update(onejob_store=store, **settings)
    set_intervals(app, sweep=0.2)
    task: Any = app.task  # the published types know no task that a base class gives options
    for name, body in BODIES.items():
        options = OPTIONS.get(name, {})
        task(name=f"shop.{name}", base=onejob.Task, shared=False, expose=name != "hidden", **options)(body)
    return app


def invoice(order_id: int, note: str = "") -> str:
    """Write the invoice of an order."""
    return f"invoice {order_id}{note}"


def typed(day: date, lines: list[Line], share: float = 0.5) -> Any:
    """Return the arguments."""
    return [day, lines, share]


def anything(value, *, json: bool = False):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - a task without hints
    """Return the arguments."""
    return [value, json]


def picky(user: dict[str, Any]) -> None: ...


def hidden(order_id: int) -> None: ...


def strict(order_id: int) -> None: ...


def newest(document: int, text: str) -> None: ...


def again(customer: int) -> None: ...


def paid(order_id: int) -> None: ...


BODIES: dict[str, Any] = {
    each.__name__: each for each in (invoice, typed, anything, picky, hidden, strict, newest, again, paid)
}
OPTIONS: dict[str, dict[str, Any]] = {
    "invoice": {"unique_on": ["order_id"]}, "picky": {"unique_on": lambda user: user["id"].lower()},
    "strict": {"on_duplicate": "raise"}, "newest": {"unique_on": ["document"], "on_duplicate": "replace"},
    "again": {"on_duplicate": "run_again"}, "paid": {"requires_key": True},
}  # fmt: skip

if STORE in os.environ:
    app = build(os.environ[STORE], os.environ[BROKER])
