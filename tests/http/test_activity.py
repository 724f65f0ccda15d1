"""The activity of a ledger over HTTP and at the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from onejob.jobs.records import Period
from tests.cases import for_each
from tests.cli.command import call
from tests.http.conftest import problem

if TYPE_CHECKING:
    from tests.http.conftest import Shop


@pytest.fixture
def busy(open_shop: Any) -> Shop:
    """Return a shop with jobs and a duplicate, of which one completed and one failed; its counts are written."""
    shop: Shop = open_shop()
    ids = [shop.job_id(number) for number in range(2)]
    shop.submit(0)
    shop.submit(0, "strict")
    shop.completed(ids[0])
    shop.failed(ids[1])
    shop.ledger.redrive(ids[1])
    shop.ledger.close()
    return shop


@for_each("period, slots", [(Period.MINUTE, 60), (Period.HOUR, 168)])
def test_the_activity_of_a_ledger(busy: Shop, period: Period, slots: int) -> None:
    """`GET /activity` returns the figures of the last hour by minute, or of the last week by hour."""
    found = busy.get("/activity", params={"period": period}).json()
    assert (found["period"], len(found["slots"])) == (period, slots)
    assert (found["begin"], found["slots"][0]["begin"][-1]) == (found["slots"][0]["begin"], "Z")
    totals = found["totals"]
    assert totals["submissions"] == {"admitted": 3, "attached": 1}
    assert (totals["runs"], totals["failed_share"], totals["redriven"]) == ({"completed": 1, "failed": 1}, 0.5, 1)
    assert (totals["run_seconds"]["count"], totals["wait_seconds"]["count"]) == (2, 2)
    invoice, strict = found["tasks"]
    assert (invoice["task"], invoice["duplicates_prevented"]) == ("shop.invoice", 1)
    assert invoice["seconds_saved"] == pytest.approx(totals["run_seconds"]["sum"] / 2)
    assert (strict["task"], strict["failed_share"]) == ("shop.strict", None)
    assert sum(sum(slot["submissions"].values()) for slot in found["slots"]) == 4


def test_an_activity_without_jobs(open_shop: Any) -> None:
    """The activity of an empty ledger has all slots, by minute unless another period is given, and no task."""
    found = open_shop().get("/activity").json()
    assert (found["period"], len(found["slots"]), found["tasks"]) == ("minute", 60, [])
    assert {slot["seconds_saved"] for slot in found["slots"]} == {0.0}


def test_an_unknown_period_is_refused(shop: Shop) -> None:
    """A period that is not kept is an invalid request."""
    problem(shop.get("/activity?period=day"), 422, "invalid-request")


def test_the_activity_at_the_command_line(busy: Shop) -> None:
    """`onejob activity` prints a line for each slot with events, each task, and the totals; as JSON what HTTP has."""
    command = ("--store", str(busy.app.conf.onejob_store), "activity")
    by_time, by_task = (part.splitlines() for part in call(*command, "--period", "hour").output.split("\n\n"))
    assert [line.split()[0] for line in by_task] == ["task", "shop.invoice", "shop.strict", "total"]
    assert by_time[0].split()[:3] == ["hour", "from", "submissions"]
    assert by_time[-1].split() == by_task[-1].split()
    assert by_task[-1].split()[1:3] == ["4", "1"]
    assert by_task[-1].split()[4:6] == ["2", "50.0%"]
    assert len(by_time) in {3, 4}
    printed, returned = json.loads(call(*command, "--json").output), busy.get("/activity").json()
    assert (printed["totals"], printed["tasks"]) == (returned["totals"], returned["tasks"])
    assert printed.keys() == returned.keys()
