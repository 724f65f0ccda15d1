"""Two versions of one program: with `VERSION=old` on the old libraries themselves, else on their shims."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from celery import Celery

if os.environ["VERSION"] == "new":
    from onejob.compat import celery_once, celery_singleton

    celery_once.install(share_old_locks=True)
    celery_singleton.install(share_old_locks=True)
from celery_once import AlreadyQueued, QueueOnce
from celery_singleton import Singleton

url, ran = os.environ["URL"], Path(os.environ["RAN"])
app = Celery("two_versions", broker=url, backend=url.replace("/0", "/1"))
app.conf.update(
    onejob_store=f"sqlite:///{ran.parent / 'ledger.db'}",
    singleton_backend_url=url.replace("/0", "/2"),
    ONCE={"backend": "celery_once.backends.Redis", "settings": {"url": url.replace("/0", "/2")}},
)


def record(key: str) -> None:
    with ran.open("a") as file:
        file.write(f"{key}\n")


define: Any = app.task
define(base=Singleton, name="single", shared=False)(record)
define(base=QueueOnce, name="once", once={"keys": ["key"]}, shared=False)(record)


if __name__ == "__main__":
    try:
        sys.stdout.write(app.tasks[sys.argv[1]].delay(sys.argv[2]).id)
    except AlreadyQueued:
        sys.stdout.write("AlreadyQueued")
