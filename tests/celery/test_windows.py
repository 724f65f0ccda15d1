"""Uniqueness windows with real workers: how long a job is unique, and the outcome of a duplicate."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from onejob import DuplicateJobError, Outcome, State
from tests.celery.harness import PATIENCE, await_, on_every_store

if TYPE_CHECKING:
    from tests.celery.harness import House


@on_every_store("shared")
@pytest.mark.parametrize("value", [None, 0, "", [], {"a": [1.5, "\u00e9"]}])
def test_a_kept_result_answers(shared: House, value: object) -> None:
    """While its window lasts, a success answers equal submissions with its id and its result, falsy ones too."""
    key = f"kept-{value!r}"
    first = shared.keeps.delay(key, value)
    assert first.get(PATIENCE) == value
    again = shared.keeps.delay(key, "something else")
    assert (again.outcome, again.id, again.get(PATIENCE)) == (Outcome.REPLAYED, first.id, value)
    assert shared.runs(key) == 1


def test_after_the_window_a_job_runs_again(shared: House) -> None:
    """When the window is over an equal submission is a new job."""
    first = shared.keeps_briefly.delay("brief")
    first.get(PATIENCE)
    until = shared.job(first).identity_until
    assert until is not None
    await_(lambda: shared.keeps_briefly.delay("brief").outcome is Outcome.ADMITTED)
    assert shared.await_state(first, State.COMPLETED).holds_identity is False


def test_a_failure_is_no_success(shared: House) -> None:
    """A task with a window that fails can be submitted again at once."""
    first = shared.play_keeping.delay("fails", ["raise:no"])
    shared.await_state(first, State.FAILED)
    again = shared.play_keeping.delay("fails", ["return"])
    assert (again.outcome, again.get(PATIENCE)) == (Outcome.ADMITTED, "fails")
    assert shared.play_keeping.delay("fails", ["return"]).outcome is Outcome.REPLAYED


@on_every_store("shared")
def test_a_job_can_be_unique_until_it_starts(shared: House) -> None:
    """With `unique_until="started"` an equal submission is attached before the run and admitted during it."""
    first = shared.play_until_started.apply_async(("starts", ["hold:starts"]), countdown=0.5)
    assert shared.play_until_started.delay("starts", ["return"]).outcome is Outcome.ATTACHED
    shared.await_mark("starts")
    second = shared.play_until_started.delay("starts", ["return"])
    assert second.outcome is Outcome.ADMITTED
    assert second.get(PATIENCE) == "starts"
    shared.open("starts")
    assert first.get(PATIENCE) == "starts"
    assert shared.runs("starts") == 2


def test_a_chain_takes_the_kept_result(shared: House) -> None:
    """A chain member that is a duplicate of a kept success ends with its result, and the chain continues."""
    shared.keeps.delay("chained", "kept").get(PATIENCE)
    chain = (shared.keeps.s("chained", "new") | shared.echo.s()).apply_async()
    assert chain.get(PATIENCE) == "kept"
    assert shared.runs("chained") == 1


@on_every_store("shared")
def test_a_duplicate_can_be_an_error(shared: House) -> None:
    """With `on_duplicate="raise"` a duplicate raises an error that names the job and its state, and pickles."""
    first = shared.play_strict.delay("strict", ["hold:strict"])
    shared.await_mark("strict")
    with pytest.raises(DuplicateJobError) as caught:
        shared.play_strict.delay("strict", ["return"])
    there = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
    assert (there.job_id, there.state, there.task) == (first.id, "running", "play_strict")
    shared.open("strict")
    first.get(PATIENCE)
    assert shared.play_strict.delay("strict", ["return"]).get(PATIENCE) == "strict"


def test_a_member_of_a_canvas_is_not_refused(shared: House) -> None:
    """A duplicate in a chain follows the existing job, since an error would have no caller."""
    first = shared.play_strict.delay("member", ["hold:member"])
    shared.await_mark("member")
    chain = (shared.play_strict.s("member", ["return"]) | shared.echo.s()).apply_async()
    shared.open("member")
    assert chain.get(PATIENCE) == first.get(PATIENCE) == "member"


def test_a_calendar_window_is_kept(shared: House) -> None:
    """A task that is unique for the day answers with its result until midnight there."""
    first = shared.keeps_daily.delay("daily")
    first.get(PATIENCE)
    job = shared.job(first)
    assert job.holds_identity
    assert job.identity_until is not None
    assert job.created_at < job.identity_until <= job.created_at + 25 * 3600
