"""The activity of a ledger over HTTP and at the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from onejob.cli import main
from onejob.jobs.records import Period
from tests.http.conftest import problem

if TYPE_CHECKING:
    from pathlib import Path

    from tests.http.conftest import Shop

SLOTS = {Period.MINUTE: 60, Period.HOUR: 168}


def busy(shop: Shop) -> None:
    """Submit jobs and a duplicate, let one complete and one fail, and write the counts."""
    ids = [shop.post("invoice", {"order_id": number}).json()["job"]["id"] for number in range(2)]
    shop.post("invoice", {"order_id": 0})
    shop.post("strict", {"order_id": 0})
    shop.ledger.complete(shop.claimed(ids[0]), "1")
    shop.failed(ids[1])
    shop.ledger.redrive(ids[1])
    shop.ledger.close()


@pytest.mark.parametrize("period", Period)
def test_the_activity_of_a_ledger(shop: Shop, period: Period) -> None:
    """`GET /activity` returns the figures of the last hour by minute, or of the last week by hour."""
    busy(shop)
    found = shop.client.get("/activity", params={"period": period}).json()
    assert (found["period"], len(found["slots"])) == (period, SLOTS[period])
    assert (found["begin"], found["slots"][0]["begin"][-1]) == (found["slots"][0]["begin"], "Z")
    totals = found["totals"]
    assert totals["submissions"] == {"admitted": 3, "attached": 1}
    assert (totals["runs"], totals["failed_share"], totals["redriven"]) == ({"completed": 1, "failed": 1}, 0.5, 1)
    assert (totals["run_seconds"]["count"], totals["wait_seconds"]["count"]) == (2, 2)
    by_task = {each["task"]: each for each in found["tasks"]}
    assert list(by_task) == ["shop.invoice", "shop.strict"]
    assert by_task["shop.invoice"]["duplicates_prevented"] == 1
    assert by_task["shop.invoice"]["seconds_saved"] == pytest.approx(totals["run_seconds"]["sum"] / 2)
    assert by_task["shop.strict"]["failed_share"] is None
    assert sum(sum(slot["submissions"].values()) for slot in found["slots"]) == 4


def test_an_activity_without_jobs(shop: Shop) -> None:
    """The activity of an empty ledger has all slots, by minute unless another period is given, and no task."""
    found = shop.client.get("/activity").json()
    assert (found["period"], len(found["slots"]), found["tasks"]) == ("minute", 60, [])
    assert {slot["seconds_saved"] for slot in found["slots"]} == {0.0}


def test_an_unknown_period_is_refused(shop: Shop) -> None:
    """A period that is not kept is an invalid request."""
    problem(shop.client.get("/activity?period=day"), 422, "invalid-request")


def call(tmp_path: Path, *args: str) -> Any:
    """Run `onejob activity` on the shop's ledger."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    return CliRunner().invoke(main, ["--store", url, "activity", *args], catch_exceptions=False)


def test_the_activity_at_the_command_line(shop: Shop, tmp_path: Path) -> None:
    """`onejob activity` prints a line for each slot in which something happened, one for each task, and the totals."""
    busy(shop)
    by_time, by_task = (part.splitlines() for part in call(tmp_path, "--period", "hour").output.split("\n\n"))
    assert [line.split()[0] for line in by_task] == ["task", "shop.invoice", "shop.strict", "total"]
    assert by_time[0].split()[:3] == ["hour", "from", "submissions"]
    assert by_time[-1].split() == by_task[-1].split()
    assert by_task[-1].split()[1:3] == ["4", "1"]
    assert by_task[-1].split()[4:6] == ["2", "50.0%"]
    assert len(by_time) in {3, 4}


def test_the_activity_as_json(shop: Shop, tmp_path: Path) -> None:
    """`onejob activity --json` prints what `GET /activity` returns."""
    busy(shop)
    printed = json.loads(call(tmp_path, "--json").output)
    returned = shop.client.get("/activity").json()
    assert (printed["totals"], printed["tasks"]) == (returned["totals"], returned["tasks"])
    assert printed.keys() == returned.keys()
