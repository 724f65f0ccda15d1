"""The amounts that jobs have spent and duplicates have saved, added up by task, submitter, tag or day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from onejob.jobs.costs import COST_DAYS, NOTHING, CostsBy, CostSum, amount_text, day_number, day_of, exact_sum
from onejob.ledger.reader import JobReader
from onejob.stores.protocol import OTHER_SUBMITTERS

DAYS = 30
"""How many days are added up unless the first day is given: today and those before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The amounts that the jobs of a group have spent and their duplicates have saved, in one unit."""

    name: str
    """The task, the submitter ("" if unknown), the tag, or the day (UTC) as `2026-11-28`."""
    unit: str
    spent: Decimal
    """The exact sum of the amounts that runs have reported in these days."""
    saved: Decimal
    """The exact cost of the job that answered, for each duplicate that would have run without deduplication."""


def read_costs(
    ledger: JobReader, by: CostsBy, *, since: date | None = None, until: date | None = None, task: str | None = None,
    limit: int | None = None,
) -> list[Cost]:  # fmt: skip
    """Return the costs from one day to another, by unit, and in it the largest first; days the newest first.

    Days are in UTC, and those of the store's clock; without `since` the last `DAYS` days, and `COST_DAYS` at most.
    `task`: only of this task. `limit`: at most so many, the first ones of each unit. Each tag of a job has its whole
    cost, so that the costs of tags do not add up. A reader that is limited to the jobs of a submitter gets none by tag,
    and `Visibility.predicate` is ignored.
    """
    today = day_of(ledger.read_clock())
    last = today if until is None else day_number(until.isoformat())
    first = last - DAYS + 1 if since is None else day_number(since.isoformat())
    first, last = max(first, today - COST_DAYS), min(last, today)
    sums = ledger.store.cost_sums(first=first, last=last, label=by.label) if first <= last else []
    found = add_up((each for each in sums if task in {None, each.key.task} and _is_visible(ledger, by, each)), by)
    return found if limit is None else _limited(found, limit)


def _is_visible(ledger: JobReader, by: CostsBy, found: CostSum) -> bool:
    visibility, key = ledger.visibility, found.key
    if visibility.tasks is not None and key.task not in visibility.tasks:
        return False
    if visibility.submitter is None:
        return True
    # A submitter of the name of all others would see what these have spent.
    return by is not CostsBy.TAG and key.name == visibility.submitter != OTHER_SUBMITTERS


def add_up(sums: Iterable[CostSum], by: CostsBy) -> list[Cost]:
    """Return sums of days added up by their groups, sorted as `read_costs` says."""
    totals: defaultdict[tuple[str, str], tuple[Decimal, Decimal]] = defaultdict(lambda: NOTHING)
    for each in sums:
        name = {CostsBy.TASK: each.key.task, CostsBy.DAY: each.day}.get(by, each.key.name)
        spent, saved = totals[name, each.key.unit]
        totals[name, each.key.unit] = exact_sum(spent, each.spent), exact_sum(saved, each.saved)
    found = [
        Cost(name=name, unit=unit, spent=Decimal(amount_text(spent)), saved=Decimal(amount_text(saved)))
        for (name, unit), (spent, saved) in totals.items()
    ]
    found.sort(key=lambda cost: cost.name, reverse=by is CostsBy.DAY)
    if by is not CostsBy.DAY:
        found.sort(key=lambda cost: (cost.spent, cost.saved), reverse=True)
    found.sort(key=lambda cost: cost.unit)
    return found


def _limited(found: Iterable[Cost], limit: int) -> list[Cost]:
    """Return so many of the costs, in their order: the first of each unit before the second ones."""
    ranks: defaultdict[str, int] = defaultdict(int)
    ranked = []
    for each in found:
        ranks[each.unit] += 1
        ranked.append((ranks[each.unit], each.unit, each))
    kept = {rank_and_unit[:2] for rank_and_unit in sorted(ranked, key=lambda item: item[:2])[:limit]}
    return [each for rank, unit, each in ranked if (rank, unit) in kept]


def cost_to_dict(cost: Cost) -> dict[str, Any]:
    """Return a cost as JSON values; amounts are texts, since a number of JSON need not be exact."""
    return {
        "name": cost.name, "unit": cost.unit, "spent": amount_text(cost.spent), "saved": amount_text(cost.saved)
    }  # fmt: skip


def amounts_text(amounts: Iterable[tuple[str, Decimal]]) -> str:
    """Return amounts by unit as one text: `0.031 usd, 812 tokens`."""
    return ", ".join(f"{amount_text(amount)} {unit}" for unit, amount in amounts)


def saved_by_name(found: Iterable[Cost]) -> dict[str, dict[str, Decimal]]:
    """Return the saved amounts by the name of the group and the unit, without zeros."""
    by_name: defaultdict[str, dict[str, Decimal]] = defaultdict(dict)
    for each in found:
        if each.saved:
            by_name[each.name][each.unit] = each.saved
    return by_name
