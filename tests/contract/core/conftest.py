"""The suite of `CoreStore`: a new store passes it first. It skips a test that needs a capability the store lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.contract.support import missing

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.stores.protocol import Store


class _Partial:
    """A store that lacks some capabilities."""

    def __init__(self, store: Store, lacks: frozenset[str]) -> None:
        self._store = store
        self.lacks = lacks

    def __getattr__(self, name: str) -> Any:
        if name in self.lacks:
            pytest.skip(f"this store has no `{name}` to observe it with")
        return getattr(self._store, name)


@pytest.fixture
def store_factory(store_factory: Callable[[], Store]) -> Callable[[], Store]:
    """Return a function that opens the same store once more, whatever capabilities it has."""

    def open_store() -> Store:
        store = store_factory()
        lacks = missing(store)
        return cast("Store", _Partial(store, lacks)) if lacks else store

    return open_store
