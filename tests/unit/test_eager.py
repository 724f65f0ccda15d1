"""Whether tasks run where they are called is read at each submission, past Celery's slow configuration."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from onejob.celery.app_state import app_state_of


@pytest.mark.parametrize(
    ("namespace", "settings"),
    [
        (None, {}),
        (None, {"task_always_eager": True}),
        (None, {"CELERY_ALWAYS_EAGER": True}),
        ("CELERY", {"CELERY_TASK_ALWAYS_EAGER": True}),
        ("SHOP", {"SHOP_TASK_ALWAYS_EAGER": True}),
        ("shop", {"shop_task_always_eager": True}),
        ("Shop", {"SHOP_TASK_ALWAYS_EAGER": True}),
    ],
)
def test_it_is_what_celery_reads(namespace: str | None, settings: dict[str, Any]) -> None:
    """Under every spelling of the setting, before the configuration is loaded and after each change, it is Celery's."""
    app: Any = Celery("eager", set_as_current=False)
    app.config_from_object(settings, namespace=namespace)
    first = app_state_of(app).is_eager
    assert first == bool(app.conf.task_always_eager)
    for value in (True, False, True):
        app.conf.task_always_eager = value
        assert app_state_of(app).is_eager is value
    app.config_from_object({})
    assert app_state_of(app).is_eager == bool(app.conf.task_always_eager)
    app.conf.update(task_always_eager=True)
    assert app_state_of(app).is_eager
