"""The law of the marks on the page of workers."""

from __future__ import annotations

from celery import Celery

from onejob.jobs.records import WorkerInfo
from onejob.pages.site import Site


def test_a_worker_is_late_after_two_thirds_of_a_lease() -> None:
    """A heartbeat is late after two thirds of a lease, since a worker with runs sends three per lease, however long."""
    app = Celery("shop", set_as_current=False)
    app.conf.update(onejob_store="sqlite:///:unused:", onejob_lease=300.0, onejob_heartbeat=10.0)
    worker = WorkerInfo("celery@one", 1000.0)
    assert [Site(app).is_late(worker, 1000.0 + age) for age in (101.0, 199.0, 201.0)] == [False, False, True]
