"""Plain Celery: the reference."""

from __future__ import annotations

from bench.peers.common import CeleryPeer, celery_app, work

app = celery_app()
peer = CeleryPeer(__name__, app.task(name="bench.work")(work))
