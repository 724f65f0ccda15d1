"""The sums of costs, by task, submitter, tag and day: how they are added up, sorted, limited, and who sees them."""

from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest

from onejob.jobs.costs import CostsBy
from onejob.jobs.durations import DAY
from onejob.ledger.costs import read_costs
from onejob.ledger.ledger import Ledger
from onejob.ledger.reader import JobReader, Visibility
from tests.cases import for_each
from tests.stores.support import START, ManualClock, run, submit

TODAY = date(1970, 1, 1) + timedelta(seconds=START)
JOBS: dict[str, dict[str, Any]] = {
    "one": {"task": "app.add", "submitter": "anna", "tag_lines": "blue\nred"},
    "two": {"task": "app.add", "submitter": "ben", "tag_lines": "red"},
    "three": {"task": "app.multiply", "submitter": "anna"},
}
"""Each job costs twice as much as the one before, and has one duplicate."""
EXPECTED: dict[str, list[tuple[str, str, str]]] = {
    "task": [("app.multiply", "4", "4"), ("app.add", "3", "3")],
    "submitter": [("anna", "5", "5"), ("ben", "2", "2")],
    "tag": [("red", "3", "3"), ("blue", "1", "1")],
    "day": [(str(TODAY + timedelta(days=1)), "4", "4"), (str(TODAY), "3", "3")],
}


@pytest.fixture
def spent(ledger: Ledger, clock: ManualClock) -> Ledger:
    """Return a ledger with the costs of the jobs; the last one's are those of the next day."""
    for number, (name, values) in enumerate(JOBS.items()):
        if name == "three":
            clock.advance(DAY)
        job = run(ledger.store, name, identity=name, **values)
        submit(ledger.store, f"{name} again", identity=name, submitter="carl")
        ledger.add_cost(job, {"usd": Decimal(2**number), "tokens": Decimal(1)})
    return ledger


def of(reader: JobReader, by: str, **values: Any) -> list[tuple[str, str, str]]:
    """Return name, spent and saved of the costs in dollars."""
    found = read_costs(reader, CostsBy(by), **values)
    return [(each.name, str(each.spent), str(each.saved)) for each in found if each.unit == "usd"]


@for_each("by", EXPECTED)
def test_costs_are_added_up_by_each_group(spent: Ledger, by: str) -> None:
    """Groups are listed with the largest first, and days with the newest first."""
    assert of(spent, by) == EXPECTED[by]


def test_costs_are_limited(spent: Ledger) -> None:
    """A limit leaves the first groups of each unit; a task and days select."""
    found = read_costs(spent, CostsBy.TASK, limit=3)
    assert [(each.unit, each.name) for each in found] == [
        ("tokens", "app.add"), ("tokens", "app.multiply"), ("usd", "app.multiply"),
    ]  # fmt: skip
    assert of(spent, "submitter", task="app.multiply") == [("anna", "4", "4")]
    assert of(spent, "task", since=TODAY, until=TODAY) == [("app.add", "3", "3")]
    assert of(spent, "task", since=TODAY + timedelta(days=2)) == []
    assert of(spent, "task", until=TODAY - timedelta(days=1)) == []


def test_the_days_are_the_last_thirty(spent: Ledger, clock: ManualClock) -> None:
    """Without a first day, the last 30 days count, and with one all that are kept."""
    clock.advance(DAY * 29)
    assert of(spent, "task") == [("app.multiply", "4", "4")]
    assert of(spent, "task", since=date(2000, 1, 1)) == EXPECTED["task"]


VISIBLE: list[tuple[Visibility, str, list[tuple[str, str, str]]]] = [
    (Visibility(submitter="ben"), "task", [("app.add", "2", "2")]),
    (Visibility(submitter="ben"), "submitter", [("ben", "2", "2")]),
    (Visibility(submitter="ben"), "tag", []),
    (Visibility(submitter="(others)"), "submitter", []),
    (Visibility(tasks=frozenset({"app.multiply"})), "submitter", [("anna", "4", "4")]),
    (Visibility(tasks=frozenset({"app.add"})), "tag", [("red", "3", "3"), ("blue", "1", "1")]),
]


@for_each("visibility, by, expected", VISIBLE)
def test_a_limited_reader_sees_its_own_costs(
    spent: Ledger, visibility: Visibility, by: str, expected: list[tuple[str, str, str]]
) -> None:
    """A reader of the jobs of a submitter, or of tasks, sees the costs of these only."""
    assert of(JobReader(spent.store, visibility), by) == expected
