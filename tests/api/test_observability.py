"""Liveness, readiness, metrics and activity, over HTTP, at the command line and as instruments; and traces."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from anyio import to_thread
from kombu import Connection
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

import onejob.opentelemetry
from checks.project import ROOT
from onejob.api import create_app
from onejob.concurrency.batching import TTLCache
from onejob.errors import StoreUnavailableError
from onejob.jobs.workers import Registration
from onejob.observability import tracing
from onejob.observability.metrics import BOUNDS, PREFIX, SERIES
from onejob.observability.tracing import trace_of
from onejob.opentelemetry import report_metrics
from onejob.prometheus import render_metrics
from tests.api.conftest import LOCAL, Shop, problem
from tests.api.serving import await_status
from tests.cases import for_each
from tests.cli.command import call
from tests.services import eventually

NOWHERE = {"broker_url": "redis://127.0.0.1:1/0", "broker_write_url": "redis://127.0.0.1:1/0"}
PATIENCE = 30.0
LABELS = ("task", "queue", "outcome", "end", "state", "le")
CLOCK = "onejob.concurrency.batching.time.monotonic"


@pytest.fixture
def own_shop(open_shop: Callable[..., Shop]) -> Shop:
    """Return a shop of its own, whose server has cached nothing, and whose ledger has counted nothing."""
    return open_shop()


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a metrics text by name and label values, the task first."""
    found = [each for family in text_string_to_metric_families(text) for each in family.samples]
    return {(each.name, *(each.labels[name] for name in LABELS if name in each.labels)): each.value for each in found}


def scraped(shop: Shop) -> dict[tuple[str, ...], float]:
    """Return the samples of the shop's server, after all counters have been flushed."""
    shop.ledger.close()
    response = TestClient(create_app(shop.app), **LOCAL).get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return samples(response.text)


# --- probes ---------------------------------------------------------------------------------------------------------


def test_liveness_and_readiness(own_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server is alive if it responds, ready if its ledger is, without the broker, too, and a worker on request."""
    assert own_shop.get("/healthz").json() == {"status": "ok"}
    checks = {"store": True, "broker": True}
    assert own_shop.get("/readyz").json() == {"status": "ok", "checks": checks, "workers": 0}
    details = problem(own_shop.get("/readyz?workers=1"), 503, "not-ready")
    assert (details["detail"], details["workers"]) == ("no worker has sent a heartbeat recently", 0)
    own_shop.ledger.store.heartbeat("celery@a", lasts=60.0)
    eventually(lambda: own_shop.get("/readyz?workers=1").status_code == 200, PATIENCE)
    own_shop.app.conf.update(NOWHERE)
    eventually(lambda: own_shop.get("/readyz").json()["status"] != "ok", PATIENCE)
    response = own_shop.get("/readyz")
    assert (response.status_code, response.json()["status"]) == (200, "degraded")
    assert response.json()["checks"] == {"store": True, "broker": False}
    assert own_shop.submit().json()["outcome"] == "admitted"

    def fail() -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(own_shop.ledger.store, "workers", fail)
    eventually(lambda: own_shop.get("/readyz").status_code == 503, PATIENCE)
    details = problem(own_shop.get("/readyz"), 503, "not-ready")
    assert details["checks"]["store"] is False
    assert details["workers"] is None


def test_probes_and_scrapes_are_cached(own_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many concurrent readiness probes open one connection to the broker, many scrapes read the store once."""
    made: list[str] = []
    connect, totals = Connection.ensure_connection, own_shop.ledger.store.totals

    def connect_counted(connection: Any, *args: Any, **options: Any) -> Any:
        made.append("connection")
        return connect(connection, *args, **options)

    def read_counted() -> Any:
        made.append("totals")
        return totals()

    monkeypatch.setattr(Connection, "ensure_connection", connect_counted)
    monkeypatch.setattr(own_shop.ledger.store, "totals", read_counted)
    monkeypatch.setattr(CLOCK, lambda: 0.0)
    with ThreadPoolExecutor(20) as pool:
        paths = ["/readyz", "/metrics"] * 50
        assert set(pool.map(lambda path: own_shop.get(path).status_code, paths)) == {200}
    assert sorted(made) == ["connection", "totals"]


def test_readiness_holds_one_thread(own_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a store does not answer, probes of readiness hold one thread; later ones are refused after a while."""
    asked, answer, entered = threading.Semaphore(0), threading.Event(), itertools.count()

    def hang() -> list[Any]:
        next(entered)
        asked.release()
        assert answer.wait(PATIENCE)
        return []

    monkeypatch.setattr(own_shop.ledger.store, "workers", hang)
    monkeypatch.setattr("onejob.api.routes.ledger.PROBE_WAIT", 0.2)

    async def probe() -> tuple[set[int], int]:
        ask = partial(await_status, create_app(own_shop.app), "/readyz", "127.0.0.1", {"host": "localhost"})
        first = asyncio.create_task(ask())
        await to_thread.run_sync(asked.acquire)
        refused = await asyncio.gather(*(ask() for _ in range(60)))
        assert to_thread.current_default_thread_limiter().borrowed_tokens == 0
        answer.set()
        return {*refused, await first}, next(entered)

    assert asyncio.run(probe()) == ({503, 200}, 1)


@for_each("options, loads, calls", [
    ({"seconds": 1.0}, [(0.0, 1), (0.0, 2), (0.0, ValueError("three")), (0.0, 4)],
     [(0.0, 1), (0.9, 1), (1.0, 2), (1.9, 2), (2.0, None), (2.9, None), (3.0, 4)]),
    ({"seconds": 1.0, "cost_factor": 9.0}, [(4.0, 1), (4.0, 2)], [(0.0, 1), (4.0, 1), (39.9, 1), (40.0, 2)]),
    ({"seconds": 0.0, "cost_factor": 10.0, "free_seconds": 1.0}, [(1.0, 1), (1.0, 2), (3.0, 3)],
     [(0.0, 1), (1.0, 2), (2.0, 3), (24.9, 3)]),
])  # fmt: skip
def test_a_value_is_cached_until_it_expires(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, float], loads: list[Any], calls: list[Any]
) -> None:
    """A value or an exception is cached for its time, or a multiple of what its load took beyond the free seconds."""
    now, results = 0.0, iter(loads)

    def load() -> int:
        nonlocal now
        seconds, result = next(results)
        now += seconds
        if isinstance(result, Exception):
            raise result
        return int(result)

    monkeypatch.setattr(CLOCK, lambda: now)
    cached = TTLCache(load, **options)
    for now, value in calls:  # noqa: B007 - the clock reads it
        with nullcontext() if value else pytest.raises(ValueError, match="three"):
            assert cached() == value


# --- metrics --------------------------------------------------------------------------------------------------------


def test_totals_become_samples(own_shop: Shop) -> None:
    """Every metric is described, buckets include smaller ones, any task is a label; unknown totals are ignored."""
    text = own_shop.get("/metrics").text
    for name, series in SERIES.items():
        assert f"# HELP {PREFIX}{name} {series.meaning}\n# TYPE {PREFIX}{name} {series.kind}\n" in text
    unlabeled = {PREFIX + name for name, series in SERIES.items() if not series.labels}
    assert ({name for name, *labels in samples(text) if not labels}, {*samples(text).values()}) == (unlabeled, {0.0})
    name = 'x"\n\\} forged'
    own_shop.ledger.store.increment({
        **{f'["run_seconds", "t", "{bound}"]': 1.0 for bound in ("0.5", "10", "+Inf")},
        '["run_seconds", "t", "sum"]': 5000.25, '["from_the_future", "x"]': 1.0, '["claims_total"]': 1.0,
        json.dumps(["claims_total", name]): 2.0,
    })  # fmt: skip
    metrics = scraped(own_shop)
    buckets = [metrics["onejob_run_seconds_bucket", "t", bound] for bound in BOUNDS]
    assert buckets == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3]
    assert (metrics["onejob_run_seconds_count", "t"], metrics["onejob_run_seconds_sum", "t"]) == (3, 5000.25)
    assert metrics["onejob_claims_total", name] == 2.0
    assert "future" not in str(metrics)
    own_shop.ledger.store.heartbeat("celery@a", lasts=60.0)
    store = ("--store", str(own_shop.app.conf.onejob_store))
    assert [line.split()[0] for line in call(*store, "workers").output.splitlines()] == ["node", "celery@a"]
    assert [node["name"] for node in json.loads(call(*store, "workers", "--json").output)] == ["celery@a"]
    assert samples(call(*store, "metrics").output)["onejob_workers",] == 1.0


def test_the_load_of_the_queues(own_shop: Shop) -> None:
    """Due and running jobs and the slots of workers are read over HTTP, at the command line and as metrics alike."""
    own_shop.claimed(own_shop.job_id(2))
    own_shop.submit(1)
    registered = Registration(tasks=("shop.invoice",), queues=("celery",), concurrency=3)
    own_shop.ledger.store.heartbeat("celery@a", lasts=60.0, registration=registered)
    (celery,) = own_shop.get("/queues").json()
    assert celery.pop("oldest_due") > 0
    assert celery == {"queue": "celery", "due": 1, "running": 1, "slots": 3, "workers": 1}
    command = ("--store", str(own_shop.app.conf.onejob_store), "queues")
    (printed,) = json.loads(call(*command, "--json").output)
    assert printed.pop("oldest_due") > 0
    assert printed == celery
    assert call(*command).output.splitlines()[1].split()[:3] == ["celery", "1", "1"]
    metrics = scraped(own_shop)
    for name in ("due", "running", "slots"):
        assert metrics[f"onejob_queue_{name}", "celery"] == celery[name]


Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def reported(reader: InMemoryMetricReader) -> Values:
    data: Any = reader.get_metrics_data()
    return {
        (metric.name, frozenset(point.attributes.items())): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def test_the_instruments_observe_what_the_metrics_page_has(own_shop: Shop) -> None:
    """OpenTelemetry collects the same series as `/metrics` prints, with the same names, labels and values."""
    job_id = own_shop.job_id(1)
    own_shop.submit(1)
    own_shop.completed(job_id)
    own_shop.failed(own_shop.job_id(2))
    own_shop.submit(3)
    reader = InMemoryMetricReader()
    report_metrics(own_shop.app, MeterProvider([reader]))
    own_shop.ledger.close()  # which writes the counts
    found = reported(reader)
    families = text_string_to_metric_families(render_metrics(own_shop.ledger).decode())
    page = {(each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples}
    task = frozenset({("task", "shop.invoice")})
    for name in [each for each in page if each[0].endswith("oldest_due_seconds")]:
        age = page.pop(name)
        assert 0 < found.pop(name) >= age - 1
    assert found == page
    expected = {
        ("onejob_submissions_total", task | {("outcome", "attached")}): 1,
        ("onejob_runs_total", task | {("end", "failed")}): 1, ("onejob_run_seconds_count", task): 2,
        ("onejob_jobs", frozenset({("state", "queued")})): 1, ("onejob_dead_letters", frozenset()): 1,
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected


# --- activity -------------------------------------------------------------------------------------------------------


def test_the_activity_of_a_ledger(own_shop: Shop) -> None:
    """The figures of the last hour by minute, or week by hour, are the same over HTTP and at the command line."""
    ids = [own_shop.job_id(number) for number in range(2)]
    own_shop.submit(0)
    own_shop.submit(0, "strict")
    own_shop.completed(ids[0])
    own_shop.failed(ids[1])
    own_shop.ledger.redrive(ids[1])
    own_shop.ledger.close()
    command = ("--store", str(own_shop.app.conf.onejob_store), "activity")
    for period, slots in (("minute", 60), ("hour", 168)):
        found = own_shop.get(f"/activity?period={period}").json()
        assert (found["period"], len(found["slots"]), found["slots"][0]["begin"]) == (period, slots, found["begin"])
        totals = found["totals"]
        assert totals["submissions"] == {"admitted": 3, "attached": 1}
        assert (totals["runs"], totals["failed_share"], totals["redriven"]) == ({"completed": 1, "failed": 1}, 0.5, 1)
        assert [(task["task"], task["duplicates_prevented"]) for task in found["tasks"]] == [
            ("shop.invoice", 1), ("shop.strict", 0),
        ]  # fmt: skip
        assert sum(sum(slot["submissions"].values()) for slot in found["slots"]) == 4
        printed = json.loads(call(*command, "--period", period, "--json").output)
        assert (printed.keys(), printed["totals"], printed["tasks"]) == (found.keys(), totals, found["tasks"])
        by_time, by_task = (part.splitlines() for part in call(*command, "--period", period).output.split("\n\n"))
        assert [line.split()[0] for line in by_task] == ["task", "shop.invoice", "shop.strict", "total"]
        assert (by_time[0].split()[:3], by_time[-1].split()) == ([period, "from", "submissions"], by_task[-1].split())
        assert by_task[-1].split()[1:6] == ["4", "1", by_task[-1].split()[3], "2", "50.0%"]
    assert own_shop.get("/activity").json()["period"] == "minute"
    problem(own_shop.get("/activity?period=day"), 422, "invalid-request")


TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SENT = {"traceparent": f"00-{TRACE}-{CALLER}-01"}


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    onejob.opentelemetry.instrument(provider)
    yield exporter
    onejob.opentelemetry.uninstrument()


def test_a_request_continues_the_trace_of_its_caller(shop: Shop, exporter: InMemorySpanExporter) -> None:
    """A submission is in the trace of its request, which its job keeps; duplicates link to it, refusals have errors."""
    job_id = shop.job_id(1, headers=SENT)
    shop.submit(1)
    first, again = exporter.get_finished_spans()
    assert first.context is not None
    assert first.parent is not None
    assert again.context is not None
    assert (f"{first.context.trace_id:032x}", f"{first.parent.span_id:016x}") == (TRACE, CALLER)
    kept = trace_of(shop.ledger.get(job_id).options)["traceparent"]
    assert kept == f"00-{TRACE}-{first.context.span_id:016x}-01"
    attributes = [dict(span.attributes or {}) for span in (first, again)]
    assert [each["onejob.outcome"] for each in attributes] == ["admitted", "attached"]
    assert [each["onejob.source"] for each in attributes] == ["http", "http"]
    assert [link.context.span_id for link in again.links] == [first.context.span_id]
    assert again.context.trace_id != first.context.trace_id
    exporter.clear()
    assert shop.submit(1, validate_only=True).status_code == 200
    assert exporter.get_finished_spans() == ()
    shop.submit(1, idempotency_key="k")
    assert shop.submit(2, idempotency_key="k").status_code == 422
    _, refused = exporter.get_finished_spans()
    assert not refused.status.is_ok
    assert [event.name for event in refused.events] == ["exception"]


def test_the_entry_point_switches_traces_on_and_off() -> None:
    """What `opentelemetry-instrument` finds by the entry point traces this process until it is switched off."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    point = EntryPoint("onejob", project["entry-points"]["opentelemetry_instrumentor"]["onejob"], "instrumentor")
    instrumentor = point.load()()
    instrumentor.instrument(tracer_provider=TracerProvider(), skip_dep_check=True)
    assert tracing.tracer is not tracing.NO_TRACER
    instrumentor.uninstrument()
    assert tracing.tracer is tracing.NO_TRACER
