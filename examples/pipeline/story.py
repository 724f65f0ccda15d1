"""What happens, in sentences: both customers submit their documents twice, and the cards are counted and paid."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import onejob
from examples.pipeline.provider import PRICE
from examples.pipeline.studio import SHELF, app, make_cards
from examples.pipeline.texts import document
from tests.services import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from examples.pipeline.provider import Meter

PUBLISHER, SCHOOL = "publisher", "school"
SCHOOL_DOCUMENTS = 3
PATIENCE = 120.0
"""Seconds until we stop waiting for the cards."""


class Story:
    """What happens, in order."""

    def __init__(self, documents: int, chunks: int, meter: Meter, *, limited: bool) -> None:
        volumes = [f"Volume {number}" for number in range(1, documents + 1)]
        lessons = [f"Lesson {number}" for number in range(1, SCHOOL_DOCUMENTS + 1)]
        self._titles = {PUBLISHER: volumes, SCHOOL: lessons}
        self._chunks = chunks
        self._meter = meter
        self._limited = limited
        self._client = onejob.Client(app)
        self._ids: set[str] = set()

    def play(self) -> bool:
        """Make all cards; return whether everything is as promised."""
        self.submit()
        self.tell_refusals()
        cards = self.tell_cards()
        self.tell_turns()
        costs = self.tell_costs()
        return cards and costs and not (self._limited and self._meter.refused.total())

    def submit(self) -> None:
        """Submit all documents of both, the publisher's first, and then all of them again; wait for the cards."""
        results = [self._submit(customer) for _ in range(2) for customer in self._titles]
        outcomes = Counter(result.outcome for each in results for result in each)
        counts = " and ".join(f"{len(titles)} of the {customer}" for customer, titles in self._titles.items())
        print(f"{counts}, in this order and all of them twice: {_listed(outcomes)}")
        self._ids = {result.id for each in results for result in each}
        eventually(lambda: all(result.ready() for each in results for result in each), PATIENCE)

    def _submit(self, customer: str) -> list[onejob.AsyncResult[int]]:
        with onejob.submitter(customer, own_jobs=True):
            return [
                make_cards.delay(customer, title, document(title, self._chunks)) for title in self._titles[customer]
            ]

    def tell_refusals(self) -> None:
        """Say what the provider has answered, and what it has refused."""
        reasons = ", ".join(f"{count} for too many {reason}" for reason, count in self._meter.refused.items())
        print(f"the provider answered {self._meter.answered.total()} requests and refused", end=" ")
        print(f"{self._meter.refused.total()}{f': {reasons}' if reasons else ''}")
        most = " and ".join(f"{most} of the {customer}" for customer, most in sorted(self._meter.most.items()))
        print(f"at most {most} were with it at once")

    def tell_cards(self) -> bool:
        """Say how many cards each customer has; return whether there is one for each chunk."""
        with closing(sqlite3.connect(SHELF)) as shelf:
            found = dict(shelf.execute("select customer, count(*) from cards group by customer"))
        for customer, titles in self._titles.items():
            print(f"the {customer} has {found[customer]} cards of {len(titles)} documents")
        return found == {customer: len(titles) * self._chunks for customer, titles in self._titles.items()}

    def tell_turns(self) -> None:
        """Say how far the publisher was when the school had all its cards."""
        ends: dict[str, list[datetime]] = {}
        for job in self._documents():
            if job.finished_at is not None:
                ends.setdefault(job.submitter, []).append(job.finished_at)
        last = max(ends[SCHOOL])
        ready = sum(end < last for end in ends[PUBLISHER])
        print(f"the school's {len(ends[SCHOOL])} documents were ready when {ready} of the", end=" ")
        print(f"publisher's {len(ends[PUBLISHER])} were")

    def tell_costs(self) -> bool:
        """Say what was spent, and saved; return whether the ledger and the provider's bill are equal."""
        spent = {cost.name: cost.spent for cost in self._client.costs("submitter") if cost.unit == "usd"}
        duplicates = Counter[str]()
        for job in self._documents():
            duplicates[job.submitter] += job.duplicate_count
        for customer, titles in self._titles.items():
            saved = spent[customer] / len(titles) * duplicates[customer]
            print(f"the {customer} paid ${spent[customer]:.5f}; {duplicates[customer]} duplicates saved ${saved:.5f}")
        bill = {customer: PRICE * tokens for customer, tokens in self._meter.billed.items()}
        verdict = "the same" if bill == spent else "ANOTHER SUM"
        print(f"the provider's bill is ${sum(bill.values()):.5f}, which is {verdict}")
        return bill == spent

    def _documents(self) -> list[onejob.Job]:
        """Return the jobs of the documents: the tasks that they are replaced by have jobs of their own."""
        customers = set(self._titles)
        found = {job.id: job for job in self._client.find_all(state="completed") if job.submitter in customers}
        return [found[each] for each in self._ids if each in found]


def _listed(counter: Mapping[Any, int]) -> str:
    return ", ".join(f"{number} {word}" for word, number in counter.items())
