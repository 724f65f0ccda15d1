"""The cache of pages and figures."""

from __future__ import annotations

from onejob.pages.page_cache import KeyedCache


def test_a_key_has_one_value_until_it_is_cleared() -> None:
    """Each key is loaded once in its time by whoever asks first, and again after everything was cleared."""
    cache: KeyedCache[str] = KeyedCache(3600.0, cost_factor=0.0)
    assert [cache.get("a", lambda: "1"), cache.get("b", lambda: "2"), cache.get("a", lambda: "3")] == ["1", "2", "1"]
    cache.clear()
    assert cache.get("a", lambda: "4") == "4"
