"""celery-singleton: a lock in Redis per task and arguments."""

from __future__ import annotations

import os

from celery_singleton import Singleton

from bench.peers.common import BROKER, CeleryPeer, celery_app, work

app = celery_app(singleton_backend_url=os.environ[BROKER])
peer = CeleryPeer(__name__, app.task(name="bench.work", base=Singleton)(work))
