"""Reads and updates the rows of django-celery-beat: entries of the beat schedule that all processes share.

The rows keep the meaning that the scheduler of django-celery-beat gives them, which may take over at any time: so a
run is noted in its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from celery import Celery

from onejob import errors
from onejob.ledger.schedules import TINY
from onejob.observability.logs import log_warning


class Row:
    """One enabled row of django-celery-beat, as it was read."""

    def __init__(self, model: Any) -> None:
        self.name, self.once = str(model.name), bool(model.one_off)
        self._model, self._is_interval = model, model.interval_id is not None
        self._read = {name: getattr(model, name) for name in ("enabled", "last_run_at", "total_run_count")}
        self.begins_at = _to_seconds(model.last_run_at or model.date_changed)
        """The time after which ticks of the row are not decided: its last run, or its last change."""
        self._starts_at = _to_seconds(model.start_time)

    def to_entry(self, app: Celery) -> Any:
        """Return the row as an entry of Celery's beat."""
        from django_celery_beat.schedulers import ModelEntry

        entry = ModelEntry(self._model, app=app)  # which sets `last_run_at` of the model
        if self._model.expires:
            entry.options["expires"] = datetime.fromtimestamp(self._model.expires.timestamp(), UTC)
        return entry

    @property
    def has_run(self) -> bool:
        """Whether the row was to run once and has run, by its own scheduler, which has not disabled it yet."""
        return self.once and self._read["total_run_count"] > 0 and self._read["last_run_at"] is not None

    def next_after(self, after: float, following: Callable[[float], float | None]) -> float | None:
        """Return the first moment of the row after a time; `following` returns the next moment of its schedule.

        An interval begins with `start_time`. A row that is to run once, and whose time has passed, is due at once.
        """
        start = self._starts_at
        if start is not None and after < start:
            if self._is_interval:
                return start
            after = start - TINY
        moment = following(after)
        return round(after + TINY, 6) if moment is None and self.once else moment

    def record(self, tick: float) -> None:
        """Note in the row that it has run at a moment. Repeating the call changes nothing."""
        from django.db.models import F, Q

        if self.once:
            self.disable()
            return
        at = _to_datetime(tick)
        earlier = Q(last_run_at__isnull=True) | Q(last_run_at__lt=at)
        self._rows().filter(earlier, enabled=True).update(last_run_at=at, total_run_count=F("total_run_count") + 1)

    def disable(self) -> None:
        """Disable the row in the way of django-celery-beat, so that it runs anew when it is enabled."""
        from django_celery_beat.models import PeriodicTasks

        if self._rows().filter(enabled=True).update(enabled=False, last_run_at=None, total_run_count=0):
            PeriodicTasks.update_changed()

    def restore(self) -> None:
        """Write the values that were read, since the message of the tick was not sent."""
        self._rows().update(**self._read)

    def _rows(self) -> Any:
        return type(self._model).objects.filter(pk=self._model.pk)


def read_rows() -> Iterator[Row]:
    """Yield the enabled rows, if django-celery-beat is installed; none while its database is away."""
    try:
        from django.apps import apps
    except ImportError:
        return
    if not apps.ready or not apps.is_installed("django_celery_beat"):
        return
    from django.db import Error, close_old_connections
    from django_celery_beat.models import PeriodicTask

    close_old_connections()  # that of a worker's thread may be broken
    try:
        models = [*PeriodicTask.objects.enabled()]
    except Error as error:
        log_warning("the entries of django-celery-beat cannot be read: %s", errors.describe(error))
        return
    yield from map(Row, models)


def _to_seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()  # without a time zone, Django's, which is that of the process


def _to_datetime(seconds: float) -> datetime:
    from django.conf import settings

    return datetime.fromtimestamp(seconds, UTC if settings.USE_TZ else None)
