"""The metrics of a ledger in the Prometheus text format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from onejob.celery.ttl_cache import TTLCache
from onejob.ledger.stats import accumulate, read_metrics
from onejob.observability.metrics import PREFIX, SERIES, SUM, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.core import Metric

    from onejob.ledger.ledger import Ledger
    from onejob.observability.metrics import Key, Series

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CACHE_SECONDS = 1.0
"""How long a text is cached, so that frequent scrapes do not reach the store."""
COST_FACTOR = 9.0
"""Counting the jobs of a large ledger takes long: scraping may keep the store busy for a tenth of the time."""


def cached_metrics(ledger: Ledger) -> TTLCache[bytes]:
    """Return a function that renders the metrics at most once per second."""
    return TTLCache(lambda: render_metrics(ledger), CACHE_SECONDS, cost_factor=COST_FACTOR)


def render_metrics(ledger: Ledger) -> bytes:
    """Return the text: the totals of all processes, and gauges computed from the ledger."""
    registry = CollectorRegistry()
    registry.register(_Metrics(ledger))
    return generate_latest(registry)


class _Metrics(Collector):
    """A snapshot of the metrics of a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._totals = read_metrics(ledger)

    def collect(self) -> Iterator[Metric]:
        """Yield each series with its values."""
        for name, series in SERIES.items():
            totals = self._totals.get(name, {})
            build = _build_histogram if series.kind is Kind.HISTOGRAM else _build_scalar
            yield build(name, series, totals)


def _build_scalar(name: str, series: Series, totals: Mapping[Key, float]) -> Metric:
    family_type = CounterMetricFamily if series.kind is Kind.COUNTER else GaugeMetricFamily
    family = family_type(PREFIX + name, series.meaning, labels=series.labels)
    for (_, *labels), total in (totals or ({} if series.labels else {(name,): 0.0})).items():
        family.add_metric(labels, total)
    return family


def _build_histogram(name: str, series: Series, totals: Mapping[Key, float]) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, series.meaning, labels=series.labels)
    for labels in dict.fromkeys(key[1:-1] for key in totals):
        buckets = {key[-1]: total for key, total in totals.items() if key[1:-1] == labels}
        family.add_metric(labels, buckets=accumulate(buckets), sum_value=buckets.get(SUM, 0.0))
    return family
