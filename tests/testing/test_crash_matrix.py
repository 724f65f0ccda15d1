"""The crash matrix finds an effect that a crash repeats, says where and what to use, and passes when that is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import onejob
from onejob.testing import crash_matrix
from tests.testing import payments, shop

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def _gateway(tmp_path: Path) -> None:
    payments.gateway.open(tmp_path / "gateway.db")
    payments.memory.clear()


def reset() -> None:
    payments.gateway.open(payments.gateway.path)


def exactly_one_charge() -> None:
    assert payments.gateway.count() == 1, f"{payments.gateway.count()} charges"


def failure_of(task: Any, effects: Callable[[], object]) -> str:
    """Return the message of a matrix that fails."""
    with pytest.raises(AssertionError) as caught:
        crash_matrix(task, "ann", effects=effects, setup=reset)
    return str(caught.value)


def test_a_safe_task_survives_every_fault() -> None:
    """A step with an effect key has its effect once, whatever happens at whichever point, and the report says so."""
    report = crash_matrix(payments.charge_safely, "ann", effects=payments.gateway.count, setup=reset)
    writes = ("start", "progress:1", "step:charge", "complete")
    assert report.points == tuple(f"{side}_{write}" for write in writes for side in ("before", "after"))
    assert report.expected == 1
    assert len(report.survivals) == 4 * len(report.points)
    killed = {each.fault.point: each.job.attempt for each in report.survivals if each.fault.kind == "killed"}
    assert killed == {
        "before_start": 1, "after_start": 2, "before_progress:1": 2, "after_progress:1": 2, "before_step:charge": 2,
        "after_step:charge": 2, "before_complete": 2, "after_complete": 1,
    }  # fmt: skip
    assert str(report).startswith("crash matrix of tests.testing.payments.charge_safely('ann'): 0 of 32 faults")


def test_an_unprotected_effect_is_found_where_it_is() -> None:
    """An effect outside of any step is repeated from there on, by a real kill, too; the message names the place."""
    text = failure_of(payments.charge_bare, payments.gateway.count)
    assert "killed at before_progress:2" in text
    assert "effects: 2, without a fault 1" in text
    assert "An effect between after_progress:1 and before_progress:2 is not kept" in text
    assert "job.step(name, ...)" in text
    assert "lost at after_progress:1 " not in text
    assert "frozen at after_progress:1 " in text
    assert "redelivered" not in text


def test_a_step_alone_is_not_enough_for_a_third_party() -> None:
    """An effect in a step is repeated by a crash before its value is kept: the message says to pass an effect key."""
    text = failure_of(payments.charge_step, exactly_one_charge)
    assert "lost at before_step:charge" in text
    assert "effects: 2 charges" in text
    assert "job.effect_key('charge')" in text
    assert "at after_step:charge" not in text


def test_a_kill_runs_no_finally() -> None:
    """A killed process is really killed: an effect in a `finally`, which a lost run still has, does not happen."""
    text = failure_of(payments.charge_in_finally, payments.gateway.count)
    assert "lost at after_progress:1" in text
    assert "killed at after_progress:1" not in text
    assert "killed at before_complete" in text


def test_effects_in_memory_are_not_mistaken_for_proof() -> None:
    """Effects that a child process cannot show are refused with what to do; without processes they are checked."""
    with pytest.raises(onejob.ConfigurationError, match="file or a database"):
        crash_matrix(payments.charge_in_memory, "ann", effects=payments.memory.copy, setup=payments.memory.clear)
    report = crash_matrix(
        payments.charge_in_memory, "ann", effects=lambda: len(payments.memory), setup=payments.memory.clear,
        processes=False,
    )  # fmt: skip
    assert {str(each.fault.kind) for each in report.survivals} == {"lost", "frozen", "redelivered"}


def test_a_task_that_retries_has_the_points_of_its_retry() -> None:
    """Faults before and after a retry is recorded are survived: the countdown is waited for on the clock."""
    report = crash_matrix(payments.charge_with_retry, "ann", effects=payments.gateway.count, setup=reset)
    assert {str(each.fault) for each in report.survivals} >= {"killed at before_retry", "killed at before_complete"}
    assert {"before_retry", "after_retry", "before_complete"} <= {*report.points}


def test_effects_that_nobody_sees_are_no_proof() -> None:
    """`effects` that no run changes, and effects that stay from run to run, are refused with what to do."""
    with pytest.raises(onejob.ConfigurationError, match=r"effects\(\) did not change.*0 before and after"):
        crash_matrix(payments.charge_safely, "ann", effects=lambda: 0)
    with pytest.raises(onejob.ConfigurationError, match=r"is 2 before a run, and was 1.*Pass setup="):
        crash_matrix(payments.charge_safely, "ann", effects=payments.gateway.count)
    with pytest.raises(TypeError, match="effects"):
        crash_matrix(payments.charge_safely, "ann")


def test_the_recovery_alone_can_be_checked() -> None:
    """With `effects=None` the matrix checks how the job ends; a task that fails without any fault ends it at once."""
    report = crash_matrix(shop.double, 4, effects=None, processes=False)
    assert len(report.survivals) == 3 * len(report.points)
    with pytest.raises(AssertionError, match="without any fault, the job is failed already"):
        crash_matrix(shop.fail, "no", effects=None)
