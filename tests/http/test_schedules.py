"""The beat schedule over HTTP: its entries, and how one is paused, resumed and run."""

from __future__ import annotations

from typing import Any

import pytest

from onejob.celery.beat import Beat
from tests.http.conftest import Shop, problem

NAME = "invoices: 7/day"
PATH = "/schedules/invoices%3A%207/day"


@pytest.fixture
def scheduled(keyed: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Return the shop with an entry of the beat schedule, at which a worker has looked, and API keys."""
    entry = {"task": "shop.invoice", "schedule": 3600.0, "args": [7]}
    monkeypatch.setitem(keyed.app.conf, "beat_schedule", {NAME: entry})
    Beat(keyed.app).look()
    return keyed


def entry_of(shop: Shop) -> dict[str, Any]:
    response = shop.get("/schedules")
    assert response.status_code == 200, response.text
    (found,) = [each for each in response.json() if each["name"] == NAME]
    return dict(found)


def test_an_entry_is_paused_resumed_and_run(scheduled: Shop) -> None:
    """An operator pauses, resumes and runs an entry, each of which is recorded; a reader sees it with its next tick."""
    shop = scheduled.named("operate")
    before = entry_of(scheduled.named("read"))
    assert (before["task"], before["schedule"], before["missed"]) == ("shop.invoice", "every 3600 s", "last")
    assert (before["paused"], before["last_tick_at"], before["next_tick_at"] is None) == (False, None, False)
    paused = shop.post(f"{PATH}/pause")
    assert (paused.status_code, paused.json()) == (200, before | {"paused": True, "next_tick_at": None})
    assert entry_of(shop) == paused.json()
    assert shop.post(f"{PATH}/resume").json()["paused"] is False
    job_id = shop.post(f"{PATH}/run").json()["job_id"]
    assert shop.ledger.get(job_id).task == "shop.invoice"
    assert shop.post(f"{PATH}/run").json()["job_id"] == job_id
    recorded = [(entry.action, entry.target, entry.actor) for entry in shop.ledger.audit(limit=4)]
    actions = ["run_schedule", "run_schedule", "resume_schedule", "pause_schedule"]
    assert recorded == [(action, NAME, "operate") for action in actions]
    problem(shop.post("/schedules/nothing/pause"), 404, "schedule-not-found")
    problem(shop.post("/schedules/nothing/run"), 404, "schedule-not-found")
