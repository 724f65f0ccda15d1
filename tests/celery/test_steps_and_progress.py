"""Finished work stays finished: steps outlive any crash, progress is visible, and a cancel request stops a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob import InvalidPayloadError, State
from tests.celery.harness import PATIENCE, on_every_store

if TYPE_CHECKING:
    from tests.celery.harness import House


@on_every_store("shared")
@pytest.mark.parametrize("end", ["kill", "retry"])
def test_steps_outlive_a_run(shared: House, end: str) -> None:
    """A step is computed once per job, whether its run is killed or retried."""
    key = f"steps-{end}"
    result = shared.walk.delay(key, ["one", "two", "three"], {"three": end})
    values = result.get(PATIENCE)
    assert [len(shared.marks(key, f"step {name}")) for name in ("one", "two", "three")] == [1, 1, 1]
    taken = [shared.marks(key, f"step {name}")[0]["pid"] for name in ("one", "two", "three")]
    assert values == [f"{name} by {pid}" for name, pid in zip(("one", "two", "three"), taken, strict=True)]
    assert (shared.runs(key), shared.job(result).attempt) == (2, 2)


def test_the_same_name_is_the_same_step(shared: House) -> None:
    """Within one run, too, a step of one name is computed once."""
    result = shared.walk.delay("name", ["same", "same", "same"])
    values = result.get(PATIENCE)
    assert len(set(values)) == 1
    assert len(shared.marks("name", "step same")) == 1


def test_a_new_job_computes_its_own_steps(shared: House) -> None:
    """Steps belong to a job, not to an identity: a new equal job computes its own."""
    for _ in range(2):
        shared.walk.delay("anew", ["one"]).get(PATIENCE)
    assert len(shared.marks("anew", "step one")) == 2


@on_every_store("shared")
def test_progress_is_seen_while_the_job_runs(shared: House) -> None:
    """The progress that a body reports is visible at once, and is no part of the result."""
    result = shared.play.delay("progress", ["progress"])
    shared.await_mark("progress", "half")
    seen = shared.play.AsyncResult(result.id)
    assert (seen.state, seen.info) == ("STARTED", {"done": 1, "total": 2, "stage": "half"})
    assert shared.job(result).progress is not None
    shared.open("progress")
    assert result.get(PATIENCE) == "progress"
    assert seen.info == "progress"


@pytest.mark.parametrize("backend", [False, True], ids=["no backend", "backend"])
def test_a_state_of_ones_own_is_progress(house: House, *, backend: bool) -> None:
    """A state that `update_state` sets is the progress of the job, and its result shows it as Celery's does."""
    if not backend:
        house.config["result_backend"] = None
        house.app.conf.update(result_backend=None)
    house.worker("-c", "1")
    meta = {"current": 3, "total": 10}
    result = house.play.delay("state", ["update_state"], meta)
    house.await_mark("state", "updated")
    assert (result.state, result.info, result.ready()) == ("INDEXING", meta, False)
    assert result.job.progress == {"state": "INDEXING", "meta": meta}
    if backend:
        assert (house.app.AsyncResult(result.id).state, house.app.AsyncResult(result.id).info) == ("INDEXING", meta)
    house.open("state")
    assert result.get(PATIENCE) == "state"
    assert (result.state, result.info) == ("SUCCESS", "state")
    house.assert_quiet()


def test_a_standard_state_is_left_to_celery(shared: House) -> None:
    """A standard state that a body sets by `update_state` changes neither the job nor its progress."""
    result = shared.play.delay("standard", ["update_standard"], {"at": 1})
    shared.await_mark("standard", "updated")
    assert (result.state, result.job.progress) == ("STARTED", None)
    shared.open("standard")
    assert result.get(PATIENCE) == "standard"


def test_update_state_ends_a_canceled_run(shared: House) -> None:
    """A job that is revoked while it runs is canceled when its body updates its state."""
    result = shared.play.delay("updates", ["hold>update_state"])
    shared.await_mark("updates")
    result.revoke()
    shared.open("updates")
    shared.assert_ran(result, State.CANCELED, "updates", 1)
    assert not shared.marks("updates", "updated")


def test_a_step_that_fails_is_not_kept(shared: House) -> None:
    """A step whose function raises is computed again in the next attempt."""
    result = shared.stumble.delay("stumbles")
    assert result.get(PATIENCE) == "second try"
    assert len(shared.marks("stumbles", "try")) == 2


def test_a_step_that_cannot_be_kept_fails_the_job(shared: House) -> None:
    """A step whose value has no JSON raises where it is taken."""
    result = shared.unkept.delay("unkept")
    with pytest.raises(InvalidPayloadError, match="step 'odd'"):
        result.get(PATIENCE)
    assert shared.job(result).state is State.FAILED


def test_a_run_knows_its_attempt_and_its_token(shared: House) -> None:
    """A run has an attempt number, counted from 1, and a token that grows with every run."""
    result = shared.play.delay("attempts", ["retry", "kill", "attempt"])
    attempt, token = result.get(PATIENCE)
    assert (attempt, token) == (3, shared.job(result).token)
    again = shared.play.delay("attempts", ["retry", "attempt"]).get(PATIENCE)
    assert again[0] == 2
