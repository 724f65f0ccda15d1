"""Filters of the templates of jobs: the same texts as on the dashboard."""

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

from django import template
from django.utils.timezone import localtime

from onejob.jobs.public_view import short_id

SHOWN = (
    "created_at", "run_at", "started_at", "finished_at", "expires_at", "lease_until", "identity_until",
    "key_retained_until", "wake_at", "reason", "submitter", "source", "queue", "worker", "attempt", "retries",
    "crashes", "token", "fingerprint", "holds_identity", "publish_error",
)  # fmt: skip
"""The fields of a job that have no section of their own."""


def shown_fields(job: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the names and the values of the fields of a job that have a value."""
    return [(name.replace("_", " "), _text_of(job[name])) for name in SHOWN if job[name] not in {"", None}]


def _text_of(value: object) -> str:
    return localtime(value).strftime("%Y-%m-%d %H:%M:%S %Z") if isinstance(value, datetime) else str(value)


def render(name: str, value: object) -> Any:
    """Return a value as the dashboard shows it. Django imports this module also where the extra is missing."""
    from onejob.pages import rendering

    return getattr(rendering, name)(value)


register = template.Library()
register.filter("shown_fields", shown_fields)
register.filter("short", short_id)
for name in ("duration", "pretty"):
    register.filter(name, partial(render, name))
