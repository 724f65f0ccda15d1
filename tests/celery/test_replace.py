"""`Task.replace`: the job goes on as what replaces it, with its id, its identity and its idempotency key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery.exceptions import TaskRevokedError

from onejob import Outcome, State
from tests.celery.harness import LEASE, PATIENCE, await_, on_every_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from onejob import AsyncResult
    from tests.celery.harness import House

WAYS: dict[str, tuple[str, list[Any], Any]] = {
    "a task": ("replace:play", ["next", ["hold:end>return:done"]], "done"),
    "a chain": ("replace:anywhere,play_chained", ["next"], "next"),
    "a chord": ("replace_chord:note", [["a", "b"], ["next"]], ["next", ["a", "b"]]),
    "another class": ("replace:plain", ["next"], ["next"]),
}
"""By what a job is replaced: the act, its data, and the result."""


def _replaced(house: House, how: str, key: str, **options: Any) -> AsyncResult:
    act, data, _ = WAYS[how]
    result: AsyncResult = house.play.apply_async(
        (key, [f"hold:{key}>{act.replace(',play_chained', ',note')}"], data), **options
    )
    return result


def _value(how: str) -> Any:
    return ["next", "next"] if how == "a chain" else WAYS[how][2]


@on_every_store("shared")
@pytest.mark.parametrize("how", WAYS)
def test_a_replaced_job_keeps_its_key_and_identity(shared: House, how: str) -> None:
    """A repeated call with the key, and an equal call, get the job that was replaced, before and after its end."""
    key = how.replace(" ", "-")
    first = _replaced(shared, how, key, idempotency_key=key)
    shared.await_mark(key)
    shared.open(key)
    await_(lambda: "replace" in shared.events(first))
    again = _replaced(shared, how, key, idempotency_key=key)
    equal = shared.play.delay(key, ["return"])
    assert {again.id, equal.id} == {first.id}
    shared.open("end")
    assert (first.get(PATIENCE), equal.get(PATIENCE)) == (_value(how), _value(how))
    shared.await_rest()
    repeated = _replaced(shared, how, key, idempotency_key=key)
    assert (repeated.id, repeated.outcome, repeated.get(PATIENCE)) == (first.id, Outcome.REPLAYED, _value(how))
    job = shared.job(first)
    assert (job.state, job.task, shared.runs(key)) == (State.COMPLETED, "play", 1)
    assert shared.play.delay(key, ["return:again"]).get(PATIENCE) == "again"


def test_a_job_replaces_itself_by_an_equal_call(shared: House) -> None:
    """A job that replaces itself by a call with its own identity runs that call next."""
    result = shared.play.delay(
        "loop",
        ["replace:play"],
        ["loop", ["return", "replace:play", "return:end"], ["loop", ["retry:0", "return", "return:third"]]],
    )
    assert result.get(PATIENCE) == "third"
    assert shared.events(result).count("replace") == 2
    assert shared.runs("loop") == 3


def test_a_replacement_runs_beside_an_equal_job(shared: House) -> None:
    """A job that is replaced by a call whose identity another job holds runs that call; the other job goes on."""
    other = shared.play.delay("held", ["hold:other>return:other"])
    shared.await_mark("held")
    result = shared.play.delay("replaces", ["replace:play"], ["held", ["return:own"]])
    assert result.get(PATIENCE) == "own"
    assert shared.play.delay("held", ["return"]).id == other.id
    shared.open("other")
    assert other.get(PATIENCE) == "other"
    assert shared.runs("held") == 2


@pytest.mark.parametrize("kind", ["disabled", pytest.param("redis", marks=pytest.mark.deep)])
def test_a_replacement_that_breaks_fails_the_job(new_house: Callable[..., House], tmp_path: Path, kind: str) -> None:
    """If a task before the end of a replacing chain fails or is canceled, so is the job, with and without a backend."""
    house = new_house(tmp_path, "sqlite", **({"result_backend": "disabled://"} if kind == "disabled" else {}))
    house.app.set_current()
    house.worker("-c", "3")
    failed = house.play.delay("fails", ["replace:strange,note"], ["part"])
    canceled = house.play.delay("canceled", ["hold>replace:play_leased,note"], ["part", ["return"]])
    _cancel_first(house, canceled)
    assert await_(lambda: house.job(failed).state.final)
    assert (house.job(failed).state, house.await_state(canceled, State.CANCELED).state) == (
        State.FAILED,
        State.CANCELED,
    )
    with pytest.raises(TaskRevokedError):
        canceled.get(PATIENCE)
    house.assert_free("fails")
    house.assert_quiet()
    house.close()


def _cancel_first(house: House, result: AsyncResult) -> None:
    """Cancel the first task of the chain that replaces a job."""
    house.open("canceled")
    job = await_(lambda: next((job for job in house.live() if job.task == "play_leased"), None))
    house.ledger.cancel(job.id)


@pytest.mark.deep
def test_the_end_of_an_unknown_replacement_is_not_awaited_for_ever(
    new_house: Callable[..., House], tmp_path: Path
) -> None:
    """A job whose replacement ends nowhere fails after `result_expires`, and blocks its identity no longer."""
    house = new_house(tmp_path, "sqlite", result_expires=1, onejob_lease=LEASE)
    house.app.set_current()
    house.worker("-c", "2")
    result = house.play.delay("away", ["replace_elsewhere:plain"], ["never"])
    job = house.await_state(result, State.FAILED)
    assert "nothing is known of the task that replaced job" in job.reason
    house.assert_free("away")
    house.close()


def test_without_a_stored_end_the_job_is_canceled(new_house: Callable[..., House], tmp_path: Path) -> None:
    """A job that is replaced by a task whose end nobody stores is canceled, and the replacement runs."""
    house = new_house(tmp_path, "sqlite", result_backend="disabled://")
    house.app.set_current()
    house.worker("-c", "2")
    result = house.play.delay("given away", ["replace:plain"], ["plainly"])
    house.await_mark("plainly", "plain")
    assert "replaced by another task" in house.await_state(result, State.CANCELED).reason
    house.assert_free("given away")
    house.close()


@pytest.mark.deep
def test_a_replacement_that_only_another_worker_has(new_house: Callable[..., House], tmp_path: Path) -> None:
    """A job that is replaced by a task of another worker goes on there, under its id."""
    house = new_house(tmp_path, "sqlite")
    house.app.set_current()
    house.worker("-c", "1", "-Q", "celery", without="anywhere")
    house.worker("-c", "1", "-Q", "elsewhere")
    result = house.play.delay("moves", ["replace_elsewhere:anywhere"], ["far"])
    assert result.get(PATIENCE) == "far"
    assert (house.runs("moves"), house.runs("far")) == (1, 1)
    house.assert_quiet()
    house.close()
