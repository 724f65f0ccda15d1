"""Finds jobs and operates on them: `Client` for users, and its operations for the other front ends."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onejob.client.client import Client
    from onejob.client.filters import Filters
    from onejob.client.values import (
        Block,
        BulkPage,
        Duplicate,
        Edit,
        Explanation,
        Failure,
        HistoryEntry,
        JobCount,
        JobPage,
        LimitState,
        QueueLoad,
        RunLog,
        Schedule,
        Worker,
    )

__all__ = [
    "Block", "BulkPage", "Client", "Duplicate", "Edit", "Explanation", "Failure", "Filters", "HistoryEntry", "JobCount",
    "JobPage", "LimitState", "QueueLoad", "RunLog", "Schedule", "Worker",
]  # fmt: skip
_MODULES = {"Client": "client", "Filters": "filters"}
"""The modules of the names that are not in `values`: a front end that needs one operation imports no more."""


def __getattr__(name: str) -> Any:
    """Import a name when it is used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'values')}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
