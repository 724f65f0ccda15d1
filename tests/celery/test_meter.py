"""Metrics of real workers: their children's counts, their heartbeats, and a log line for each transition."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import State
from tests.celery.harness import LEASE, PATIENCE, await_, on_every_store, pause_until

if TYPE_CHECKING:
    from tests.celery.harness import House

CLAIMS, COMPLETED = '["claims_total", "play"]', '["runs_total", "play", "completed"]'
CRASHED = '["runs_total", "play", "crashed"]'
OFTEN, NEVER = {"onejob_metrics_interval": 0.2}, {"onejob_metrics_interval": 1e6}


@on_every_store("house")
def test_counts_of_children_are_stored(house: House) -> None:
    """Claims and ends that several children of a prefork worker have counted are soon in the ledger's totals."""
    house.worker("-c", "2", **OFTEN)
    results = [house.play.delay(f"k{number}", ["return"]) for number in range(6)]
    for result in results:
        result.get(PATIENCE)
    await_(lambda: house.ledger.store.totals().get(COMPLETED) == 6.0)
    totals = house.ledger.store.totals()
    assert totals[CLAIMS] == 6.0
    assert totals['["run_seconds", "play", "sum"]'] > 0
    await_(lambda: house.ledger.store.totals().get('["sweeps_total"]', 0.0) > 0)
    house.assert_quiet()


@pytest.mark.parametrize(
    ("pool", "acts", "crashed"),
    [
        ("prefork", ["return"], 0.0),
        ("threads", ["return"], 0.0),
        pytest.param("prefork", ["kill", "return"], 1.0, marks=pytest.mark.deep),
    ],
)
def test_a_worker_that_stops_writes_its_counts(house: House, pool: str, acts: list[str], crashed: float) -> None:
    """A warm shutdown loses no count, neither of the parent nor of its children."""
    worker = house.worker("--pool", pool, "-c", "2", **NEVER)
    house.play.delay("a", acts).get(PATIENCE)
    assert {CLAIMS, COMPLETED, CRASHED}.isdisjoint(house.ledger.store.totals())
    worker.sigterm()
    worker.await_end()
    totals = house.ledger.store.totals()
    assert (totals[CLAIMS], totals[COMPLETED]) == (1.0, 1.0)
    assert totals.get(CRASHED, 0.0) == crashed


def test_the_parent_counts_the_crash_of_a_child(house: House) -> None:
    """A child that dies loses its unwritten counts; its parent counts the crash."""
    house.worker("-c", "1", **OFTEN)
    result = house.play.delay("dies", ["kill", "return"])
    result.get(PATIENCE)
    await_(lambda: house.ledger.store.totals().get(CRASHED) == 1.0)
    assert '["lease_expiries_total", "play"]' not in house.ledger.store.totals()
    house.assert_ran(result, State.COMPLETED, "dies", 2)


@pytest.mark.deep
def test_nodes_are_listed_while_they_run(house: House) -> None:
    """A worker's node is listed while it runs; a warm shutdown removes it at once, a kill after a lease."""
    house.use_lease(LEASE)
    first, second = house.two_workers("-c", "1")
    await_(lambda: [node.name for node in house.ledger.store.workers()] == ["w1@test", "w2@test"])
    first.sigterm()
    first.await_end()
    assert [node.name for node in house.ledger.store.workers()] == ["w2@test"]
    second.sigkill()
    assert [node.name for node in house.ledger.store.workers()] == ["w2@test"]
    await_(lambda: house.ledger.store.workers() == [])


@pytest.mark.deep
def test_a_late_heartbeat_is_counted(house: House) -> None:
    """A node whose heartbeat is more than half an interval late logs it, and keeps its job."""
    worker = house.worker("-c", "1", **OFTEN, onejob_heartbeat=0.4)
    await_(house.ledger.store.workers)
    beats = {node.seen_at for node in house.ledger.store.workers()}
    await_(lambda: {node.seen_at for node in house.ledger.store.workers()} - beats)
    worker.freeze()
    pause_until(time.monotonic() + 1)
    worker.thaw()
    await_(lambda: house.ledger.store.totals().get('["heartbeats_late_total"]', 0.0) >= 1.0)
    worker.await_text("event=heartbeat_late node=w1@test")


@pytest.mark.deep
def test_the_log_has_each_transition(house: House) -> None:
    """A worker's log has a line for the claim and the end of each job, unless the app disables it."""
    house.worker("-c", "1")
    result = house.play.delay("logged", ["return"])
    result.get(PATIENCE)
    worker = house.workers[0]
    worker.await_text(f"event=job_completed job_id={result.id} task=play attempt=1")
    worker.await_text(f"event=job_claimed job_id={result.id} task=play attempt=1")
    worker.sigterm()
    worker.await_end()
    silent = house.worker("-c", "1", onejob_log_jobs=False)
    other = house.play.delay("silent", ["return"])
    other.get(PATIENCE)
    silent.sigterm()
    silent.await_end()
    assert "event=" not in silent.text
