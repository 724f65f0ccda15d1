"""Exceptions that a body may raise, and that a worker could take for something else."""

import threading
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded, Terminated, TimeLimitExceeded, WorkerLostError


class ExitError(Exception, SystemExit):
    """An exception that is a `SystemExit`, too."""


class InterruptError(Exception, KeyboardInterrupt):
    """An exception that is a `KeyboardInterrupt`, too."""


class LockedError(Exception):
    """An exception that cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message, threading.Lock())


class UnrestorableError(Exception):
    """An exception that can be pickled, and not be restored."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


class OddBase(BaseException):
    """No `Exception`."""


def in_group(message: str) -> ExceptionGroup[MemoryError]:
    return ExceptionGroup(message, [MemoryError(message)])


def in_base_group(message: str) -> BaseExceptionGroup[OddBase]:
    return BaseExceptionGroup(message, [OddBase(message)])


ERRORS: dict[str, Any] = {
    each.__name__: each
    for each in (
        MemoryError, WorkerLostError, Terminated, TimeLimitExceeded, SoftTimeLimitExceeded, ExitError, InterruptError,
        LockedError, in_group,
    )
} | {"UnrestorableError": lambda message: UnrestorableError(message, code=1)}  # fmt: skip
"""Makes an exception from a message."""
BASES: dict[str, Any] = {each.__name__: each for each in (GeneratorExit, OddBase, in_base_group)}
"""The same for those that are no `Exception`."""
