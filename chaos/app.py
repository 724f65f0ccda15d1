"""The Celery apps of the scripts, configured by the environment that `Testbed.environment` makes."""

from __future__ import annotations

import os

from celery import Celery

from chaos.testbed import NAMESPACE, PATIENT

EFFECTS = os.environ.get("CHAOS_EFFECTS", "sqlite://")
"""The URL of the database of the effects."""


def chaos_app(name: str) -> Celery:
    """Return the app of a worker or of a submitter."""
    app = Celery(name, broker=os.environ.get("CHAOS_BROKER", "memory://"))
    app.conf.update(
        onejob_store=os.environ.get("CHAOS_STORE", ""),
        onejob_namespace=NAMESPACE,
        onejob_lease=float(os.environ.get("CHAOS_LEASE", "6")),
        onejob_crash_limit=PATIENT.crash_limit,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
    )
    return app
