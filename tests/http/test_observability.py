"""Liveness, readiness, metrics and activity, over HTTP, at the command line and as instruments; and traces."""

from __future__ import annotations

import json
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import pytest
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
from onejob.celery.prometheus import render_metrics
from onejob.celery.ttl_cache import TTLCache
from onejob.errors import StoreUnavailableError
from onejob.observability import tracing
from onejob.observability.metrics import BOUNDS, PREFIX, SERIES
from onejob.observability.tracing import trace_of
from onejob.opentelemetry import report_metrics
from tests.cases import for_each
from tests.cli.command import call
from tests.http.conftest import LOCAL, problem
from tests.services import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.http.conftest import Shop

NOWHERE = {"broker_url": "redis://127.0.0.1:1/0", "broker_write_url": "redis://127.0.0.1:1/0"}
PATIENCE = 30.0
LABELS = ("task", "outcome", "end", "state", "le")
CLOCK = "onejob.celery.ttl_cache.time.monotonic"


@pytest.fixture
def own_shop(open_shop: Any) -> Shop:
    """Return a shop of its own, whose server has cached nothing, and whose ledger has counted nothing."""
    shop: Shop = open_shop()
    return shop


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
    assert (details["checks"]["store"], details["workers"]) == (False, None)


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


def test_a_value_is_cached_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value or an exception is cached for its time to live, and concurrent callers wait for one load."""
    now, entered, go_on = 0.0, threading.Event(), threading.Event()
    monkeypatch.setattr(CLOCK, lambda: now)
    results: Iterator[Any] = iter([1, 2, ValueError("three"), 4])

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


@for_each("options, durations, calls", [
    ({"seconds": 1.0, "cost_factor": 9.0}, [4.0, 4.0], [(None, 4.0), (None, 4.0), (39.9, 4.0), (40.0, 44.0)]),
    ({"seconds": 0.0, "cost_factor": 10.0, "free_seconds": 1.0}, [1.0, 1.0, 3.0],
     [(None, 1.0), (None, 2.0), (None, 5.0), (24.9, 5.0)]),
])  # fmt: skip
def test_an_expensive_value_is_cached_longer(
    options: dict[str, float], durations: list[float], calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value is cached for a multiple of the time by which its load exceeds the free seconds; a cheap one is not."""
    now, times = 0.0, iter(durations)

    def load() -> float:
        nonlocal now
        now += next(times)
        return now

    monkeypatch.setattr(CLOCK, lambda: now)
    cached = TTLCache(load, **options)
    for at, value in calls:
        now = now if at is None else at
        assert cached() == value


# --- metrics --------------------------------------------------------------------------------------------------------


def test_metrics_of_a_ledger_without_jobs(own_shop: Shop) -> None:
    """Every metric is described, and one without labels is 0."""
    text = own_shop.get("/metrics").text
    for name, series in SERIES.items():
        assert f"# HELP {PREFIX}{name} {series.meaning}\n# TYPE {PREFIX}{name} {series.kind}\n" in text
    metrics = samples(text)
    assert set(metrics.values()) == {0.0}
    assert {name for name, *labels in metrics if not labels} == {
        PREFIX + name for name, series in SERIES.items() if not series.labels
    }


def test_totals_become_samples(own_shop: Shop) -> None:
    """Buckets include smaller ones, any name of a task is a label, and totals that no version defines are ignored."""
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
    assert (metrics["onejob_claims_total", name], "future" in str(metrics)) == (2.0, False)


def test_workers_and_metrics_at_the_command_line(own_shop: Shop) -> None:
    """`onejob workers` lists the workers, and `onejob metrics` prints the same text as the server."""
    own_shop.ledger.store.heartbeat("celery@a", lasts=60.0)
    store = ("--store", str(own_shop.app.conf.onejob_store))
    assert [line.split()[0] for line in call(*store, "workers").output.splitlines()] == ["node", "celery@a"]
    assert [node["name"] for node in json.loads(call(*store, "workers", "--json").output)] == ["celery@a"]
    assert samples(call(*store, "metrics").output)["onejob_workers",] == 1.0


Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def reported(reader: InMemoryMetricReader) -> Values:
    """Return what OpenTelemetry collects, by name and labels."""
    data: Any = reader.get_metrics_data()
    return {
        (metric.name, frozenset(point.attributes.items())): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def test_the_instruments_observe_what_the_metrics_page_has(open_shop: Any) -> None:
    """OpenTelemetry collects the same series as `/metrics` prints, with the same names, labels and values."""
    shop: Shop = open_shop()
    job_id = shop.job_id(1)
    shop.submit(1)
    shop.completed(job_id)
    shop.failed(shop.job_id(2))
    shop.submit(3)
    reader = InMemoryMetricReader()
    report_metrics(shop.app, MeterProvider([reader]))
    shop.ledger.close()  # which writes the counts
    found = reported(reader)
    families = text_string_to_metric_families(render_metrics(shop.ledger).decode())
    page = {(each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples}
    task = frozenset({("task", "shop.invoice")})
    age = page.pop(("onejob_oldest_due_seconds", task))
    assert 0 < found.pop(("onejob_oldest_due_seconds", task)) >= age - 1
    assert found == page
    expected = {
        ("onejob_submissions_total", task | {("outcome", "attached")}): 1,
        ("onejob_runs_total", task | {("end", "failed")}): 1, ("onejob_run_seconds_count", task): 2,
        ("onejob_jobs", frozenset({("state", "queued")})): 1, ("onejob_dead_letters", frozenset()): 1,
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected


# --- activity -------------------------------------------------------------------------------------------------------


@pytest.fixture
def busy(open_shop: Any) -> Shop:
    """Return a shop with jobs and a duplicate, of which one completed and one failed; its counts are written."""
    shop: Shop = open_shop()
    ids = [shop.job_id(number) for number in range(2)]
    shop.submit(0)
    shop.submit(0, "strict")
    shop.completed(ids[0])
    shop.failed(ids[1])
    shop.ledger.redrive(ids[1])
    shop.ledger.close()
    return shop


def test_the_activity_of_a_ledger(busy: Shop) -> None:
    """`GET /activity` returns the figures of the last hour by minute, or of the last week by hour, and no others."""
    for query, period, slots in (("", "minute", 60), ("?period=hour", "hour", 168)):
        found = busy.get(f"/activity{query}").json()
        assert (found["period"], len(found["slots"]), found["slots"][0]["begin"]) == (period, slots, found["begin"])
        totals = found["totals"]
        assert totals["submissions"] == {"admitted": 3, "attached": 1}
        assert (totals["runs"], totals["failed_share"], totals["redriven"]) == ({"completed": 1, "failed": 1}, 0.5, 1)
        assert [(task["task"], task["duplicates_prevented"]) for task in found["tasks"]] == [
            ("shop.invoice", 1), ("shop.strict", 0),
        ]  # fmt: skip
        assert sum(sum(slot["submissions"].values()) for slot in found["slots"]) == 4
    problem(busy.get("/activity?period=day"), 422, "invalid-request")


def test_the_activity_at_the_command_line(busy: Shop) -> None:
    """`onejob activity` prints a line for each slot with events, each task, and the totals; as JSON what HTTP has."""
    command = ("--store", str(busy.app.conf.onejob_store), "activity")
    by_time, by_task = (part.splitlines() for part in call(*command, "--period", "hour").output.split("\n\n"))
    assert [line.split()[0] for line in by_task] == ["task", "shop.invoice", "shop.strict", "total"]
    assert (by_time[0].split()[:3], by_time[-1].split()) == (["hour", "from", "submissions"], by_task[-1].split())
    assert by_task[-1].split()[1:6] == ["4", "1", by_task[-1].split()[3], "2", "50.0%"]
    printed, returned = json.loads(call(*command, "--json").output), busy.get("/activity").json()
    assert printed.keys() == returned.keys()
    assert (printed["totals"], printed["tasks"]) == (returned["totals"], returned["tasks"])


TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SENT = {"traceparent": f"00-{TRACE}-{CALLER}-01"}


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    """Return what gets the spans of this process."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    onejob.opentelemetry.instrument(provider)
    yield exporter
    onejob.opentelemetry.uninstrument()


def test_a_request_continues_the_trace_of_its_caller(shop: Shop, exporter: InMemorySpanExporter) -> None:
    """A submission over HTTP is in the trace of its `traceparent`, which its job keeps; duplicates link to it."""
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


def test_a_refused_request_is_an_error(shop: Shop, exporter: InMemorySpanExporter) -> None:
    """The span of a submission that was refused has the exception; one that only validates has no span."""
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
