"""One day of the shop: customers order, the gateway fails, workers are killed, and the books are balanced."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

import onejob
from examples.payments.audit import balance, live_jobs
from examples.payments.books import PLACED, SHOP, Account, Base, Order
from examples.payments.gateway import BROKEN, BUSY, CUT, DECLINED_CARD, SLOW
from examples.payments.shop import Session, app, charge, engine, place
from tests.services import eventually

if TYPE_CHECKING:
    from examples.payments.gateway import Record
    from examples.payments.workers import Workers

CUSTOMERS = tuple("Ada Blaise Carl Dorothea Emmy Fermat Grace Hypatia".split())
PATIENCE = 90.0
"""Seconds until we stop waiting for the jobs' ends."""


class Day:
    """What happens, in order."""

    def __init__(self, orders: int, seed: int, workers: Workers, record: Record) -> None:
        self._orders = orders
        self._dice = random.Random(seed)
        self._workers = workers
        self._record = record
        self._client = onejob.Client(app)

    def open(self) -> None:
        """Make the books."""
        Base.metadata.create_all(engine)
        with Session.begin() as session:
            session.add_all(Account(name=name) for name in (SHOP, *CUSTOMERS))

    def play(self, kills: int) -> bool:
        """Play the day; return whether the books balance at its end."""
        self.take_orders()
        self.kill_workers(kills)
        self.await_end()
        self.click_late()
        self.tell_trouble()
        return self.balance()

    def take_orders(self) -> None:
        """Place all orders, each with two clicks."""
        outcomes: Counter[onejob.Outcome | None] = Counter()
        for _ in range(self._orders):
            card = DECLINED_CARD if self._dice.random() < 0.1 else "4242-4242"
            clicks = place(self._dice.choice(CUSTOMERS), self._dice.randrange(500, 20_000), card)
            outcomes.update(click.outcome for click in clicks)
        print(f"{self._orders} orders, each clicked twice: {_on_canvas_dispatched(outcomes)}")

    def kill_workers(self, kills: int) -> None:
        """Kill workers between charge and book, spread over the day."""
        for number in range(kills):
            found = self._await_gap(self._orders * number // kills)
            if found is None:
                print(f"no chance for more than {number} kills: all jobs have ended")
                return
            order, node = found
            self._workers.kill(node)
            with Session() as session:
                booked = session.get_one(Order, order).state != PLACED
            point = "just after it had been booked" if booked else "its money is taken, and not in the books"
            print(f"killed {node} with SIGKILL while it charged order {order}: {point}")

    def await_end(self) -> None:
        """Wait until all jobs have ended."""
        try:
            eventually(lambda: not live_jobs(self._client), PATIENCE)
        except AssertionError:
            print(f"jobs are still live after {PATIENCE:g} s")

    def click_late(self) -> None:
        """Click once more for each order, when its job has ended: these clicks are new jobs."""
        with Session() as session:
            orders = session.scalars(select(Order.id)).all()
        outcomes = Counter(charge.delay(order).outcome for order in orders)
        print(f"all jobs have ended, and everybody clicks once more: {_on_canvas_dispatched(outcomes)}")
        self.await_end()

    def tell_trouble(self) -> None:
        """Say what went wrong on the way."""
        with self._record.open() as database:
            faults = dict(database.execute("select fault, count(*) from visits group by fault").fetchall())
        print(
            f"the gateway answered {sum(faults.values())} times: {faults.get(BUSY, 0)} times 503, "
            f"{faults.get(BROKEN, 0)} times 500 with the money taken, {faults.get(CUT, 0)} times not at all, "
            f"{faults.get(SLOW, 0)} times late"
        )
        jobs = [*self._client.find_all()]
        states = Counter(job.state for job in jobs)
        print(
            f"{len(jobs)} jobs ({_on_canvas_dispatched(states)}) took {sum(job.attempt for job in jobs)} runs; "
            f"{sum(job.crashes for job in jobs)} were lost with their workers"
        )

    def balance(self) -> bool:
        """Print the balance; return whether it is right."""
        with Session() as session:
            lines = balance(session, self._record, self._client, self._orders)
        print("", *lines, "", sep="\n")
        right = all(line.balances for line in lines)
        print("The books balance." if right else "THE BOOKS DO NOT BALANCE.")
        return right

    # --- where to strike --------------------------------------------------------------------------------------------

    def _await_gap(self, settled: int) -> tuple[int, str] | None:
        """Wait for a run between charge and book, once so many orders are settled; None when there is none left."""
        found: list[tuple[int, str]] = []

        def struck() -> bool:
            found[:] = self._gaps() if self._settled() >= settled else []
            return bool(found) or not live_jobs(self._client)

        eventually(struck, PATIENCE)
        return self._dice.choice(found) if found else None

    def _settled(self) -> int:
        with Session() as session:
            return session.scalar(select(func.count()).select_from(Order).where(Order.state != PLACED)) or 0

    def _gaps(self) -> list[tuple[int, str]]:
        """Return order and node of each run whose money is taken and not booked."""
        with self._record.open() as database:
            taken = [order for (order,) in database.execute("select order_id from charges where taken")]
        runs = {
            job.id: node for node in self._workers.nodes for job in self._client.find_all(state="running", worker=node)
        }
        with Session() as session:
            unbooked = select(Order.id, Order.job).where(Order.state == PLACED, Order.id.in_(taken))
            return [(order, runs[job]) for order, job in session.execute(unbooked) if job in runs]


def _on_canvas_dispatched(counter: Counter[Any]) -> str:
    return ", ".join(f"{number} {word}" for word, number in counter.most_common())
