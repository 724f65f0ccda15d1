"""Running totals: the store adds up the counts of many processes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.processes import race

if TYPE_CHECKING:
    from onejob.stores.protocol import Store
    from tests.contract.processes import Seat
    from tests.contract.support import StoreAddress

ADDITIONS = 50


def test_names_are_kept_to_the_letter(store: Store) -> None:
    """A name may be any text."""
    names = ('["runs_total", "shop.invoice", "completed"]', "ž😀", "with 'quotes' and \\", "new\nline", "")
    store.increment(dict.fromkeys(names, 1.0))
    assert store.totals() == dict.fromkeys(names, 1.0)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(amounts=st.lists(st.floats(0.0, 1e6), min_size=1, max_size=10))
def test_amounts_lose_nothing(store: Store, amounts: list[float]) -> None:
    """A total is the exact sum of its amounts, within the precision of floating-point numbers."""
    before = store.totals().get("a", 0.0)
    for amount in amounts:
        store.increment({"a": amount})
    assert math.isclose(store.totals()["a"], before + math.fsum(amounts), rel_tol=1e-9, abs_tol=1e-9)


def add_often(seat: Seat) -> None:
    """Add to the same totals as other processes, with the names in ascending or descending order."""
    names = [f"name-{number}" for number in range(20)]
    with seat.address.opened() as store:
        seat.ready()
        for _ in range(ADDITIONS):
            store.increment(dict.fromkeys(names if seat.number % 2 else names[::-1], 1.0))


def test_concurrent_increments_are_all_counted(store_address: StoreAddress, store: Store) -> None:
    """All concurrent increments of many processes are counted, in whichever order they name the totals."""
    race(store_address, 4, add_often)
    assert set(store.totals().values()) == {4.0 * ADDITIONS}
