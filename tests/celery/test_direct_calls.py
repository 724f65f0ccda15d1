"""A task called like a function is a function: it runs here and now, and touches no job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery.exceptions import Retry

from onejob import OneJobError, Outcome, State, Task, current_job
from tests.celery.harness import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.celery.harness import House

CALLS: dict[str, Callable[[Any, Any, str], Any]] = {
    "a call": lambda task, _, key: task(key),
    "apply": lambda task, _, key: task.apply((key,)).get(),
    "a signature": lambda task, _, key: task.s(key)(),
    "a signature's apply": lambda task, _, key: task.s(key).apply().get(),
    "task_always_eager": lambda _, eager, key: eager.delay(key).get(),
    "eager with an id": lambda _, eager, key: eager.apply_async(kwargs={"key": key}, task_id="eagerly").get(),
}


def test_a_direct_call_runs_and_touches_no_job(house: House) -> None:
    """A direct or eager call runs the body at once, while an equal job waits, and leaves that job as it is."""
    eager = house.another_app(task_always_eager=True).tasks["anywhere"]
    for key, call in CALLS.items():
        result = house.anywhere.apply_async((key,), countdown=3600)
        before = house.job(result)
        assert call(house.anywhere, eager, key) == key
        assert house.runs(key) == 1, key
        assert house.job(result) == before, key
        assert house.anywhere.delay(key).outcome is Outcome.ATTACHED, key
    assert house.ledger.get_or_none("eagerly") is None


def _retry_once(task: Any) -> list[Any]:
    if not task.request.retries:
        raise task.retry(countdown=0)
    return [task.request.id, task.request.retries]


def test_an_eager_run_has_a_request_and_can_retry(house: House) -> None:
    """An eager run, like one of a worker that is embedded in a program, has the request of its call, and retries."""
    eager = house.another_app(task_always_eager=True)
    ran = eager.task(base=Task, bind=True, shared=False, max_retries=1, name="eager_retry")(_retry_once)
    assert ran.apply(task_id="eagerly").get() == ["eagerly", 1]


def test_a_body_may_call_a_task(shared: House) -> None:
    """A body that calls a task like a function, its own one too, runs it inside its own job."""
    for task, data, value in (
        ("anywhere", ["inside"], "inside"),
        ("play", ["called by itself", ["return:inner"]], "inner"),
    ):
        result = shared.play.delay(f"calls-{task}", [f"call:{task}"], data)
        assert result.get(PATIENCE) == value
        shared.assert_ran(result, State.COMPLETED, f"calls-{task}", 1)
        assert [mark["job"] for mark in shared.marks("called by itself")] == [result.id] * (task == "play")


def test_there_is_no_current_job_outside_of_one(house: House) -> None:
    """Outside of a running job `current_job()` raises an error, and `retry` raises as in Celery and submits nothing."""
    for call in (current_job, lambda: house.play("direct", ["return"])):
        with pytest.raises(OneJobError, match="no onejob job is running"):
            call()
    with pytest.raises(Retry):
        house.play.retry()
    assert house.jobs() == []
