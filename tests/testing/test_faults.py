"""Workers die, freeze or get a message twice at a point of a run: at one point, or at all of them by a crash matrix."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import onejob
from onejob.testing import Fault, Jobs, crash_matrix, faults, isolated, run_job
from onejob.testing import fault as faults_module
from tests.cases import for_each
from tests.testing import payments, shop

ENDS = ("before_start", "start", "before_complete", "after_complete")


# --- one fault -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "at", "effects"), [
    *((payments.charge_in_transaction, at, int(at == "after_complete")) for at in ENDS),
    *((payments.charge_safely, at, int("complete" in at)) for at in ENDS),
    (payments.charge_safely, "before_step:charge", 1), (payments.charge_safely, "after_step:charge", 1),
    (payments.swallow, "before_step:charge", 1),
])  # fmt: skip
def test_what_a_lost_worker_has_done_is_not_repeated(till: Jobs, task: Any, at: str, effects: int) -> None:
    """A lost run ends nothing, though its body catches everything; after it the job ends with its effect once."""
    result = task.delay("ann")
    till.lose_worker(at, task)
    till.run_all()
    assert payments.gateway.count() == effects
    assert (result.job.state is onejob.State.COMPLETED) is (at == "after_complete")
    till.recover()
    assert result.get(timeout=0) == "charged ann"
    assert payments.gateway.count() == 1


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


def test_a_job_that_never_ends_is_named(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """`recover` raises an error that names a job which has not ended after all its travels."""
    monkeypatch.setattr(faults_module, "RECOVERIES", 1)
    result = shop.fetch.delay("https://example.com")
    with pytest.raises(onejob.OneJobError, match=f"job {result.id} of .*fetch is retrying"):
        jobs.recover()
    monkeypatch.undo()
    jobs.recover()
    assert result.get(timeout=0) == 2


def test_a_late_worker_is_refused(jobs: Jobs) -> None:
    """A frozen run goes on after another one has completed the job: it has no effect on the job, nor on its steps."""
    result = shop.plan.delay("physics", cards=1)
    jobs.freeze(at="step:outline")
    jobs.run_all()
    assert result.get(timeout=0)["attempt"] == 2
    assert [run.attempt for run in jobs.ledger.runs] == [1, 2]
    assert shop.calls == ["outline", "cards"]


def test_run_job_shows_a_lost_run(jobs: Jobs) -> None:
    """A `run_job` that loses its worker leaves a running job with its kept steps, or a queued one before its start."""
    jobs.lose_worker("step:outline")
    run = run_job(shop.plan, "physics")
    assert (run.state, list(run.steps)) == (onejob.State.RUNNING, ["outline"])
    jobs.lose_worker("before_start")
    run = run_job(shop.plan, "physics")
    assert (run.state, run.progress, run.steps) == (onejob.State.QUEUED, [], {})


@for_each("at, task, error, message", [
    ("step:outlin", None, AssertionError, r"lose_worker\(at='after_step:outlin'\).*after_step:outline"),
    ("somewhere", None, onejob.errors.ConfigurationError, "'somewhere' is no point of a run"),
    ("start", shop.double, AssertionError, r"task=tests\.testing\.shop\.double\)"),
])  # fmt: skip
def test_a_fault_that_does_not_happen_fails_the_test(at: str, task: Any, error: Any, message: str) -> None:
    """A misspelled step, or a fault of a task that never ran, is no test that passes: the error names the points."""
    with pytest.raises(error, match=message), isolated(shop.app) as jobs:  # noqa: PT012 - the end of the block raises
        jobs.lose_worker(at, task)
        shop.plan.delay("physics")
        jobs.run_all()


@pytest.mark.parametrize("fault", {each.kind: each for each in faults(steps=["charge"], progress=1)}.values())
def test_each_fault_is_a_test_of_its_own(fault: Fault, till: Jobs) -> None:
    """With `faults`, each fault is a parametrized test, here one of each kind, and its effects are asserted."""
    assert till.survive(fault, payments.charge_safely, "ann").result == "charged ann"
    assert payments.gateway.count() == 1


def test_points_that_were_not_declared_fail(till: Jobs) -> None:
    """A declared point that no run reaches, and a point of the run that was not declared, are errors."""
    missing = next(each for each in faults(steps=["refund"]) if str(each) == "lost at before_step:refund")
    with pytest.raises(AssertionError, match=r"no run has reached this point.*before_step:charge"):
        till.survive(missing, payments.charge_safely, "ann")
    fault: Any = faults(steps=["charge"])[0]
    undeclared = r"does not name: before_progress:1, after_progress:1.* faults\(steps=\['charge'\], progress=\d\)"
    with pytest.raises(AssertionError, match=undeclared) as failed:
        till.survive(fault, payments.charge_safely, "ann")
    for entry in failed.traceback:
        assert ("onejob/testing" in str(entry.path)) == entry.ishidden(failed), entry


# --- all faults ------------------------------------------------------------------------------------------------------


@pytest.fixture
def matrix(tmp_path: Path) -> Callable[..., Any]:
    """Return the crash matrix of a payment, whose gateway is emptied before each run."""
    payments.gateway.open(tmp_path / "gateway.db")
    payments.memory.clear()

    def run(task: Any, **options: Any) -> Any:
        given = {"effects": payments.gateway.count, "setup": lambda: payments.gateway.open(payments.gateway.path)}
        return crash_matrix(task, "ann", **given | options)

    return run


def exactly_one_charge() -> None:
    assert payments.gateway.count() == 1, f"{payments.gateway.count()} charges"


def test_a_safe_task_survives_every_fault(matrix: Callable[..., Any]) -> None:
    """A step with an effect key has its effect once, whatever happens at whichever point, and the report says so."""
    report = matrix(payments.charge_safely)
    writes = ("start", "progress:1", "step:charge", "complete")
    assert report.points == tuple(f"{side}_{write}" for write in writes for side in ("before", "after"))
    assert (report.expected, len(report.survivals)) == (1, 4 * len(report.points))
    attempts = {each.fault.point: each.job.attempt for each in report.survivals if each.fault.kind == "killed"}
    assert attempts == {point: 1 if point in {"before_start", "after_complete"} else 2 for point in report.points}
    assert str(report).startswith("crash matrix of tests.testing.payments.charge_safely('ann'): 0 of 32 faults")


@pytest.mark.parametrize(("task", "effects", "said", "unsaid"), [
    (payments.charge_bare, payments.gateway.count,
     ["killed at before_progress:2", "effects: 2, without a fault 1", "frozen at after_progress:1 ",
      "An effect between after_progress:1 and before_progress:2 is not kept", "job.step(name, ...)"],
     ["lost at after_progress:1 ", "redelivered"]),
    (payments.charge_step, exactly_one_charge,
     ["lost at before_step:charge", "effects: 2 charges", "job.effect_key('charge')"], ["at after_step:charge"]),
    (payments.charge_in_finally, payments.gateway.count,
     ["lost at after_progress:1", "killed at before_complete"], ["killed at after_progress:1"]),
], ids=["outside of a step", "in a step without an effect key", "in a finally, which a kill does not run"])  # fmt: skip
def test_a_repeated_effect_is_found_where_it_is(
    matrix: Callable[..., Any], task: Any, effects: Any, said: list[str], unsaid: list[str]
) -> None:
    """An effect that a fault repeats is named with its fault, its place and what to use, and no other place is."""
    with pytest.raises(AssertionError) as caught:
        matrix(task, effects=effects)
    text = str(caught.value)
    assert [each for each in said if each not in text] == [each for each in unsaid if each in text] == []


def test_a_task_that_retries_has_the_points_of_its_retry(matrix: Callable[..., Any]) -> None:
    """Faults before and after a retry is recorded are survived: the countdown is waited for on the clock."""
    report = matrix(payments.charge_with_retry)
    assert {str(each.fault) for each in report.survivals} >= {"killed at before_retry", "killed at before_complete"}
    assert {"before_retry", "after_retry", "before_complete"} <= {*report.points}


def test_effects_that_prove_nothing_are_refused(matrix: Callable[..., Any]) -> None:
    """Effects that no run changes, that stay from run to run, or that a child process cannot show, name a remedy."""
    with pytest.raises(onejob.errors.ConfigurationError, match=r"effects\(\) did not change.*0 before and after"):
        matrix(payments.charge_safely, effects=lambda: 0)
    with pytest.raises(onejob.errors.ConfigurationError, match=r"is 2 before a run, and was 1.*Pass setup="):
        crash_matrix(payments.charge_safely, "ann", effects=payments.gateway.count)
    with pytest.raises(TypeError, match="effects"):
        crash_matrix(payments.charge_safely, "ann")
    with pytest.raises(onejob.errors.ConfigurationError, match="file or a database"):
        matrix(payments.charge_in_memory, effects=payments.memory.copy, setup=payments.memory.clear)
    report = matrix(
        payments.charge_in_memory, effects=lambda: len(payments.memory), setup=payments.memory.clear, processes=False
    )
    assert {str(each.fault.kind) for each in report.survivals} == {"lost", "frozen", "redelivered"}


def test_an_eager_app_has_faults_too() -> None:
    """Where jobs run within their submissions, faults happen all the same, alone and in the matrix."""
    with isolated(shop.app, eager=True) as jobs:
        for fault in faults():
            assert jobs.survive(fault, shop.double, 4).state == "completed"
        report = jobs.crash_matrix(shop.double, 4, effects=None)
        assert (len(report.survivals), report.problems) == (len(faults()), [])


def test_an_error_in_a_child_process_is_shown(jobs: Jobs, capfd: pytest.CaptureFixture[str]) -> None:
    """An exception of `in_child` fails the matrix, and its traceback is in the output that the error refers to."""

    def connect() -> None:
        raise ConnectionError("no such host")

    with pytest.raises(onejob.OneJobError, match="exit code 1: look at its output"):
        jobs.crash_matrix(shop.double, 4, effects=None, in_child=connect)
    assert "ConnectionError: no such host" in capfd.readouterr().err


def test_the_recovery_alone_can_be_checked(jobs: Jobs) -> None:
    """With `effects=None` the matrix, here of a task by its name, checks how the job ends; a failing task ends it."""
    report = jobs.crash_matrix(shop.double.name, 4, effects=None, processes=False)
    assert len(report.survivals) == 3 * len(report.points)
    with pytest.raises(AssertionError, match="without any fault, the job is failed already"):
        jobs.crash_matrix(shop.fail, "no", effects=None)
