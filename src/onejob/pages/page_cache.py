"""Caches for a moment what pages show, so that many open pages, and figures that take long, read the ledger less."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Generic, TypeVar

from onejob.celery.ttl_cache import TTLCache

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")
ENTRIES = 32
"""How many values are cached. A page takes up to about a megabyte."""


class KeyedCache(Generic[T]):
    """Values by key, each cached as a `TTLCache` does. What a key names does not depend on who asks for it."""

    def __init__(self, seconds: float, *, cost_factor: float, free_seconds: float = 0.0) -> None:
        def entry_of(_key: Hashable) -> _Entry[T]:
            return _Entry(seconds, cost_factor, free_seconds)

        self._find = lru_cache(ENTRIES)(entry_of)

    def get(self, key: Hashable, load: Callable[[], T]) -> T:
        """Return the value of a key, loaded by this call or by an earlier one."""
        return self._find(key).get(load)

    def clear(self) -> None:
        """Forget all values."""
        self._find.cache_clear()


class _Entry(Generic[T]):
    """One cached value."""

    def __init__(self, seconds: float, cost_factor: float, free_seconds: float) -> None:
        self._load: Callable[[], T]
        self._cached = TTLCache(self._call, seconds, cost_factor=cost_factor, free_seconds=free_seconds)

    def get(self, load: Callable[[], T]) -> T:
        self._load = load
        return self._cached()

    def _call(self) -> T:
        return self._load()
