"""A program written for celery-once: only the import differs."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery

import onejob
from onejob.compat.celery_once import QueueOnce
from tests.celery.app import CONFIG, Stage, act

VARIANTS: dict[str, dict[str, Any]] = {
    "slow_task": {},
    "graceful": {"once": {"graceful": True}},
    "keyed": {"once": {"keys": ["key"]}},
    "one_at_a_time": {"once": {"keys": []}},
    "unlocking": {"once": {"unlock_before_run": True, "keys": ["key"]}},
    "brief": {"once": {"timeout": 1}},
}


def build(config: dict[str, Any]) -> Celery:
    """Return the program's app."""
    app = Celery("tests", changes=config)
    define: Any = app.task
    stage = Stage(config["test_stage"])
    for name, options in VARIANTS.items():
        define(_slow_task(stage), name=name, base=QueueOnce, bind=True, shared=False, **options)
    return app


def _slow_task(stage: Stage) -> Any:
    def slow_task(self: Any, key: str, acts: Any = ("hold",), data: Any = None) -> Any:
        """Do what `acts` says for this attempt; the last one is for all attempts that follow."""
        attempt = onejob.current_job().attempt
        stage.mark(key, "run", id=self.request.id, attempt=attempt)
        return act(self, stage, key, acts[min(attempt, len(acts)) - 1], data)

    return slow_task


if CONFIG in os.environ:
    app = build(json.loads(os.environ[CONFIG]))
