"""What each event loop has one of; most processes have one loop, tests have many."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class PerLoop(Generic[T]):
    """One `T` for each event loop, made by `make` when it is first asked for there."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._of: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()

    def all(self) -> list[T]:
        """Return those of all loops."""
        return list(self._of.values())

    def here(self) -> T:
        """Return that of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._of:
            self._of[loop] = self._make()
        return self._of[loop]
