"""A program written for celery-singleton: only the import differs."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery

import onejob
from onejob.compat.celery_singleton import Singleton
from tests.celery.app import CONFIG, Stage, act


def build(config: dict[str, Any]) -> Celery:
    """Return the program's app, with settings as Django has them: in capitals, below a namespace."""
    app = Celery("tests")
    app.config_from_object({f"CELERY_{name.upper()}": value for name, value in config.items()}, namespace="CELERY")
    define: Any = app.task
    stage = Stage(config["test_stage"])
    for name, options in VARIANTS.items():
        define(_do_stuff(stage), name=name, base=Singleton, bind=True, shared=False, **options)
    return app


VARIANTS: dict[str, dict[str, Any]] = {
    "do_stuff": {},
    "per_user": {"unique_on": "username", "raise_on_duplicate": False},
    "one_at_a_time": {"unique_on": [], "raise_on_duplicate": True},
    "expiring": {"lock_expiry": 1},
}


def _do_stuff(stage: Stage) -> Any:
    def do_stuff(self: Any, username: str, acts: Any = ("hold",), data: Any = None) -> Any:
        """Do what `acts` says for this attempt; the last one is for all attempts that follow."""
        attempt = onejob.current_job().attempt
        stage.mark(username, "run", id=self.request.id, attempt=attempt)
        return act(self, stage, username, acts[min(attempt, len(acts)) - 1], data)

    return do_stuff


if CONFIG in os.environ:
    app = build(json.loads(os.environ[CONFIG]))
