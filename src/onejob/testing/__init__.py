"""Tests of users' own tasks, on a real ledger in a temporary directory: no broker, no server, no containers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onejob.testing.fault import CrashReport, Fault, faults
    from onejob.testing.isolation import JobsMixin, crash_matrix, isolated, reset, run_job
    from onejob.testing.jobs import JobRun, Jobs
    from onejob.testing.ledger import SubmittedJob

__all__ = [
    "CrashReport", "Fault", "JobRun", "Jobs", "JobsMixin", "SubmittedJob", "crash_matrix", "faults", "isolated",
    "reset", "run_job",
]  # fmt: skip

_NAMES = {
    "fault": ("CrashReport", "Fault", "faults"),
    "isolation": ("JobsMixin", "crash_matrix", "isolated", "reset", "run_job"),
    "jobs": ("JobRun", "Jobs"),
    "ledger": ("SubmittedJob",),
}
"""The public names by module, imported when used: pytest imports this package at each start, without Celery."""


def __getattr__(name: str) -> Any:
    """Import a name when it is used."""
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
