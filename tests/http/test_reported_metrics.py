"""The ledger's metrics as instruments of OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from onejob.api.prometheus import render_metrics
from onejob.opentelemetry import report_metrics
from tests.services import eventually

if TYPE_CHECKING:
    from tests.http.conftest import Shop

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def printed(shop: Shop) -> Values:
    """Return what `/metrics` has, by name and labels."""
    families = text_string_to_metric_families(render_metrics(shop.ledger).decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def reported(reader: InMemoryMetricReader) -> Values:
    """Return what OpenTelemetry collects, likewise."""
    data: Any = reader.get_metrics_data()
    return {
        (metric.name, frozenset(point.attributes.items())): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def test_the_instruments_observe_what_the_metrics_page_has(shop: Shop) -> None:
    """OpenTelemetry collects the same series as `/metrics` prints, with the same names, labels and values."""
    shop.app.conf.onejob_metrics_interval = 0.05
    job_id = shop.post("invoice", {"order_id": 1}).json()["job"]["id"]
    shop.post("invoice", {"order_id": 1})
    shop.ledger.complete(shop.claimed(job_id), "1")
    shop.post("invoice", {"order_id": 2})
    reader = InMemoryMetricReader()
    report_metrics(shop.app, MeterProvider([reader]))
    eventually(lambda: len(values_of(shop)) >= 3)
    found = reported(reader)
    page = printed(shop)
    exact = {key: value for key, value in page.items() if key[0] != "onejob_oldest_due_seconds"}
    assert {key: value for key, value in found.items() if key in exact} == exact
    assert found.keys() == page.keys()
    task = frozenset({("task", "shop.invoice")})
    assert found["onejob_submissions_total", task | {("outcome", "attached")}] == 1
    assert found["onejob_run_seconds_count", task] == 1
    assert found["onejob_oldest_due_seconds", task] > 0


def values_of(shop: Shop) -> dict[str, float]:
    """Return the totals of the tests' task that have been written."""
    totals = shop.ledger.store.totals()
    return {name: value for name, value in totals.items() if "submissions_total" in name or "runs_total" in name}
