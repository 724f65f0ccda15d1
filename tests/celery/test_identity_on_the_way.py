"""A job's identity is the same at its submitter and at its worker, however the broker's JSON changes its arguments."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from celery.exceptions import TaskRevokedError

from onejob import InvalidPayloadError, Outcome, State
from tests.celery.harness import PATIENCE, await_

if TYPE_CHECKING:
    from tests.celery.harness import House


class Size(str, enum.Enum):
    LARGE = "large"


class Level(enum.IntEnum):
    HIGH = 3


CHANGED: dict[str, tuple[Any, Any]] = {
    "a tuple": ((1, (2, 3)), [1, [2, 3]]),
    "a text Enum": (Size.LARGE, "large"),
    "an integer Enum": (Level.HIGH, 3),
    "integer keys": ({1: "a"}, {"1": "a"}),
    "a key None": ({None: 1}, {"null": 1}),
    "order of keys": ({"b": 1, "a": 2}, {"a": 2, "b": 1}),
    "text": ("caf\u00e9 \u2028", "caf\u00e9 \u2028"),
}
"""Arguments that JSON changes, and what the worker gets."""
KEPT: dict[str, Any] = {
    "a UUID": UUID("12345678-1234-5678-1234-567812345678"),
    "a datetime": datetime(2026, 11, 21, 4, 5, 6, 7, tzinfo=UTC),
    "a naive datetime": datetime(2026, 11, 21, 4, 5, 6),
    "a date": date(2026, 11, 21),
    "a decimal": Decimal("1.10"),
    "bytes": b"\x00\xff",
    "nothing": None,
    "a large integer": 2**70,
    "a float": 0.1,
}
"""Arguments that Celery's JSON carries as they are."""
ALL = CHANGED | {name: (value, value) for name, value in KEPT.items()}


@pytest.mark.parametrize("name", ALL)
def test_a_job_is_the_same_from_every_source(shared: House, name: str) -> None:
    """A submitted value and the same value in a message that only the worker reads are one job."""
    value, received = ALL[name]
    gate = name.replace(" ", "-")
    first = shared.play.delay(value, [f"hold:{gate}>attempt"])
    await_(lambda: shared.job(first).state is State.RUNNING)
    assert shared.play.delay(received, ["return"]).outcome is Outcome.ATTACHED
    sent = shared.app.send_task("play", (value, ["return"]))
    await_(lambda: shared.ledger.get_or_none(sent.id))
    assert shared.job(sent.id).follows_id == first.id
    shared.open(gate)
    assert first.get(PATIENCE) == shared.play.AsyncResult(sent.id).get(PATIENCE)
    assert shared.job(first).attempt == 1


@pytest.mark.parametrize("name", KEPT)
def test_a_value_round_trips(shared: House, name: str) -> None:
    """A value that Celery's JSON supports reaches the body unchanged, and returns to the caller unchanged."""
    result = shared.echo.delay(KEPT[name])
    assert result.get(PATIENCE) == KEPT[name]
    assert type(result.get(PATIENCE)) is type(KEPT[name])
    assert repr(KEPT[name]) in {mark["value"] for mark in shared.marks("echo")}


def test_values_that_look_alike_are_two_jobs(shared: House) -> None:
    """A number and its text, None and its text, true and one are different jobs."""
    values = [1, "1", None, "None", True, 1.5, "1.5"]
    results = [shared.play.apply_async((value, ["return:x"]), countdown=3600) for value in values]
    assert [result.outcome for result in results] == [Outcome.ADMITTED] * len(values)
    for result in results:
        result.revoke()
        with pytest.raises(TaskRevokedError):
            result.get(PATIENCE)


def test_calls_that_mean_the_same_are_one_job(shared: House) -> None:
    """Positional, named, defaulted: however the same call is written, it is the same job."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((10,), {}),
        ((), {"a": 10}),
        ((10, 2), {}),
        ((10,), {"b": 2}),
        ((), {"b": 2, "a": 10}),
    ]
    results = [shared.add.apply_async(args, kwargs, countdown=0.5) for args, kwargs in calls]
    assert len({result.id for result in results}) == 1
    assert [result.get(PATIENCE) for result in results] == [12] * len(calls)
    assert len([mark for mark in shared.marks("add") if mark["args"] == [10, 2]]) == 1


@pytest.mark.parametrize("value", [{1, 2}, object(), float("nan"), float("inf"), "\ud800", "x" * 300_000])
def test_arguments_without_json_are_refused_before_anything_is_stored(shared: House, value: object) -> None:
    """An argument that JSON does not support raises an error at the caller, and nothing is stored."""
    before = shared.ledger.find(shared.everything())
    with pytest.raises(InvalidPayloadError):
        shared.echo.delay(value)
    assert shared.ledger.find(shared.everything()) == before
