"""A task that requires an idempotency key refuses every call that could not be repeated safely."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, group

from onejob import InvalidArgumentsError, KeyRequiredError, Outcome
from onejob.jobs.records import Query
from tests.celery.harness import PATIENCE, on_every_store
from tests.celery.test_options import app_with, define

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.celery.harness import House

UNNAMED: dict[str, Callable[[Any], Any]] = {
    "delay": lambda task: task.delay("unnamed", ["return"]),
    "apply_async": lambda task: task.apply_async(("unnamed", ["return"])),
    "submit": lambda task: task.submit("unnamed", ["return"]),
    "a signature": lambda task: task.s("unnamed", ["return"]).delay(),
    "a message with a countdown": lambda task: task.apply_async(("unnamed", ["return"]), countdown=600),
}


@pytest.mark.parametrize("call", UNNAMED)
def test_a_call_without_a_key_is_refused(shared: House, call: str) -> None:
    """A submission without a key is refused by every entry point, names the task, and stores nothing."""
    before = len(shared.ledger.find(Query(limit=1000)))
    with pytest.raises(KeyRequiredError, match="requires an idempotency key") as caught:
        UNNAMED[call](shared.play_keyed)
    error = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
    assert error.task == shared.play_keyed.name
    assert isinstance(error, TypeError)
    assert len(shared.ledger.find(Query(limit=1000))) == before


def test_many_cannot_have_one_key(shared: House) -> None:
    """`submit_many` is refused for such a task, and the error names `apply_async`."""
    with pytest.raises(InvalidArgumentsError, match="use apply_async for each"):
        shared.play_keyed.submit_many([("many", ["return"])])


def test_eager_calls_need_it_too() -> None:
    """A call that is refused in production is refused in eager mode, and one with a key runs."""
    task = define(app_with(task_always_eager=True), requires_key=True)
    with pytest.raises(KeyRequiredError):
        task.delay(1)
    assert task.apply_async((1,), idempotency_key="e").get() == 3


@on_every_store("shared")
def test_a_retry_is_no_submission(shared: House) -> None:
    """A job with a key that retries runs again by itself, and its key continues to answer."""
    first = shared.play_keyed.apply_async(("keyed retry", ["retry", "return"]), idempotency_key="r")
    assert first.get(PATIENCE) == "keyed retry"
    assert shared.runs("keyed retry") == 2
    again = shared.play_keyed.apply_async(("keyed retry", ["retry", "return"]), idempotency_key="r")
    assert (again.id, again.outcome) == (first.id, Outcome.REPLAYED)


@on_every_store("shared")
def test_a_message_from_elsewhere_is_run(shared: House) -> None:
    """A message that another program published under its own id is admitted on arrival, as for any task."""
    sent = shared.app.send_task(shared.play_keyed.name, ("from elsewhere", ["return"]))
    shared.await_mark("from elsewhere")
    assert shared.runs("from elsewhere") == 1
    assert sent.id


@on_every_store("shared")
def test_a_canvas_names_its_members(shared: House) -> None:
    """The members of a canvas need no key: their ids are given when it is made, and name them as a key does."""
    keyed = shared.play_keyed
    made = group(keyed.si("member 1", ["return"]), keyed.si("member 2", ["return"])).apply_async()
    assert sorted(made.get(PATIENCE)) == ["member 1", "member 2"]
    chained = chain(
        keyed.si("link 1", ["return"]).set(idempotency_key="l"), keyed.si("link 2", ["return"])
    ).apply_async()
    assert chained.get(PATIENCE) == "link 2"
    assert [shared.runs(name) for name in ("member 1", "member 2", "link 1", "link 2")] == [1, 1, 1, 1]
