"""The shop's books: accounts, orders, charges, and two ledger entries for each charge, in PostgreSQL.

No unique constraint keeps an order from being booked twice. A real shop has one; here it would hide what is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import ForeignKey, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

SHOP = "shop"
PLACED, PAID, REFUSED = "placed", "paid", "refused"


class Base(DeclarativeBase):
    """What the tables have in common."""


class Account(Base):
    """An account. The balance is the sum of the account's entries, stored to be read fast."""

    __tablename__ = "accounts"
    name: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int] = mapped_column(default=0)


class Order(Base):
    """An order of a customer, and the job that charges the card."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(ForeignKey("accounts.name"))
    cents: Mapped[int]
    card: Mapped[str]
    state: Mapped[str] = mapped_column(default=PLACED)
    job: Mapped[str] = mapped_column(default="")


class Charge(Base):
    """A charge of the gateway for an order, with the gateway's id of it."""

    __tablename__ = "charges"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))
    charge_id: Mapped[str]
    cents: Mapped[int]


class Entry(Base):
    """One side of a charge: cents added to an account, or taken from it."""

    __tablename__ = "ledger_entries"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))
    account: Mapped[str] = mapped_column(ForeignKey("accounts.name"))
    cents: Mapped[int]


def book(session: Session, order: Order, charge_id: str) -> None:
    """Write a charge into the books: the charge, both entries, both balances, the order's state."""
    session.add(Charge(order_id=order.id, charge_id=charge_id, cents=order.cents))
    _post(session, order, order.customer, -order.cents)
    _post(session, order, SHOP, order.cents)  # the shop is last in each transaction, so there is no deadlock
    settle(session, order, PAID)


def settle(session: Session, order: Order, state: str) -> None:
    """Give a placed order its final state; an order that has one keeps it."""
    session.execute(update(Order).where(Order.id == order.id, Order.state == PLACED).values(state=state))


def _post(session: Session, order: Order, account: str, cents: int) -> None:
    session.add(Entry(order_id=order.id, account=account, cents=cents))
    session.execute(update(Account).where(Account.name == account).values(cents=Account.cents + cents))
