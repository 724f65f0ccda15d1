"""The laws of `onejob doctor` on an app with a real worker and a real broker."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from onejob.celery.app_state import app_state_of
from onejob.doctor.examine import examine
from onejob.doctor.finding import Level
from onejob.doctor.installation import Installation
from tests.celery.harness import await_
from tests.doctor.support import names

if TYPE_CHECKING:
    from onejob.doctor.finding import Finding
    from tests.celery.harness import House


def findings_of(house: House) -> list[Finding]:
    """Examine the installation of a house."""
    return examine(Installation(settings=app_state_of(house.app).settings, ledger=house.ledger, app=house.app))


def test_a_healthy_installation_has_no_warning(house: House) -> None:
    """A worker that is alive leaves no warning; it registers its versions; without it there is one warning."""
    assert names(findings_of(house)) - {"late-acks"} == {"no-worker"}
    worker = house.worker("-c", "1", "-P", "threads")
    await_(house.ledger.workers)
    found = findings_of(house)
    assert [finding for finding in found if finding.level.rank > Level.INFO.rank] == []
    assert {finding.subject for finding in found if finding.level is Level.OK} >= {"ledger", "sqlite", "app", "workers"}
    (registered,) = house.ledger.workers()
    assert f"celery {version('celery')}" in registered.versions
    worker.sigterm()
    worker.await_end()


def test_a_queue_that_no_worker_consumes_is_found(house: House) -> None:
    """A live worker that consumes another queue than that of the tasks is an error for each task."""
    worker = house.worker("-c", "1", "-P", "threads", "-Q", "another")
    await_(house.ledger.workers)
    missing = [finding for finding in findings_of(house) if finding.check == "queue-without-worker"]
    assert "jobs of play are sent to celery, which no live worker with the task consumes" in {
        finding.problem for finding in missing
    }
    worker.sigterm()
    worker.await_end()
