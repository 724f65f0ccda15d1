"""A cache of one value, so that frequent requests cause few calls to the store or the broker."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class TTLCache(Generic[T]):
    """Calls `load` at most once in so many seconds, one call at a time, and caches its value or its exception.

    `cost_factor`: a load that took `t` seconds is cached for `cost_factor * (t - free_seconds)` seconds if that is
    longer.
    """

    def __init__(
        self, load: Callable[[], T], seconds: float, *, cost_factor: float = 0.0, free_seconds: float = 0.0
    ) -> None:
        self._load = load
        self._seconds = seconds
        self._cost_factor = cost_factor
        self._free_seconds = free_seconds
        self._lock = threading.Lock()
        self._expires_at = float("-inf")
        self._value: T
        self._error: Exception | None = None

    def __call__(self) -> T:
        """Return the value, or raise the exception, that was loaded last."""
        with self._lock:
            started = time.monotonic()
            if started >= self._expires_at:
                self._refresh()
                now = time.monotonic()
                cost = now - started - self._free_seconds
                self._expires_at = now + max(self._seconds, self._cost_factor * cost)
            if self._error is not None:
                raise self._error.with_traceback(None)
            return self._value

    def _refresh(self) -> None:
        try:
            self._value, self._error = self._load(), None
        except Exception as error:  # noqa: BLE001 - it is raised for every caller
            self._error = error
