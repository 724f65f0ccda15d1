"""The laws of the checks of the beat schedule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from onejob.celery.app_state import app_state_of
from onejob.celery.beat.ticks import Beat
from onejob.doctor.schedules import check_ticks, check_versions, examine
from onejob.health.finding import Installation
from onejob.jobs.schedule_state import ScheduleState, schedule_digest
from onejob.jobs.workers import WorkerInfo
from onejob.stores.sqlite import SQLiteStore
from tests.celery.schedules import NIGHTLY, make_app
from tests.doctor.support import names
from tests.stores.support import START, ManualClock


def worker(name: str, *specs: str) -> WorkerInfo:
    return WorkerInfo(name, 0.0, schedules=tuple(schedule_digest("nightly", spec) for spec in specs))


def test_different_schedules_of_live_workers_are_found() -> None:
    """An entry of which live workers have different schedules is found, with the workers of each."""
    state = ScheduleState("nightly", "n", "every 2 s", START, START, former_specs=("every 1 s",))
    alike = [worker("a", "every 2 s"), worker("b", "every 2 s"), worker("c")]
    assert names(check_versions([state], alike, {})) == set()
    (found,) = check_versions([state], [*alike, worker("d", "every 1 s")], {})
    expected = "schedule-versions", "nightly is 'every 2 s' on a, b, 'every 1 s' on d"
    assert (found.check, found.problem) == expected
    (found,) = check_versions([state], [*alike, worker("d", "daily")], {"nightly": "daily"})
    assert "'daily' on d" in found.problem


def test_an_overdue_entry_is_found(tmp_path: Path, clock: ManualClock) -> None:
    """An entry whose ticks nobody submits is found, with the reason."""
    store = SQLiteStore(str(tmp_path / "ledger.db"), clock=clock)
    app = make_app(store, {"nightly": NIGHTLY, "ended": NIGHTLY | {"options": {"expires": "2020-01-01T00:00:00Z"}}})
    Beat(app).look()
    ledger = app_state_of(app).ledger
    assert [each.problem for each in check_ticks(app, ledger)] == [
        "the entry ended has ended: its option expires is 2020-01-01T00:00:00Z"
    ]
    clock.advance(3 * 60.0)
    (_, late) = check_ticks(app, ledger)
    assert (late.check, late.problem) == (
        "schedule-late", "the entry nightly is overdue: no live worker runs this schedule"
    )  # fmt: skip
    installation = Installation(settings=app_state_of(app).settings, ledger=ledger, app=app)
    assert [each.check for each in examine(installation)] == ["schedule-late"] * 2
    assert [*examine(replace(installation, app=None))] == []
    store.close()
