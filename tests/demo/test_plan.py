"""The progress of the study plan."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from onejob import RunningJob
from onejob.celery.app_state import app_state_of
from onejob.uniqueness.canonical_json import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the demo's app, with its files in a folder of this test."""
    monkeypatch.setenv("ONEJOB_DEMO_FOLDER", str(tmp_path))
    monkeypatch.delitem(sys.modules, "onejob.demo.app", raising=False)
    loaded = import_module("onejob.demo.app")
    yield loaded
    app_state_of(loaded.app).ledger.close()
    del sys.modules["onejob.demo.app"]


def test_progress_never_goes_back(demo: Any) -> None:
    """After a crash, progress continues from the completed calls, and never decreases."""
    ledger = app_state_of(demo.app).ledger
    job_id = demo.study_plan.delay("plan").id

    def run(*calls: str) -> list[int]:
        job = ledger.claim(job_id, nonce=f"nonce-{len(calls)}", node="node").job
        assert job is not None
        plan = demo._Plan(RunningJob(job, ledger, Limits()))
        seen: list[int] = []
        plan.start_stage("load")
        for name in calls:
            plan.set_total(9)
            plan.call("embed", name, len, "value")
            plan.start_stage("embed")
            seen.append(json.loads(ledger.get(job_id).progress or "{}")["done"])
        ledger.crash(job, "its worker died", "{}")
        return seen

    assert run("embed 1", "embed 2") == [1, 2]
    assert run("embed 1", "embed 2", "embed 3") == [2, 2, 3]
    assert demo.provider.calls() == 3
