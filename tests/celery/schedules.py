"""An app with a beat schedule on a store, and the jobs of its ticks."""

import json
from typing import Any

import celery
from celery import Celery

import onejob
from onejob.celery.app_state import app_state_of
from onejob.compat.celery_once import QueueOnce
from onejob.compat.celery_singleton import Singleton
from onejob.config import build_ledger
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.jobs.timestamps import parse_timestamp
from onejob.stores.protocol import Store

EVERY = 60.0
NIGHTLY = {"task": "shop.add", "schedule": EVERY, "args": (1, 2)}


def make_app(store: Store, schedule: dict[str, Any], **settings: Any) -> Celery:
    """Return an app on a store, with a onejob task and a plain one, whose messages stay in the process."""
    app = celery.Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(
        onejob_store="sqlite:///elsewhere.db", onejob_beat=True, result_backend="cache+memory://", **settings
    )
    app.conf.beat_schedule = schedule

    def add(a: int, b: int = 0) -> int:
        return a + b

    app.task(base=onejob.Task, shared=False, name="shop.add")(add)
    app.task(base=onejob.Task, shared=False, name="shop.daily", unique_for=3600)(add)
    app.task(base=onejob.Task, shared=False, name="shop.keyed", requires_key=True)(add)
    app.task(base=QueueOnce, shared=False, name="shop.once")(add)
    app.task(base=Singleton, shared=False, name="shop.single")(add)
    app.task(shared=False, name="shop.plain")(add)
    app_state = app_state_of(app)
    app_state.use(build_ledger(app_state.settings, store=store), app_state.publisher, None)
    return app


def ticks_of(jobs: list[JobRow]) -> list[float]:
    """Return the moments of the ticks of jobs, in order."""
    return sorted(parse_timestamp(json.loads(job.options)["headers"]["onejob_tick"]) for job in jobs)


def jobs_of(store: Store) -> list[JobRow]:
    return [job for job in store.find(Query(limit=10_000)) if job.source == "beat"]
