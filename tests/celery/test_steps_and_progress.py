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


def test_progress_is_seen_while_the_job_runs(shared: House) -> None:
    """The progress that a body reports is visible at once, and is no part of the result; a standard state is none."""
    result = shared.play.delay("progress", ["progress"])
    shared.await_mark("progress", "half")
    seen = shared.play.AsyncResult(result.id)
    assert (seen.state, seen.info) == ("STARTED", {"done": 1, "total": 2, "stage": "half"})
    shared.open("progress")
    assert result.get(PATIENCE) == "progress"
    assert seen.info == "progress"
    standard = shared.play.delay("standard", ["update_standard"], {"at": 1})
    shared.await_mark("standard", "updated")
    assert (standard.state, standard.job.progress) == ("STARTED", None)
    shared.open("standard")
    assert standard.get(PATIENCE) == "standard"


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
