"""Shorter intervals for the work in the background of an app under test: they are no settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from celery import Celery

from onejob.celery.app_state import Intervals, app_state_of

PREFIX = "test_"
"""Before the names of intervals in the configuration of an app under test: `test_sweep`."""


def set_intervals(app: Celery, **given: Any) -> None:
    """Give an app other intervals, in seconds, before its worker starts and its ledger is opened."""
    state = app_state_of(app)
    state.intervals = replace(state.intervals, **given)


def read_intervals(app: Celery, config: Mapping[str, Any]) -> None:
    """Give an app the intervals that a configuration names, which may come from JSON."""
    names = [each.name for each in fields(Intervals) if f"{PREFIX}{each.name}" in config]
    given = {name: config[f"{PREFIX}{name}"] for name in names}
    set_intervals(app, **{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})
