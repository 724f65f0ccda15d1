"""The metrics of limits."""

from __future__ import annotations

from onejob.ledger.ledger import Ledger
from onejob.ledger.stats import read_metrics
from tests.limited import crowd, define


def test_waiting_jobs_are_counted_by_the_name_of_their_limit(ledger: Ledger) -> None:
    """The jobs that wait for any key of a limit are one number, and a limit without such jobs has 0."""
    assert read_metrics(ledger)["limit_waiting"] == {}
    define(ledger)
    crowd(ledger)
    crowd(ledger, "customer=7", count=5)
    assert read_metrics(ledger)["limit_waiting"] == {
        ("limit_waiting", "customer"): 4.0, ("limit_waiting", "model"): 0.0
    }  # fmt: skip
