"""The costs of runs, and their sums by day: SQLite has no decimal numbers, so that this module adds them."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from onejob.jobs.costs import (
    COST_DAYS,
    NOTHING,
    CostAnswer,
    CostKey,
    CostWrite,
    SpentAndSaved,
    amount_text,
    day_of,
    day_text,
    exact_sum,
    times,
)
from onejob.stores.protocol import OTHER_SUBMITTERS, SUBMITTER_LIMIT
from onejob.stores.sqlite.transaction import Transaction


def add_cost(tx: Transaction, write: CostWrite, *, sources: str, saved_by: str) -> CostAnswer | None:
    """Compare and set the costs of a run, and add to the sums of today; None if the token is stale."""
    run = {"job_id": write.job_id, "token": write.token, "request_id": write.request_id, "sources": sources}
    if not tx.rows("set_costs", expected=write.expected, costs=write.costs, **run):
        found = tx.rows("find_costs", **run)
        return CostAnswer(applied=bool(found[0]["repeated"]), costs=found[0]["costs"]) if found else None
    (prevented,) = tx.rows("count_prevented", job_id=write.job_id, saved_by=saved_by)
    number = prevented["number"]
    add_to_sums(tx, {key: (amount, times(amount, number)) for key, amount in write.spent.items()})
    return CostAnswer(applied=True, costs=write.costs, duplicates=number)


def add_to_sums(tx: Transaction, amounts: Mapping[CostKey, SpentAndSaved]) -> None:
    """Add amounts, spent and saved, to the sums of today; delete those of days that are too old."""
    today = day_of(tx.now)
    tx.rows("delete_old_costs", oldest=day_text(today - COST_DAYS))
    names: dict[tuple[str, str], set[str]] = {}
    for key, amount in sorted(amounts.items(), key=lambda item: item[0].name):
        group: dict[str, Any] = {"day": day_text(today), "task": key.task, "label": key.label.value}
        known = names.get((key.task, key.label))
        if known is None:
            known = {row["name"] for row in tx.rows("find_cost_names", **group)}
            names[key.task, key.label] = known
        name = key.name if key.name in known or len(known) < SUBMITTER_LIMIT else OTHER_SUBMITTERS
        known.add(name)
        _add(tx, group | {"name": name, "unit": key.unit}, amount)


def _add(tx: Transaction, key: Mapping[str, Any], amount: SpentAndSaved) -> None:
    rows = tx.rows("get_cost_sum", **key)
    before = (Decimal(rows[0]["spent"]), Decimal(rows[0]["saved"])) if rows else NOTHING
    spent, saved = (amount_text(exact_sum(*pair)) for pair in zip(before, amount, strict=True))
    tx.rows("put_cost_sum", spent=spent, saved=saved, **key)
