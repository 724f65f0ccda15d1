"""The decorator of the values that are built for every job: immutable for the type checker, cheap at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["value"]

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:
    from dataclasses import dataclass

    def value(*, frozen: bool, **options: bool) -> Any:  # noqa: ARG001 - for the type checker
        """Return the decorator of a dataclass whose instances must not be changed, which the type checker enforces.

        The constructor of a frozen dataclass calls a function for each field: a tenth of what a submission computes.
        """
        return dataclass(unsafe_hash=True, **options)
