"""The laws of `onejob probe` on real workers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from onejob.celery.worker.probe_file import find_fault
from tests.celery.harness import await_

if TYPE_CHECKING:
    from tests.celery.harness import House


def test_a_worker_writes_its_probe_file_until_it_ends(house: House) -> None:
    """A worker is alive and ready by its file; frozen it is not; after its end the file is gone."""
    path = house.directory / "probe"
    worker = house.worker("-c", "1", onejob_probe_file=str(path), onejob_lease=3)
    await_(lambda: find_fault(path, time.time(), ready=True, max_age=2.0) is None)
    worker.freeze()
    await_(lambda: "has not moved" in str(find_fault(path, time.time(), max_age=2.0)))
    worker.thaw()
    await_(lambda: find_fault(path, time.time(), ready=True, max_age=2.0) is None)
    worker.sigterm()
    worker.await_end()
    assert not path.exists()
