"""Hides the ledger's URL and the webhook secrets in `celery report`, `celery inspect conf` and `app.conf.humanize()`.

Celery hides values by the names of their settings, and has no way to add a name: it hides passwords in `broker_url` and
in names with "backend", and texts (not mappings) in names with "SECRET". So another filter, which calls Celery's,
replaces it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from celery.app import utils

if TYPE_CHECKING:
    from collections.abc import Mapping

MASK = "********"
_HIDDEN = re.compile(r"onejob_(store|webhook_\w*secrets\w*)$", re.IGNORECASE)
_celery_filter = utils.filter_hidden_settings


def filter_hidden_settings(conf: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a configuration for display, as Celery does, with the secrets of onejob hidden, too."""
    hidden: dict[Any, Any] = {
        name: MASK if value and isinstance(name, str) and _HIDDEN.search(name) else value
        for name, value in conf.items()
    }
    filtered: dict[Any, Any] = _celery_filter(hidden)
    return filtered


def install() -> None:
    """Replace Celery's filter. Repeating the call changes nothing."""
    utils.filter_hidden_settings = filter_hidden_settings
