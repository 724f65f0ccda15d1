"""Costs that the bodies of real workers report: they outlive a crash, and duplicates save them."""

from decimal import Decimal

import onejob
from onejob import State
from onejob.jobs.costs import CostsBy, JobCosts
from onejob.ledger.costs import read_costs
from tests.celery.harness import PATIENCE, Cluster, await_, on_every_store


def sums(cluster: Cluster) -> dict[str, tuple[Decimal, Decimal]]:
    """Return what was spent and saved, by unit."""
    return {each.unit: (each.spent, each.saved) for each in read_costs(cluster.ledger, CostsBy.TASK)}


@on_every_store("cluster")
def test_a_crash_between_two_costs_loses_none(cluster: Cluster) -> None:
    """What a run has spent before its process was killed is kept, and the next attempt has costs of its own."""
    cluster.worker("-c", "1")
    result = cluster.play.delay("spent", ["cost:0.5>cost:0.125>kill>cost:9", "cost:0.25"])
    assert result.get(PATIENCE) is None
    job = cluster.assert_ran(result, State.COMPLETED, "spent", 2)
    costs = JobCosts.of(job.costs)
    assert costs.attempts == {1: {"tokens": 2, "usd": Decimal("0.625")}, 2: {"tokens": 1, "usd": Decimal("0.25")}}
    assert sums(cluster) == {"tokens": (Decimal(3), Decimal(0)), "usd": (Decimal("0.875"), Decimal(0))}
    cluster.assert_quiet()


def test_duplicates_save_what_is_spent_before_and_after_them(cluster: Cluster) -> None:
    """Each duplicate of a running job saves its whole cost, once."""
    cluster.worker("-c", "1")
    result = cluster.begin("saved", ["cost:0.5>hold>cost:0.25"])
    await_(lambda: JobCosts.of(cluster.job(result).costs).total)
    assert {cluster.play.delay("saved", []).outcome for _ in range(3)} == {onejob.Outcome.ATTACHED}
    cluster.open("saved")
    assert result.get(PATIENCE) is None
    await_(lambda: sums(cluster)["usd"] == (Decimal("0.75"), 3 * Decimal("0.75")))
    cluster.assert_quiet()


def test_a_float_is_no_cost(cluster: Cluster) -> None:
    """A body that reports no exact amount fails with an error that says what to write, and has no cost."""
    cluster.worker("-c", "1")
    result = cluster.play.delay("inexact", ["cost:abc"])
    await_(lambda: cluster.job(result).state is State.FAILED)
    assert "write a decimal number" in cluster.job(result).reason
    assert cluster.job(result).costs is None
