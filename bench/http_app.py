"""What `bench.http` serves: the job API of an app (`ours`), and an endpoint around `delay()` (`plain`)."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from fastapi import FastAPI
from pydantic import BaseModel

import onejob
from onejob.api import create_app

BROKER = "ONEJOB_BENCH_BROKER"
STORE = "ONEJOB_BENCH_STORE"

celery_app = Celery("bench", broker=os.environ[BROKER], set_as_current=False)
celery_app.conf.update(onejob_store=os.environ[STORE], task_ignore_result=True)
task: Any = celery_app.task


def work(order_id: int, note: str = "") -> str:
    """Do nothing: no worker runs it."""
    return f"{order_id}{note}"


guarded = task(name="bench.guarded", base=onejob.Task, shared=False, expose=True)(work)
bare = task(name="bench.bare", shared=False)(work)


class PendingRequest(BaseModel):
    """What the endpoint takes."""

    order_id: int
    note: str = ""


plain = FastAPI()


@plain.post("/jobs", status_code=202)
def ask(wanted: PendingRequest) -> dict[str, str]:
    """Send a task with plain Celery, with none of the guarantees."""
    return {"id": bare.delay(order_id=wanted.order_id, note=wanted.note).id}


ours = create_app(celery_app, waits_per_caller=100_000)
