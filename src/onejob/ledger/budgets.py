"""Budgets: what the submitters have spent today decides whether they may submit new jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from onejob.jobs.costs import Label, day_of, exact_sum
from onejob.jobs.durations import DAY
from onejob.jobs.model import Submission
from onejob.ledger.reader import JobReader


@dataclass(frozen=True, slots=True)
class SpentToday:
    """The amounts that the jobs of each submitter have cost today (UTC)."""

    amounts: Mapping[tuple[str, str], Decimal]
    """The amounts by submitter and unit."""
    seconds_left: float
    """Seconds until the day ends, on the store's clock."""


def read_spent(ledger: JobReader) -> SpentToday:
    """Return the amounts that the jobs of each submitter have cost today."""
    now = ledger.read_clock()
    today, amounts = day_of(now), defaultdict[tuple[str, str], Decimal](Decimal)
    for each in ledger.store.cost_sums(first=today, last=today, label=Label.SUBMITTER):
        who = each.key.name, each.key.unit
        amounts[who] = exact_sum(amounts[who], each.spent)
    return SpentToday(amounts, (today + 1) * DAY - now)


def charge_budgets(spent: SpentToday, submission: Submission) -> Submission:
    """Return a submission that is charged with a spent budget: so it gets the answer of a duplicate, and no new job."""
    for budget in submission.budgets:
        if spent.amounts.get((submission.submitter, budget.unit), Decimal(0)) >= budget.amount:
            charge = budget.spent_until(spent.seconds_left, submission.submitter)
            return replace(submission, charges=(charge, *submission.charges))
    return submission
