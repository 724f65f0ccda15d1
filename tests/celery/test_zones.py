"""Hosts whose time zone files differ: one of them ticks, a window has one end, and both are named."""

import os
import zoneinfo
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab

from onejob.celery.app_state import app_state_of
from onejob.celery.beat.ticks import Beat
from onejob.doctor import workers
from onejob.health.finding import Installation
from onejob.jobs.lifecycle import State
from onejob.jobs.workers import Registration
from onejob.jobs.zones import rules_of
from onejob.ledger.zone_rules import ZoneRules
from onejob.stores.protocol import Store
from onejob.uniqueness.window import window_of
from tests.celery.harness import Cluster, await_
from tests.celery.schedules import jobs_of, make_app
from tests.conftest import on_stores
from tests.services import MissingServiceError
from tests.stores.support import ManualClock, not_none

ZONE, OTHER = "America/Vancouver", "America/Denver"
HOURLY = {"task": "echo", "schedule": 3600.0, "relative": True, "args": ["tick"]}
fresh_address = on_stores("sqlite")


@pytest.fixture
def other_files(tmp_path: Path) -> str:
    """Return a PYTHONTZPATH in which one zone has the rules of another."""
    found = [Path(folder) / OTHER for folder in zoneinfo.TZPATH if (Path(folder) / OTHER).is_file()]
    if not found:
        raise MissingServiceError("the time zone files of the system (the package tzdata) are needed")
    path = tmp_path / "zones" / ZONE
    path.parent.mkdir(parents=True)
    path.write_bytes(found[0].read_bytes())
    return os.pathsep.join([str(tmp_path / "zones"), *zoneinfo.TZPATH])


def test_hosts_with_other_zone_files_agree_and_are_named(new_cluster: Callable[..., Cluster], other_files: str) -> None:
    """A window ends as its submitter says; a worker with other rules leaves the ticks, and logs and doctor name it."""
    cluster = new_cluster("sqlite", onejob_beat=True, timezone=ZONE, beat_schedule={"hourly": HOURLY})
    odd = cluster.worker("-c", "1", zone_files=other_files)
    window = not_none(window_of("play_daily", "finished", f"day@{ZONE}"))
    job = cluster.await_state(cluster.app.tasks["play_daily"].delay("day", ["return:done"]), State.COMPLETED)
    assert job.identity_until == window.end(job.created_at)
    await_(lambda: len(cluster.ledger.workers()) == 1)
    usual = cluster.worker("-c", "1")
    usual.await_text(f"the time zone files of workers: {ZONE}: ")
    assert odd.name in usual.text.partition("the time zone files of")[2]
    odd.await_text(f"the schedule entries in {ZONE} are left to workers with newer time zone files")
    assert "are left to workers" not in usual.text
    state = app_state_of(cluster.app)
    installation = Installation(settings=state.settings, ledger=state.ledger, app=cluster.app)
    (found,) = [each for each in workers.examine(installation) if each.check == "zone-rules"]
    assert all(name in found.problem for name in ("w1@test", "w2@test", "this host"))


def test_ticks_are_left_to_newer_rules_while_they_live(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A process ticks no entry of a zone for which a live worker of the schedule has newer rules, and says it once."""
    daily = {"task": "shop.add", "schedule": crontab(minute=0, hour=6), "args": (1, 2)}
    entries = {"there": daily, "here": {**daily, "schedule": 60.0}}
    looks = Beat(make_app(store, entries, timezone=ZONE))
    mine = ZoneRules("", rules_of(ZoneInfo(ZONE), datetime.now(UTC).timestamp()))
    looks.look()
    newest = (replace_digest(mine, "2999a").encode(ZONE),)
    newer = Registration(runs_schedule=True, zones=newest, schedules=looks.registered)
    store.heartbeat("celery@new", lasts=3 * 86400.0, registration=newer)
    for _ in range(2):
        clock.advance(86400.0)
        looks.look()
    assert {job.task for job in jobs_of(store)} == {"shop.add"}
    assert all(state.last_tick is None for state in store.schedules() if state.name == "there")
    assert any(state.last_tick for state in store.schedules() if state.name == "here")
    texts = [each.getMessage() for each in caplog.records if "are left to workers" in each.getMessage()]
    assert len(texts) == 1
    store.heartbeat("celery@new", lasts=3 * 86400.0, registration=replace(newer, runs_schedule=False))
    looks.look()
    assert all(state.last_tick for state in store.schedules())


def replace_digest(rules: ZoneRules, version: str) -> ZoneRules:
    """Return other rules of another release."""
    return ZoneRules(version, rules.digest[::-1] + "0")
