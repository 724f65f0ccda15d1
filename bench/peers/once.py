"""celery-once: a lock in Redis per task and arguments, with a timeout."""

from __future__ import annotations

import os

from celery_once import QueueOnce

from bench.peers.common import BROKER, CeleryPeer, celery_app, work

app = celery_app()
app.conf.ONCE = {
    "backend": "celery_once.backends.Redis",
    "settings": {"url": os.environ[BROKER], "default_timeout": 3600},
}
peer = CeleryPeer(__name__, app.task(name="bench.work", base=QueueOnce, once={"graceful": True})(work))
