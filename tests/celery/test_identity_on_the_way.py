"""A job's identity is the same at its submitter and at its worker, however the broker's JSON changes its arguments."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from onejob import Outcome
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


def test_a_job_is_the_same_from_every_source(shared: House) -> None:
    """A submitted value and the same value in a message that only the worker reads are one job."""
    firsts = {name: shared.play.apply_async((ALL[name][0], ["attempt"]), countdown=3600) for name in ALL}
    for name, (_, received) in ALL.items():
        again = shared.play.apply_async((received, ["return"]), countdown=3600)
        assert (again.id, again.outcome) == (firsts[name].id, Outcome.ATTACHED), name
    sent = {name: shared.app.send_task("play", (ALL[name][0], ["return"])) for name in ALL}
    for name, first in firsts.items():
        await_(lambda: shared.ledger.get_or_none(sent[name].id))  # noqa: B023 - called in this round
        assert shared.job(sent[name].id).follows_id == first.id, name
        assert first.get(PATIENCE) == shared.play.AsyncResult(sent[name].id).get(PATIENCE), name
        assert shared.job(first).attempt == 1, name


def test_a_value_round_trips(shared: House) -> None:
    """A value that Celery's JSON supports reaches the body unchanged, and returns to the caller unchanged."""
    results = {name: shared.echo.delay(value) for name, value in KEPT.items()}
    for name, value in KEPT.items():
        got = results[name].get(PATIENCE)
        assert (got, type(got)) == (value, type(value)), name
    assert {repr(value) for value in KEPT.values()} == {mark["value"] for mark in shared.marks("echo")}
