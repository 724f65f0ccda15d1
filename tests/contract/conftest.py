"""What every contract test asserts in the end: no job was left that a sweep would never look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.errors import OneJobError
from onejob.jobs.records import Query

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onejob.stores.protocol import Store


@pytest.fixture(autouse=True)
def every_unfinished_job_has_a_wake_at(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever operations a test runs on its store, every job that has not ended has a `wake_at` in the end."""
    store: Store | None = request.getfixturevalue("store") if "store" in request.fixturenames else None
    yield
    if store is None or not hasattr(store, "find"):
        return
    try:
        jobs = store.find(Query(limit=10_000))
    except OneJobError:  # the test has stopped the server, or broken the store
        return
    assert [job for job in jobs if job.wake_at is None and not job.state.final] == []
