"""What each program beside a package begins with. It is copied into the program's folder, and imports no package."""

from __future__ import annotations

import json
import os
import time  # noqa: F401 - as `onejob`
from pathlib import Path
from typing import Any

import celery

import onejob  # noqa: F401 - programs import all of this

MARKS = Path("marks.txt")


def make_app(make: type[celery.Celery] = celery.Celery, **settings: Any) -> celery.Celery:
    """Return an app with the broker and the ledger of the test."""
    app = make("shop", broker=os.environ["SHOP_BROKER"])
    app.conf.update(
        onejob_store=os.environ["SHOP_LEDGER"],
        onejob_namespace=os.environ["SHOP_NAMESPACE"],
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
        **settings,
    )
    from onejob.celery.app_state import Intervals, app_state_of

    app_state_of(app).intervals = Intervals(sweep=0.2, heartbeat=0.5)
    return app


def mark(*words: Any) -> None:
    """Leave a mark that the test reads."""
    with MARKS.open("a") as file:
        file.write(json.dumps(words, default=str) + "\n")
