"""Answers that are good for a moment: however often somebody asks, the one who knows is asked now and then."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class TTLCache(Generic[T]):
    """Asks once in so many seconds at most, one at a time; others get the same answer, or the same exception.

    `rest`: after an answer that took long, it asks no more for so many times as long.
    """

    def __init__(self, ask: Callable[[], T], seconds: float, *, rest: float = 0.0) -> None:
        self._ask = ask
        self._seconds = seconds
        self._rest = rest
        self._lock = threading.Lock()
        self._until = float("-inf")
        self._answer: T
        self._error: Exception | None = None

    def __call__(self) -> T:
        """Return the answer, or raise what there was instead of one."""
        with self._lock:
            begun = time.monotonic()
            if begun >= self._until:
                self._ask_now()
                now = time.monotonic()
                self._until = now + max(self._seconds, self._rest * (now - begun))
            if self._error is not None:
                raise self._error.with_traceback(None)
            return self._answer

    def _ask_now(self) -> None:
        try:
            self._answer, self._error = self._ask(), None
        except Exception as error:  # noqa: BLE001 - it is raised for everybody who asks
            self._error = error
