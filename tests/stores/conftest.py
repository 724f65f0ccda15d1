"""The stores that are compared with the model."""

from collections.abc import Callable

import pytest

from onejob.stores.protocol import Store
from tests.conftest import STORES, on_stores
from tests.stores.lockstep import LockStep
from tests.stores.support import ManualClock

fresh_address = on_stores(*STORES)


@pytest.fixture
def lockstep(clock: ManualClock, fresh_stores: Callable[..., dict[str, Store]]) -> Callable[[], LockStep]:
    """Return a function that begins anew with an empty store of each kind."""
    return lambda: LockStep(clock, fresh_stores())
