"""Tests of users' own tasks, on a real ledger in a temporary directory: no broker, no server, no containers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onejob.testing.fault import CrashReport, Fault, faults
    from onejob.testing.isolation import crash_matrix, isolated, reset, run_job
    from onejob.testing.jobs import JobRun, Jobs
    from onejob.testing.ledger import SubmittedJob
    from onejob.testing.mixin import JobsMixin

__all__ = [
    "CrashReport", "Fault", "JobRun", "Jobs", "JobsMixin", "SubmittedJob", "crash_matrix", "faults", "isolated",
    "reset", "run_job",
]  # fmt: skip

_MODULES = {
    "CrashReport": "fault",
    "Fault": "fault",
    "JobRun": "jobs",
    "Jobs": "jobs",
    "JobsMixin": "mixin",
    "SubmittedJob": "ledger",
    "crash_matrix": "isolation",
    "faults": "fault",
    "isolated": "isolation",
    "reset": "isolation",
    "run_job": "isolation",
}
"""Where each name is defined: pytest imports this package at each start, which must not import Celery."""


def __getattr__(name: str) -> Any:
    """Import a name when it is used."""
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
