"""A test has workers die, freeze or get a message twice at a point of a run, and the job survives as in production."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import onejob
from onejob.testing import Fault, faults, isolated, run_job
from tests.cases import for_each
from tests.testing import payments, shop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onejob.testing import Jobs


@pytest.fixture
def till(tmp_path: Path) -> Iterator[Jobs]:
    """The jobs of the payments, whose gateway is empty."""
    payments.gateway.open(tmp_path / "gateway.db")
    with isolated(payments.app) as jobs:
        yield jobs


def test_a_lost_worker_leaves_its_job_running_until_the_lease_ends(jobs: Jobs) -> None:
    """After the loss nothing is cleaned up; past the lease the job runs again, and kept steps are not repeated."""
    result = shop.plan.delay("physics", cards=1)
    jobs.lose_worker(at="step:outline")
    assert jobs.run_all() == 1
    assert (result.job.state, shop.calls) == (onejob.State.RUNNING, ["outline"])
    jobs.travel(29)
    assert jobs.run_all() == 0
    jobs.travel(2)
    assert jobs.run_all() == 1
    assert result.get(timeout=0)["attempt"] == 2
    assert shop.calls == ["outline", "cards"]


@for_each("at", ["before_start", "start", "before_complete", "after_complete"])
def test_a_worker_is_lost_at_any_transition(jobs: Jobs, at: str) -> None:
    """Before the claim, after it, and on either side of the completion, the job ends with its result."""
    result = shop.double.delay(4)
    jobs.lose_worker(at, shop.double)
    jobs.run_all()
    assert (result.job.state is onejob.State.COMPLETED) is (at == "after_complete")
    jobs.recover()
    assert result.get(timeout=0) == 8


def test_a_body_that_swallows_the_loss_writes_nothing_more(till: Jobs) -> None:
    """A lost run that goes on, as it catches everything, cannot complete its job."""
    result = payments.swallow.delay("ann")
    till.lose_worker("before_step:charge")
    till.run_all()
    assert result.job.state is onejob.State.RUNNING
    till.recover()
    assert result.get(timeout=0) == "charged"


def test_a_late_worker_is_refused(jobs: Jobs) -> None:
    """A frozen run goes on after another one has completed the job: it has no effect on the job, nor on its steps."""
    result = shop.plan.delay("physics", cards=1)
    jobs.freeze(at="step:outline")
    jobs.run_all()
    assert result.get(timeout=0)["attempt"] == 2
    assert [run.attempt for run in jobs.ledger.runs] == [1, 2]
    assert shop.calls == ["outline", "cards"]


def test_a_job_that_loses_each_worker_becomes_a_dead_letter(jobs: Jobs) -> None:
    """At the crash limit the job fails, as in production."""
    result = shop.double.delay(4)
    for _ in range(3):
        jobs.lose_worker("start")
        jobs.run_all()
        jobs.travel(31)
    jobs.run_all()
    assert (result.job.state, result.job.crashes) == (onejob.State.FAILED, 3)


def test_run_job_shows_a_lost_run(jobs: Jobs) -> None:
    """A run of `run_job` that loses its worker leaves a running job and the steps that it has kept."""
    jobs.lose_worker("step:outline")
    run = run_job(shop.plan, "physics")
    assert (run.state, list(run.steps)) == (onejob.State.RUNNING, ["outline"])


@for_each("at, task, error, message", [
    ("step:outlin", None, AssertionError, r"lose_worker\(at='after_step:outlin'\).*after_step:outline"),
    ("somewhere", None, onejob.ConfigurationError, "'somewhere' is no point of a run"),
    ("start", shop.double, AssertionError, r"task=tests\.testing\.shop\.double\)"),
])  # fmt: skip
def test_a_fault_that_does_not_happen_fails_the_test(at: str, task: Any, error: Any, message: str) -> None:
    """A misspelled step, or a fault of a task that never ran, is no test that passes: the error names the points."""
    with pytest.raises(error, match=message):
        _lose(at, task)


def _lose(at: str, task: Any) -> None:
    with isolated(shop.app) as jobs:
        jobs.lose_worker(at, task)
        shop.plan.delay("physics")
        jobs.run_all()


@pytest.mark.parametrize("fault", {each.kind: each for each in faults(steps=["charge"], progress=1)}.values())
def test_each_fault_is_a_test_of_its_own(fault: Fault, till: Jobs) -> None:
    """With `faults`, each fault is a parametrized test, here one of each kind, and its effects are asserted."""
    job = till.survive(fault, payments.charge_safely, "ann")
    assert job.result == "charged ann"
    assert payments.gateway.count() == 1


def test_points_that_were_not_declared_fail(till: Jobs) -> None:
    """A declared point that no run reaches, and a point of the run that was not declared, are errors."""
    missing = next(each for each in faults(steps=["refund"]) if str(each) == "lost at before_step:refund")
    with pytest.raises(AssertionError, match=r"no run has reached this point.*before_step:charge"):
        till.survive(missing, payments.charge_safely, "ann")
    fault: Any = faults(steps=["charge"])[0]
    with pytest.raises(AssertionError, match="not told: before_progress:1, after_progress:1"):
        till.survive(fault, payments.charge_safely, "ann")
