"""The commands on the beat schedule."""

from __future__ import annotations

from pathlib import Path

import pytest

from onejob.client.schedules import CHANGE_TRIES
from onejob.jobs.query import Query
from onejob.jobs.schedule_state import ScheduleState
from onejob.ledger.ledger import Ledger
from tests.cli.command import Shell

SCHEDULE = """
app.conf.beat_schedule = {"hourly": {"task": "%s", "schedule": 3600.0, "args": [7]}}
"""


def with_schedule(shell: Shell, folder: Path, task: str = "{}.invoice") -> None:
    name = shell.options[1]
    with (folder / f"{name}.py").open("a") as module:
        module.write(SCHEDULE % task.format(name))


def test_an_entry_is_listed_paused_resumed_and_run(
    ledger: Ledger, app_shell: Shell, tmp_path: Path, shell: Shell
) -> None:
    """`beat` lists the entries of an app, which it needs, and pauses, resumes or runs one, which is recorded."""
    with_schedule(app_shell, tmp_path)
    assert "hourly is paused." in app_shell("beat", "pause", "hourly").output
    (entry,) = [each for each in app_shell.json("beat", "list") if each["name"] == "hourly"]
    assert entry["paused"] is True
    assert entry["next_tick_at"] is None
    assert entry["schedule"] == "every 3600 s"
    assert "paused" in app_shell("beat", "list").output
    assert "hourly goes on." in app_shell("beat", "resume", "hourly").output
    (entry,) = [each for each in app_shell.json("beat", "list") if each["name"] == "hourly"]
    assert entry["next_tick_at"].endswith("Z")
    output = app_shell("beat", "run", "hourly").output
    (job,) = ledger.find(Query())
    assert job.id in output
    refused = app_shell("beat", "pause", "daily")
    assert refused.exit_code == 1
    assert "no entry named 'daily'" in refused.output
    assert "named 'hourli': did you mean hourly?" in app_shell("beat", "pause", "hourli").output
    recorded = [(each.action, each.target, each.outcome.partition(":")[0]) for each in ledger.audit(limit=9)]
    assert recorded == [
        ("beat pause", "hourli", "refused"), ("beat pause", "daily", "refused"), ("beat run", "hourly", "done"),
        ("beat resume", "hourly", "done"), ("beat pause", "hourly", "done"),
    ]  # fmt: skip
    refused = shell("beat", "list")
    assert refused.exit_code == 1
    assert "-A module" in refused.output


def test_an_entry_that_cannot_be_run_or_changed(
    ledger: Ledger, app_shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that fails, and an entry that workers change all the time, are errors in one sentence."""
    with_schedule(app_shell, tmp_path)
    assert app_shell("beat", "pause", "hourly").exit_code == 0
    calls: list[ScheduleState] = []

    def refuse(_self: object, state: ScheduleState, *, expected: str) -> bool:
        calls.append(state)
        return False

    monkeypatch.setattr("onejob.stores.sqlite.SQLiteStore.put_schedule", refuse)
    refused = app_shell("beat", "resume", "hourly")
    assert refused.exit_code == 1
    assert "try again" in refused.output
    assert len(calls) == CHANGE_TRIES
    monkeypatch.setattr("onejob.client.schedules.submit", lambda *_, **__: 1 / 0)
    refused = app_shell("beat", "run", "hourly")
    assert refused.exit_code == 1
    assert "cannot be submitted: ZeroDivisionError" in refused.output
