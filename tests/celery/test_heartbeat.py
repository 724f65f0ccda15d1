"""The worker's parent renews the leases of its runs, whatever the runs do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from onejob import State
from tests.celery.harness import PATIENCE, await_, pause_until

if TYPE_CHECKING:
    from tests.celery.harness import House


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_lease_is_renewed_whatever_the_run_does(house: House, pool: str) -> None:
    """The lease of a run is renewed; under prefork even if the run never releases the GIL."""
    house.worker("--pool", pool, "-c", "1", onejob_heartbeat=0.2)
    result = house.play.delay("renewed", ["hog" if pool == "prefork" else "hold"])
    house.await_mark("renewed")
    first = house.job(result).lease_until or 0.0
    await_(lambda: (house.job(result).lease_until or 0.0) > first + 1)
    house.open("renewed")
    house.assert_ran(result, State.COMPLETED, "renewed", 1)
    house.assert_quiet()


@pytest.mark.deep
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_run_outlives_many_leases(house: House, pool: str) -> None:
    """A run may take any number of leases; under prefork even if it never releases the GIL."""
    house.use_lease(4.0)
    house.worker("--pool", pool, "-c", "2", onejob_heartbeat=0.2)
    acts = {"waits": "hold", "computes": "hog" if pool == "prefork" else "hold"}
    results = {key: house.play.delay(key, [act]) for key, act in acts.items()}
    marks = [house.await_mark(key)[0] for key in acts]
    pause_until(max(mark["at"] for mark in marks) + 13)
    for key, result in results.items():
        house.open(key)
        assert result.get(PATIENCE) == key
        job = house.assert_ran(result, State.COMPLETED, key, 1)
        assert (job.attempt, job.crashes) == (1, 0)
    house.assert_quiet()


def test_a_heartbeat_outlives_its_errors(house: House) -> None:
    """A heartbeat continues after errors of the store, and the run keeps its job."""
    house.worker("-c", "1", hook="renew-fails", onejob_heartbeat=0.2)
    result = house.play.delay("errors", ["hold"])
    house.await_mark("errors")
    first = house.job(result).lease_until or 0.0
    house.workers[0].await_text("onejob-heartbeat failed, and goes on", times=2)
    await_(lambda: (house.job(result).lease_until or 0.0) > first)
    house.open("errors")
    assert result.get(PATIENCE) == "errors"
    assert house.assert_ran(result, State.COMPLETED, "errors", 1).crashes == 0
    house.assert_quiet()


def test_a_short_freeze_is_forgiven(house: House) -> None:
    """A worker that was frozen for less than its lease continues its jobs."""
    worker = house.worker("-c", "1")
    result = house.play.delay("short", ["hold"])
    house.await_mark("short")
    worker.freeze()
    pause_until(time.monotonic() + 1)
    worker.thaw()
    house.open("short")
    assert result.get(PATIENCE) == "short"
    house.assert_ran(result, State.COMPLETED, "short", 1)
    house.assert_quiet()


def test_a_task_has_a_lease_of_its_own(shared: House) -> None:
    """A task's own lease wins over the app's."""
    result = shared.play_leased.delay("leased", ["return"])
    assert shared.job(result).lease == 30
    assert result.get(PATIENCE) == "leased"
