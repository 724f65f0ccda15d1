"""A task called like a function is a function: it runs here and now, and touches no job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery.exceptions import Retry

from onejob import OneJobError, Outcome, State, current_job
from tests.celery.app import build
from tests.celery.harness import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tests.celery.harness import House

CALLS: dict[str, Callable[[Any, str], Any]] = {
    "a call": lambda task, key: task(key),
    "run": lambda task, key: task.run(key),
    "apply": lambda task, key: task.apply((key,)).get(),
    "a signature": lambda task, key: task.s(key)(),
    "a signature's apply": lambda task, key: task.s(key).apply().get(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_direct_call_runs_and_touches_no_job(shared: House, call: str) -> None:
    """A direct call runs the body at once, while an equal job waits, and leaves that job as it is."""
    result = shared.anywhere.apply_async((f"direct {call}",), countdown=3600)
    before = shared.job(result)
    assert CALLS[call](shared.anywhere, f"direct {call}") == f"direct {call}"
    assert shared.runs(f"direct {call}") == 1
    assert shared.job(result) == before
    assert shared.anywhere.delay(f"direct {call}").outcome is Outcome.ATTACHED
    result.revoke()


def test_eager_mode_touches_no_job(shared: House) -> None:
    """With `task_always_eager` a submission runs at once, while an equal job waits, and leaves that job as it is."""
    eager = build(shared.config | {"task_always_eager": True})
    result = shared.anywhere.apply_async(("eager",), countdown=3600)
    before = shared.job(result)
    assert eager.tasks["anywhere"].delay("eager").get() == "eager"
    assert eager.tasks["anywhere"].apply_async(kwargs={"key": "eager"}, task_id="eagerly").get() == "eager"
    assert shared.runs("eager") == 2
    assert shared.job(result) == before
    assert shared.ledger.get_or_none("eagerly") is None
    result.revoke()


@pytest.mark.parametrize("task", ["anywhere", "play"])
def test_a_body_may_call_a_task(shared: House, task: str) -> None:
    """A body that calls a task like a function, its own one too, runs it inside its own job."""
    data = ["inside"] if task == "anywhere" else ["called by itself", ["return:inner"]]
    result = shared.play.delay(f"calls-{task}", [f"call:{task}"], data)
    assert result.get(PATIENCE) == ("inside" if task == "anywhere" else "inner")
    shared.assert_ran(result, State.COMPLETED, f"calls-{task}", 1)
    if task == "play":
        assert [mark["job"] for mark in shared.marks("called by itself")] == [result.id]


def test_there_is_no_current_job_outside_of_one(shared: House) -> None:
    """`current_job()` outside of a running job raises an error."""
    with pytest.raises(OneJobError, match="no onejob job is running"):
        current_job()
    with pytest.raises(OneJobError, match="no onejob job is running"):
        shared.play("direct", ["return"])


def test_a_retry_in_a_direct_call_raises_as_celery_does(shared: House) -> None:
    """`retry` in a task that was called like a function raises, and nothing is submitted."""
    before = shared.ledger.find(shared.everything())
    with pytest.raises(Retry):
        shared.play.retry()
    assert shared.ledger.find(shared.everything()) == before
