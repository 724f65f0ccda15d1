"""The receivers of Celery's signals in apps with tasks of onejob: for beat, and for the metrics of an ending child."""

from typing import Any

from celery import signals

from onejob.observability.meter import write_all


def connect() -> None:
    """Connect the receivers. Repeating the call changes nothing."""
    signals.beat_init.connect(_run_beside, weak=False, dispatch_uid="onejob.run_beside")
    # The exit of a pool's child runs no `atexit` handlers.
    signals.worker_process_shutdown.connect(_write_metrics, weak=False, dispatch_uid="onejob.child_ends")


def _run_beside(sender: Any, **_: Any) -> None:
    if sender.app.conf.get("onejob_beat"):
        from onejob.celery.beat.beside_beat import run_beside

        run_beside(sender)


def _write_metrics(**_: Any) -> None:
    write_all()
