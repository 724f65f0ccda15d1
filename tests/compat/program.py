"""A program written for celery-singleton and celery-once: only the imports differ."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery

import onejob
from onejob.compat.celery_once import QueueOnce
from onejob.compat.celery_singleton import Singleton
from tests.celery.app import CONFIG, Checkpoints, act
from tests.intervals import read_intervals

SHARES = "test_shares"
"""Name in the configuration: whether the tasks share the locks of the old library; without it, they do not."""
TASKS: dict[str, dict[str, Any]] = {
    "single": {"base": Singleton},
    "single_user": {"base": Singleton, "unique_on": "user", "raise_on_duplicate": False},
    "single_raising": {"base": Singleton, "unique_on": [], "raise_on_duplicate": True},
    "single_brief": {"base": Singleton, "lock_expiry": 1},
    "once": {"base": QueueOnce},
    "once_graceful": {"base": QueueOnce, "once": {"graceful": True}},
    "once_user": {"base": QueueOnce, "once": {"keys": ["user"]}},
    "once_alone": {"base": QueueOnce, "once": {"keys": []}},
    "once_unlocking": {"base": QueueOnce, "once": {"unlock_before_run": True, "keys": ["user"]}},
    "once_brief": {"base": QueueOnce, "once": {"timeout": 1}},
}


def build(config: dict[str, Any]) -> Celery:
    """Return the program's app, with settings as Django has them: in capitals, below a namespace."""
    app = Celery("tests")
    app.config_from_object({f"CELERY_{name.upper()}": value for name, value in config.items()}, namespace="CELERY")
    read_intervals(app, config)
    define: Any = app.task
    shares = {"share_old_locks": True} if config.get(SHARES) else {}
    for name, options in TASKS.items():
        define(
            _do_stuff(Checkpoints(config["test_directory"])), name=name, bind=True, shared=False, **options, **shares
        )
    return app


def _do_stuff(checkpoints: Checkpoints) -> Any:
    def do_stuff(self: Any, user: str, acts: Any = ("hold",), data: Any = None) -> Any:
        """Do what `acts` says for this attempt; the last one is for all attempts that follow."""
        attempt = onejob.current_job().attempt
        checkpoints.mark(user, "run", id=self.request.id, attempt=attempt)
        return act(self, checkpoints, user, acts[min(attempt, len(acts)) - 1], data)

    return do_stuff


if CONFIG in os.environ:
    app = build(json.loads(os.environ[CONFIG]))
