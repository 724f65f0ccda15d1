"""Registers the jobs in Django's admin, which imports this module."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from django.contrib import admin
from django.core import checks

from onejob.django.models import Job

NEEDED = ("fastapi", "jinja2")
"""The packages of the extra that the pages of jobs are made with."""


def _missing() -> list[str]:
    return [name for name in NEEDED if find_spec(name) is None]


if not _missing():
    from onejob.django.job_admin import JobAdmin

    admin.site.register(Job, JobAdmin)


def check_packages(**_: Any) -> list[Any]:
    """Return a hint if the jobs are not in the admin since packages are missing."""
    if not _missing():
        return []
    text = f"the jobs are not in the admin: {', '.join(_missing())} is missing"
    return [checks.Info(text, hint='pip install "onejob[django,server]"', id="onejob.I001")]


checks.register(check_packages)
