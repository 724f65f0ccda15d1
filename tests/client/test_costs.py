"""The client has the costs of jobs, and their sums."""

from __future__ import annotations

from decimal import Decimal

import pytest

import onejob
from onejob.ledger.ledger import Ledger
from tests.conftest import every_store
from tests.fundamentals.shop import claimed, order


@every_store
def test_costs_are_listed(client: onejob.Client, ledger: Ledger) -> None:
    """A job has its costs by attempt and in total as exact texts, and the sums are Decimals."""
    assert client.costs() == []
    job = claimed(ledger, ledger.submit(order(1, submitter="anna")).job.id)
    assert client.get(job.id).costs is None
    ledger.submit(order(1))
    ledger.add_cost(job, {"usd": Decimal("0.0310"), "tokens": Decimal(812)})
    costs = client.get(job.id).costs
    assert costs is not None
    assert costs.total == {"tokens": "812", "usd": "0.031"}
    assert costs.attempts == {1: costs.total}
    tokens, usd = client.costs("submitter")
    assert (tokens.name, tokens.unit, tokens.spent, tokens.saved) == ("anna", "tokens", Decimal(812), Decimal(812))
    assert (usd.name, usd.unit, usd.spent, usd.saved) == ("anna", "usd", Decimal("0.031"), Decimal("0.031"))
    assert [str(each) for each in (tokens.spent, tokens.saved, usd.spent)] == ["812", "812", "0.031"]


def test_other_groups_are_refused(client: onejob.Client) -> None:
    """Costs are added up by one of four groups."""
    with pytest.raises(ValueError, match="'queue' is no group of costs: write one of task, submitter, tag, day"):
        client.costs("queue")  # type: ignore[arg-type]
