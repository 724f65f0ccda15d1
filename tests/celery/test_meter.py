"""Metrics of real workers: their children's counts, their heartbeats, and a log line for each transition."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

from onejob.celery.worker.metrics import MetricsServer
from onejob.config import Settings, build_ledger
from onejob.errors import ConfigurationError
from tests.celery.harness import LEASE, PATIENCE, await_, on_every_store, pause_until
from tests.services import free_port

if TYPE_CHECKING:
    from tests.celery.harness import House

CLAIMS, COMPLETED = '["claims_total", "play"]', '["runs_total", "play", "completed"]'
CRASHED = '["runs_total", "play", "crashed"]'
OFTEN, NEVER = {"onejob_metrics_interval": 0.2}, {"onejob_metrics_interval": 1e6}


@on_every_store("house")
def test_counts_of_a_worker_are_stored(house: House) -> None:
    """What children have counted is soon in the ledger's totals; the parent counts the crash of one, and its sweeps."""
    house.worker("-c", "2", **OFTEN)
    results = [house.play.delay(f"k{number}", ["return"]) for number in range(6)]
    for result in results:
        result.get(PATIENCE)
    await_(lambda: house.ledger.store.totals().get(COMPLETED) == 6.0)
    assert house.ledger.store.totals()[CLAIMS] == 6.0
    house.play.delay("dies", ["kill", "return"]).get(PATIENCE)
    await_(lambda: house.ledger.store.totals().get(CRASHED) == 1.0)
    await_(lambda: house.ledger.store.totals().get('["sweeps_total"]', 0.0) > 0)
    totals = house.ledger.store.totals()
    assert totals['["run_seconds", "play", "sum"]'] > 0
    assert '["lease_expiries_total", "play"]' not in totals
    house.assert_quiet()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_that_stops_writes_its_counts(house: House, pool: str) -> None:
    """A warm shutdown loses no count, neither of the parent nor of its children, and removes its node."""
    acts, crashed = (["kill", "return"], 1.0) if pool == "prefork" else (["return"], 0.0)
    worker = house.worker("--pool", pool, "-c", "2", **NEVER)
    await_(house.ledger.store.workers)
    house.play.delay("a", acts).get(PATIENCE)
    assert {CLAIMS, COMPLETED, CRASHED}.isdisjoint(house.ledger.store.totals())
    worker.sigterm()
    worker.await_end()
    totals = house.ledger.store.totals()
    assert (totals[CLAIMS], totals[COMPLETED], totals.get(CRASHED, 0.0)) == (1.0, 1.0, crashed)
    assert house.ledger.store.workers() == []


def test_workers_of_a_host_share_a_port_for_metrics(house: House) -> None:
    """One worker of a host serves the ledger's metrics; another one takes the port when that worker has ended."""
    port = free_port()
    first = house.worker("-c", "1", onejob_metrics_port=port)
    second = house.worker("-c", "1", onejob_metrics_port=port)
    second.await_text(f"onejob_metrics_port {port} is taken")
    house.play.delay("a", ["return"]).get(PATIENCE)
    await_(lambda: 'onejob_runs_total{end="completed",task="play"} 1.0' in scrape(port))
    await_(lambda: "onejob_workers 2.0" in scrape(port))
    with pytest.raises(HTTPError, match="404"):
        scrape(port, "/")
    first.sigterm()
    first.await_end()
    await_(lambda: "onejob_workers 1.0" in scrape(port))


def test_metrics_that_cannot_be_read_are_an_error_of_the_request(caplog: pytest.LogCaptureFixture) -> None:
    """While the store is away a scrape is 503; an address of another host is refused at the start of the worker."""
    ledger = build_ledger(Settings(store="redis://127.0.0.1:1/0", metrics_interval=0))
    server = MetricsServer(ledger, "127.0.0.1", port := free_port())
    server.start()
    with pytest.raises(HTTPError, match="503"):
        scrape(port)
    server.stop()
    ledger.close()
    assert "the metrics cannot be read" in caplog.text
    with pytest.raises(ConfigurationError, match=r"onejob_metrics_address='192\.0\.2\.1'"):
        MetricsServer(ledger, "192.0.2.1", port).start()
    with pytest.raises(ConfigurationError, match="onejob_metrics_port=True"):
        Settings(metrics_port=True)


def scrape(port: int, path: str = "/metrics") -> str:
    """Return what a worker serves; "" while none does."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as response:
            return str(response.read().decode())
    except HTTPError:
        raise
    except URLError:
        return ""


@pytest.mark.deep
def test_a_late_heartbeat_is_counted(house: House) -> None:
    """A node whose heartbeat is more than half an interval late logs it; a killed one is forgotten after its lease."""
    house.use_lease(LEASE)
    worker = house.worker("-c", "1", **OFTEN, onejob_heartbeat=0.4)
    await_(house.ledger.store.workers)
    beats = {node.seen_at for node in house.ledger.store.workers()}
    await_(lambda: {node.seen_at for node in house.ledger.store.workers()} - beats)
    worker.freeze()
    pause_until(time.monotonic() + 1)
    worker.thaw()
    await_(lambda: house.ledger.store.totals().get('["heartbeats_late_total"]', 0.0) >= 1.0)
    worker.await_text("event=heartbeat_late node=w1@test")
    worker.sigkill()
    assert [node.name for node in house.ledger.store.workers()] == ["w1@test"]
    await_(lambda: house.ledger.store.workers() == [])


@pytest.mark.deep
def test_the_log_has_each_transition(house: House) -> None:
    """A worker's log has a line for the claim and the end of each job, unless the app disables it."""
    for logs in (True, False):
        worker = house.worker("-c", "1", onejob_log_jobs=logs)
        result = house.play.delay(f"logged {logs}", ["return"])
        result.get(PATIENCE)
        worker.sigterm()
        worker.await_end()
        for event in ("job_completed", "job_claimed"):
            assert (f"event={event} job_id={result.id} task=play attempt=1" in worker.text) == logs
