"""Caches for a moment what pages show, so that many open pages which update at once read the ledger once."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from onejob.api.ttl_cache import TTLCache

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.pages.rendering import Page, Redirect

FRESH_SECONDS = 0.5
"""How long a page is shown to others who update it."""
PAGES = 256
"""How many pages are cached."""


class PageCache:
    """Pages by URL and time zone. What a page shows does not depend on who sees it."""

    def __init__(self) -> None:
        self._find = lru_cache(PAGES)(_Entry)

    def get(self, url: str, zone: str, build: Callable[[], Page | Redirect]) -> Page | Redirect:
        """Return the page of a URL with times in a zone, built at most every `FRESH_SECONDS`."""
        return self._find(url, zone).get(build)

    def clear(self) -> None:
        """Forget all pages, also those that are being built, since an action has changed what they show."""
        self._find.cache_clear()


class _Entry:
    """One cached page."""

    def __init__(self, _url: str, _zone: str) -> None:
        self._build: Callable[[], Page | Redirect] | None = None
        self._cached = TTLCache(self._load, FRESH_SECONDS, cost_factor=2.0)

    def get(self, build: Callable[[], Page | Redirect]) -> Page | Redirect:
        """Return the page, built by this call or by the last one."""
        self._build = build
        return self._cached()

    def _load(self) -> Page | Redirect:
        assert self._build is not None  # noqa: S101 - `get` has set it
        return self._build()
