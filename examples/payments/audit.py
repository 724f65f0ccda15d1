"""The end of the day: the shop's books, the gateway's record and the ledger of jobs are compared, cent by cent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import distinct, func, select

from examples.payments.books import PAID, REFUSED, SHOP, Account, Charge, Entry, Order
from examples.payments.gateway import DECLINED_CARD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.orm import Session

    import onejob
    from examples.payments.gateway import Record


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison: all values have to be equal."""

    name: str
    values: tuple[int, ...]
    money: bool = False

    @property
    def balances(self) -> bool:
        """Whether all values are equal."""
        return len(set(self.values)) == 1

    def __str__(self) -> str:
        values = [f"{value / 100:.2f}" if self.money else str(value) for value in self.values]
        return f"  {self.name:<58} {' = '.join(values) if self.balances else ' | '.join(values) + '   WRONG'}"


def live_jobs(client: onejob.Client) -> int:
    """Count the jobs that have not ended."""
    return client.count(state=["queued", "running", "retrying"]).total


def balance(session: Session, record: Record, client: onejob.Client, placed: int) -> list[Line]:
    """Compare everything with everything."""
    return [*_counts(session, record, placed), *_money(session, record), Line("jobs left live", (live_jobs(client), 0))]


def _counts(session: Session, record: Record, placed: int) -> Iterator[Line]:
    paid, refused = (_count(session, Order, Order.state == state) for state in (PAID, REFUSED))
    declined = _count(session, Order, Order.card == DECLINED_CARD)
    yield Line("orders placed = paid + refused", (placed, paid + refused))
    yield Line("orders with a bad card = refused", (declined, refused))
    taken, orders = _at(record, "select count(*), count(distinct order_id) from charges where taken")
    yield Line("orders paid = charged at the gateway = charges there", (paid, orders, taken))
    booked = session.scalar(select(func.count(distinct(Charge.order_id)))) or 0
    yield Line("orders paid = charged in the books = charges there", (paid, booked, _count(session, Charge)))


def _money(session: Session, record: Record) -> Iterator[Line]:
    taken = _at(record, "select coalesce(sum(cents), 0) from charges where taken")[0]
    charged, entered, all_entries, all_balances, balance = (
        session.scalar(query) or 0
        for query in (
            select(func.sum(Charge.cents)),
            select(func.sum(Entry.cents)).where(Entry.account == SHOP),
            select(func.sum(Entry.cents)),
            select(func.sum(Account.cents)),
            select(Account.cents).where(Account.name == SHOP),
        )
    )
    yield Line(
        "money at the gateway = charges = entries = shop's balance", (taken, charged, entered, balance), money=True
    )
    yield Line("all entries = all balances = nothing", (all_entries, all_balances, 0), money=True)


def _count(session: Session, table: type[Order | Charge], *conditions: object) -> int:
    return session.scalar(select(func.count()).select_from(table).where(*conditions)) or 0  # type: ignore[arg-type]


def _at(record: Record, query: str) -> tuple[int, ...]:
    with record.open() as database:
        return tuple(database.execute(query).fetchone())
