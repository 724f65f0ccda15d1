"""Finished work stays finished: steps outlive any crash, and progress is visible while a job runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob import InvalidPayloadError, State
from onejob.jobs.lifecycle import Transition
from tests.celery.harness import PATIENCE, on_every_store
from tests.quiet import provokes

if TYPE_CHECKING:
    from tests.celery.harness import House

STEPS = ("one", "two", "three")


@on_every_store("shared")
def test_steps_outlive_a_run(shared: House) -> None:
    """A step of a name is computed once per job, whether its run goes on, is killed or is retried; not per identity."""
    for end in ("kill", "retry"):
        values = (result := shared.walk.delay(end, [*STEPS, "one"], {"three": end})).get(PATIENCE)
        assert [len(shared.marks(end, f"step {name}")) for name in STEPS] == [1, 1, 1]
        taken = [shared.marks(end, f"step {name}")[0]["pid"] for name in (*STEPS, "one")]
        assert values == [f"{name} by {pid}" for name, pid in zip((*STEPS, "one"), taken, strict=True)]
        assert (shared.runs(end), shared.job(result).attempt) == (2, 2)
        shared.walk.delay(end, ["one"]).get(PATIENCE)
        assert len(shared.marks(end, "step one")) == 2


@provokes(Transition.RETRY, logs=["the value of step 'odd' cannot be stored"], because="a step fails once, one always")
def test_a_step_that_fails_is_not_kept(shared: House) -> None:
    """A step whose function raises is computed again in the next attempt; one whose value has no JSON fails the job."""
    assert shared.stumble.delay("stumbles").get(PATIENCE) == "second try"
    assert len(shared.marks("stumbles", "try")) == 2
    result = shared.unkept.delay("unkept")
    with pytest.raises(InvalidPayloadError, match="step 'odd'"):
        result.get(PATIENCE)
    assert shared.job(result).state is State.FAILED


@pytest.mark.parametrize("backend", [False, True], ids=["no backend", "backend"])
def test_progress_is_seen_while_the_job_runs(house: House, *, backend: bool) -> None:
    """Progress, and a state of one's own, are visible at once, and no part of the result; a standard state is none."""
    if not backend:
        house.config["result_backend"] = None
        house.app.conf.update(result_backend=None)
    house.worker("-c", "3")
    half, own, standard = (
        house.play.delay(act, [act], {"at": 1}) for act in ("progress", "update_state", "update_standard")
    )
    house.await_mark("progress", "half")
    seen = house.play.AsyncResult(half.id)
    assert (seen.state, seen.info) == ("STARTED", {"done": 1, "total": 2, "stage": "half"})
    house.await_mark("update_state", "updated")
    assert (own.state, own.info, own.ready()) == ("INDEXING", {"at": 1}, False)
    assert own.job.progress == {"state": "INDEXING", "meta": {"at": 1}}
    if backend:
        assert (house.app.AsyncResult(own.id).state, house.app.AsyncResult(own.id).info) == ("INDEXING", {"at": 1})
    house.await_mark("update_standard", "updated")
    assert (standard.state, standard.job.progress) == ("STARTED", None)
    for result, key in ((half, "progress"), (own, "update_state"), (standard, "update_standard")):
        house.open(key)
        assert (result.get(PATIENCE), result.state, result.info, result.job.result) == (key, "SUCCESS", key, key)
    house.assert_quiet()
