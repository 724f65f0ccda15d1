"""Registers the jobs in Django's admin, which imports this module."""

from importlib.util import find_spec
from typing import Any

from django.contrib import admin
from django.core import checks

from onejob.django.models import Job

MISSING = [name for name in ("fastapi", "jinja2") if find_spec(name) is None]
"""The missing packages of the extra that the pages of jobs need."""
if not MISSING:
    from onejob.django.job_admin import JobAdmin

    admin.site.register(Job, JobAdmin)


def check_packages(**_: Any) -> list[Any]:
    """Return a hint if the jobs are not in the admin because packages are missing."""
    if not MISSING:
        return []
    text = f"the jobs are not in the admin: {', '.join(MISSING)} is missing"
    return [checks.Info(text, hint='pip install "onejob[django,server]"', id="onejob.I001")]


checks.register(check_packages)
