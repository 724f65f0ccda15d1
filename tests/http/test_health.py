"""Liveness, readiness and metrics."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from kombu import Connection
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from onejob.api import create_app
from onejob.api.logging_config import log_config
from onejob.api.ttl_cache import TTLCache
from onejob.celery.app_state import app_state_of
from onejob.cli import main
from onejob.errors import StoreUnavailableError
from onejob.ledger.sweep import sweep
from onejob.observability.metrics import BOUNDS, PREFIX, SERIES
from tests.http.conftest import LOCAL, problem
from tests.services import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.http.conftest import Shop

NOWHERE = {"broker_url": "redis://127.0.0.1:1/0", "broker_write_url": "redis://127.0.0.1:1/0"}
PATIENCE = 30.0
LABELS = ("task", "outcome", "end", "state", "le")


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a metrics text by name and label values, the task first."""
    found = [each for family in text_string_to_metric_families(text) for each in family.samples]
    return {(each.name, *(each.labels[name] for name in LABELS if name in each.labels)): each.value for each in found}


def scraped(shop: Shop) -> dict[tuple[str, ...], float]:
    """Return the samples of the shop's server, after all counters have been flushed."""
    app_state_of(shop.app).ledger.close()
    with TestClient(create_app(shop.app), **LOCAL) as client:
        response = client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return samples(response.text)


def test_liveness_and_readiness(shop: Shop) -> None:
    """A server is alive if it responds, and ready if its ledger and its broker are available."""
    assert shop.client.get("/healthz").json() == {"status": "ok"}
    checks = {"store": True, "broker": True}
    assert shop.client.get("/readyz").json() == {"status": "ok", "checks": checks, "workers": 0}
    shop.app.conf.update(NOWHERE)
    eventually(lambda: shop.client.get("/readyz").status_code == 503, PATIENCE)
    details = problem(shop.client.get("/readyz"), 503, "not-ready")
    assert details["checks"] == {"store": True, "broker": False}
    assert shop.client.get("/healthz").status_code == 200


def test_an_unavailable_ledger_is_reported(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an unavailable ledger a server is not ready, and the number of workers is unknown."""

    def fail() -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(shop.ledger.store, "workers", fail)
    details = problem(shop.client.get("/readyz"), 503, "not-ready")
    assert (details["checks"], details["workers"]) == ({"store": False, "broker": True}, None)


def test_a_worker_is_required_only_on_request(shop: Shop) -> None:
    """Without a worker a server is ready, unless `?workers=1` requires one."""
    assert shop.client.get("/readyz").json()["workers"] == 0
    details = problem(shop.client.get("/readyz?workers=1"), 503, "not-ready")
    assert (details["detail"], details["workers"]) == ("no worker has sent a heartbeat recently", 0)
    shop.ledger.store.heartbeat("celery@a", lasts=60.0)
    eventually(lambda: shop.client.get("/readyz?workers=1").status_code == 200, PATIENCE)
    assert shop.client.get("/readyz").json()["workers"] == 1


def test_readiness_is_cached(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many concurrent readiness probes open one connection to the broker."""
    made: list[float] = []
    connect = Connection.ensure_connection

    def counting(connection: Any, *args: Any, **options: Any) -> Any:
        made.append(1)
        return connect(connection, *args, **options)

    monkeypatch.setattr(Connection, "ensure_connection", counting)
    monkeypatch.setattr("onejob.api.ttl_cache.time.monotonic", lambda: 0.0)
    with ThreadPoolExecutor(20) as pool:
        statuses = list(pool.map(lambda _: shop.client.get("/readyz").status_code, range(100)))
    assert (set(statuses), len(made)) == ({200}, 1)


def test_a_value_is_cached_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value or an exception is cached for its time to live, and concurrent callers wait for one load."""
    now = 0.0
    monkeypatch.setattr("onejob.api.ttl_cache.time.monotonic", lambda: now)
    results: Iterator[Any] = iter([1, 2, ValueError("three"), 4])
    entered, go_on = threading.Event(), threading.Event()

    def load() -> int:
        entered.set()
        go_on.wait(60)
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return int(result)

    cached = TTLCache(load, 1.0)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(cached) for _ in range(4)]
        assert entered.wait(60)
        go_on.set()
        assert [each.result() for each in waiting] == [1] * 4
    now = 1.0
    assert [cached(), cached()] == [2, 2]
    now = 2.0
    for _ in range(2):
        with pytest.raises(ValueError, match="three"):
            cached()
    now = 3.0
    assert cached() == 4


def test_an_expensive_value_is_cached_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of a slow load is cached for a multiple of its duration."""
    now = 0.0
    monkeypatch.setattr("onejob.api.ttl_cache.time.monotonic", lambda: now)

    def load() -> float:
        nonlocal now
        now += 4.0
        return now

    cached = TTLCache(load, 1.0, cost_factor=9.0)
    assert cached() == 4.0
    now = 39.9
    assert cached() == 4.0
    now = 40.0
    assert cached() == 44.0


def test_a_cheap_value_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the time by which a load exceeds the free seconds is multiplied: a faster one is loaded at each call."""
    now = 0.0
    monkeypatch.setattr("onejob.api.ttl_cache.time.monotonic", lambda: now)
    durations = iter([1.0, 1.0, 3.0])

    def load() -> float:
        nonlocal now
        now += next(durations)
        return now

    cached = TTLCache(load, 0.0, cost_factor=10.0, free_seconds=1.0)
    assert [cached(), cached(), cached()] == [1.0, 2.0, 5.0]
    now = 24.9
    assert cached() == 5.0


def test_metrics_of_a_ledger_without_jobs(shop: Shop) -> None:
    """Every metric is described, and one without labels is 0."""
    text = shop.client.get("/metrics").text
    for name, series in SERIES.items():
        assert f"# HELP {PREFIX}{name} {series.meaning}\n# TYPE {PREFIX}{name} {series.kind}\n" in text
    metrics = samples(text)
    assert set(metrics.values()) == {0.0}
    assert {name for name, *labels in metrics if not labels} == {
        PREFIX + name for name, series in SERIES.items() if not series.labels
    }


def test_metrics_count_events(shop: Shop) -> None:
    """Submissions, claims, ends of runs, redrives and sweeps are counted, and jobs are counted by state."""
    ids = [shop.post("invoice", {"order_id": number}).json()["job"]["id"] for number in range(4)]
    shop.post("invoice", {"order_id": 0})
    shop.ledger.complete(shop.claimed(ids[0]), "1")
    shop.ledger.claim(ids[0], nonce="again", node="node")
    shop.failed(ids[1])
    shop.failed(ids[2])
    shop.ledger.redrive(ids[2])
    sweep(shop.ledger, lambda _job: None, tasks=frozenset({"shop.invoice"}))
    shop.ledger.store.heartbeat("celery@a", lasts=60.0)
    metrics = scraped(shop)
    expected = {
        ("onejob_submissions_total", "shop.invoice", "admitted"): 4, ("onejob_claims_total", "shop.invoice"): 3,
        ("onejob_submissions_total", "shop.invoice", "attached"): 1, ("onejob_claims_refused_total", "shop.invoice"): 1,
        ("onejob_runs_total", "shop.invoice", "completed"): 1, ("onejob_runs_total", "shop.invoice", "failed"): 2,
        ("onejob_redriven_total",): 1, ("onejob_sweeps_total",): 1, ("onejob_published_total",): 1,
        ("onejob_jobs", "queued"): 2, ("onejob_jobs", "completed"): 1, ("onejob_jobs", "failed"): 1,
        ("onejob_jobs", "running"): 0, ("onejob_dead_letters",): 1, ("onejob_workers",): 1,
        ("onejob_run_seconds_count", "shop.invoice"): 3, ("onejob_wait_seconds_count", "shop.invoice"): 3,
    }  # fmt: skip
    assert {name: metrics[name] for name in expected} == expected


def test_a_histogram_is_cumulative(shop: Shop) -> None:
    """Each bucket of a histogram includes the smaller ones, and the last one includes all observations."""
    shop.ledger.store.increment({f'["run_seconds", "t", "{bound}"]': 1.0 for bound in ("0.5", "10", "+Inf")})
    shop.ledger.store.increment({'["run_seconds", "t", "sum"]': 5000.25})
    metrics = scraped(shop)
    buckets = [metrics["onejob_run_seconds_bucket", "t", bound] for bound in BOUNDS[:-1]]
    assert buckets == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2]
    assert metrics["onejob_run_seconds_bucket", "t", "+Inf"] == metrics["onejob_run_seconds_count", "t"] == 3
    assert metrics["onejob_run_seconds_sum", "t"] == 5000.25


def test_unknown_totals_are_ignored(shop: Shop) -> None:
    """A total that this version does not define does not affect a scrape."""
    shop.ledger.store.increment(
        {'["from_the_future", "x"]': 1.0, '["claims_total"]': 1.0, '["claims_total", "t"]': 2.0}
    )
    metrics = scraped(shop)
    assert metrics["onejob_claims_total", "t"] == 2.0
    assert "future" not in str(metrics)


def test_label_values_are_escaped(shop: Shop) -> None:
    """Any task name is a valid label value."""
    name = 'x"\n\\} forged'
    shop.ledger.store.increment({json.dumps(["claims_total", name]): 1.0})
    assert scraped(shop)["onejob_claims_total", name] == 1.0


def test_metrics_are_cached(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frequent scrapes cause one read of the store per cache period."""
    calls: list[str] = []
    totals = shop.ledger.store.totals

    def counting() -> dict[str, float]:
        calls.append("totals")
        return totals()

    monkeypatch.setattr(shop.ledger.store, "totals", counting)
    monkeypatch.setattr("onejob.api.ttl_cache.time.monotonic", lambda: 0.0)
    assert {shop.client.get("/metrics").status_code for _ in range(20)} == {200}
    assert calls == ["totals"]


def test_workers_and_metrics_at_the_command_line(shop: Shop, tmp_path: Path) -> None:
    """`onejob workers` lists the workers, and `onejob metrics` prints the same text as the server."""
    shop.ledger.store.heartbeat("celery@a", lasts=60.0)
    url = f"sqlite:///{tmp_path / 'ledger.db'}"

    def call(*args: str) -> str:
        return CliRunner().invoke(main, ["--store", url, *args], catch_exceptions=False).output

    assert [line.split()[0] for line in call("workers").splitlines()] == ["node", "celery@a"]
    assert [node["name"] for node in json.loads(call("workers", "--json"))] == ["celery@a"]
    assert samples(call("metrics"))["onejob_workers",] == 1.0


@pytest.mark.parametrize("as_json", [False, True])
def test_a_server_logs_job_events(as_json: bool) -> None:
    """The server's log has the events of jobs in the same format as its own lines."""
    config = log_config(as_json=as_json)
    assert config["loggers"]["onejob"]["handlers"] == ["default"]
    forms = {str(formatter["()"]) for formatter in config["formatters"].values()}
    assert ("onejob.observability.logs.JsonFormatter" in forms) is as_json
