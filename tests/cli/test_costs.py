"""`onejob costs`, and the costs of a job at the command line."""

from __future__ import annotations

from decimal import Decimal

import pytest

from onejob.ledger.ledger import Ledger
from tests.cli.command import Shell
from tests.fundamentals.shop import claimed, order


@pytest.fixture
def spent(ledger: Ledger) -> str:
    """Return the id of a job that has costs, and a duplicate, whose submitter has the name of a formula."""
    job = claimed(ledger, ledger.submit(order(1, submitter="=1+1")).job.id)
    ledger.submit(order(1))
    return ledger.add_cost(job, {"usd": Decimal("0.031"), "tokens": Decimal(812)}).id


def test_costs_are_listed(shell: Shell, spent: str) -> None:
    """The table, the JSON and the CSV of costs have the same exact amounts, and CSV executes nothing."""
    assert shell.json("costs", "--by", "submitter") == [
        {"name": "=1+1", "unit": "tokens", "spent": "812", "saved": "812"},
        {"name": "=1+1", "unit": "usd", "spent": "0.031", "saved": "0.031"},
    ]
    assert shell.lines("costs", "--by", "submitter")[0].split() == ["submitter", "unit", "spent", "saved"]
    assert shell.lines("costs", "--by", "submitter")[2].split() == ["=1+1", "usd", "0.031", "0.031"]
    assert shell.lines("costs", "--by", "submitter", "--csv") == [
        "submitter,unit,spent,saved", "'=1+1,tokens,812,812", "'=1+1,usd,0.031,0.031"
    ]  # fmt: skip
    assert shell.json("jobs", "show", spent)["costs"]["total"] == {"tokens": "812", "usd": "0.031"}


def test_days_select_costs(shell: Shell, spent: str) -> None:
    """`--since` and `--until` take days, and no other text."""
    assert spent
    assert shell.json("costs", "--since", "2999-01-01") == []
    assert shell.json("costs", "--until", "1999-01-01") == []
    refused = shell("costs", "--since", "1999")
    assert refused.exit_code == 2
    assert "is not a day, such as 2026-01-31" in refused.output
