"""`Task.replace`: the job goes on as what replaces it, with its id, its identity and its idempotency key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult as CeleryResult

from onejob import Outcome, State
from onejob.jobs.lifecycle import Transition
from tests.celery.harness import LEASE, PATIENCE, House, await_, on_every_store
from tests.quiet import provokes

WAYS: dict[str, tuple[str, list[Any], Any]] = {
    "a task": ("replace:play", ["next a task", ["hold:end>return:done"]], "done"),
    "a chain": ("replace:anywhere,note", ["next a chain"], ["next a chain", "next a chain"]),
    "a chord": ("replace_chord:note", [["a", "b"], ["next a chord"]], ["next a chord", ["a", "b"]]),
    "another class": ("replace:plain", ["next another class"], ["next another class"]),
}
"""By what a job is replaced: the act, its data, and the result."""


@on_every_store("shared")
def test_a_replaced_job_keeps_its_key_and_identity(shared: House) -> None:
    """A repeated call with the key, and an equal call, get the job that was replaced, before and after its end."""
    for key, (act, data, value) in WAYS.items():
        call: dict[str, Any] = {"args": (key, [f"hold:{key}>{act}"], data), "idempotency_key": key}
        first = shared.play.apply_async(**call)
        shared.await_mark(key)
        shared.open(key)
        await_(lambda: "replace" in shared.events(first))  # noqa: B023 - called in this round
        assert shared.play.apply_async(**call).id == first.id, key
        if key == "a task":  # the others may have ended
            assert shared.play.delay(key, ["return"]).id == first.id
        shared.open("end")
        assert first.get(PATIENCE) == value, key
        shared.await_rest()
        repeated = shared.play.apply_async(**call)
        assert (repeated.id, repeated.outcome, repeated.get(PATIENCE)) == (first.id, Outcome.REPLAYED, value), key
        job = shared.job(first)
        assert (job.state, job.task, shared.runs(key)) == (State.COMPLETED, "play", 1), key
        last = [mark["job"] for mark in shared.marks(f"next {key}") if "attempt" in mark or "value" in mark]
        assert last == [first.id] * (key != "another class"), key
        assert CeleryResult(first.id, app=shared.app).get(timeout=PATIENCE) == value, key
        assert shared.play.delay(key, ["return:again"]).get(PATIENCE) == "again", key


def test_a_replacement_may_have_an_identity_in_use(shared: House) -> None:
    """A job that is replaced by an equal call, or by one whose identity another job holds, runs that call next."""
    acts = ["loop", ["return", "replace:play", "return:end"], ["loop", ["retry:0", "return", "return:third"]]]
    looping = shared.play.delay("loop", ["replace:play"], acts)
    assert looping.get(PATIENCE) == "third"
    assert (shared.events(looping).count("replace"), shared.runs("loop")) == (2, 3)
    other = shared.begin("held", ["hold:other>return:other"])
    result = shared.play.delay("replaces", ["replace:play"], ["held", ["return:own"]])
    assert result.get(PATIENCE) == "own"
    assert shared.play.delay("held", ["return"]).id == other.id
    shared.open("other")
    assert other.get(PATIENCE) == "other"
    assert shared.runs("held") == 2


@pytest.mark.parametrize("backend", ["disabled://", pytest.param(None, marks=pytest.mark.deep)])
@provokes(logs=["StrangeError"], because="a part fails")
def test_a_replacement_that_breaks_ends_the_job(new_house: Callable[..., House], backend: str | None) -> None:
    """If a task before the end of a replacing chain fails or is canceled, so is the job, also without a backend."""
    house = new_house(**({"result_backend": backend} if backend else {}))
    house.worker("-c", "3")
    failed = house.play.delay("fails", ["replace:strange,note"], ["part"])
    canceled = house.play.delay("canceled", ["replace:play_leased,note"], ["part", ["hold>retry:3600"]])
    part = await_(lambda: next((job for job in house.live() if job.task == "play_leased"), None))
    house.ledger.cancel(part.id)
    house.open("part")
    assert house.await_state(failed, State.FAILED, State.CANCELED).state is State.FAILED
    assert house.await_state(canceled, State.FAILED, State.CANCELED).state is State.CANCELED
    with pytest.raises(TaskRevokedError):
        canceled.get(PATIENCE)
    house.assert_free("fails")
    house.assert_quiet()
    if backend:  # nobody stores the end of this one
        result = house.play.delay("given away", ["replace:plain"], ["plainly"])
        house.await_mark("plainly", "plain")
        assert "replaced by another task" in house.await_state(result, State.CANCELED).reason
        house.assert_free("given away")


@pytest.mark.deep
@provokes(Transition.RELEASE, because="the job waits for the end of what replaced it, and looks for it again and again")
def test_the_end_of_an_unknown_replacement_is_not_awaited_for_ever(new_house: Callable[..., House]) -> None:
    """A job whose replacement ends nowhere fails after `result_expires`, and blocks its identity no longer."""
    house = new_house(result_expires=1, onejob_lease=LEASE)
    house.worker("-c", "2")
    result = house.play.delay("away", ["replace_elsewhere:plain"], ["never"])
    job = house.await_state(result, State.FAILED)
    assert "nothing is known of the task that replaced job" in job.reason
    house.assert_free("away")
