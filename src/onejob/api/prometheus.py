"""The metrics of a ledger in the Prometheus text format."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query
from onejob.observability.metrics import BOUNDS, PREFIX, SERIES, SUM, Kind, key_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.core import Metric

    from onejob.ledger.ledger import Ledger
    from onejob.observability.metrics import Key, Series

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render_metrics(ledger: Ledger) -> bytes:
    """Return the text: the totals of all processes, and gauges computed from the ledger."""
    registry = CollectorRegistry()
    registry.register(_Metrics(ledger))
    return generate_latest(registry)


class _Metrics(Collector):
    """A snapshot of the metrics of a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._totals = _group_by_series(ledger.store.totals())
        jobs = ledger.counts(Query())
        self._totals["jobs"] = {("jobs", state.value): float(count) for state, count in jobs.items()}
        self._totals["dead_letters"] = {("dead_letters",): float(jobs[State.FAILED])}
        self._totals["workers"] = {("workers",): float(len(ledger.store.workers()))}

    def collect(self) -> Iterator[Metric]:
        """Yield each series with its values."""
        for name, series in SERIES.items():
            totals = self._totals.get(name, {})
            build = _build_histogram if series.kind is Kind.HISTOGRAM else _build_scalar
            yield build(name, series, totals)


def _group_by_series(totals: Mapping[str, float]) -> dict[str, dict[Key, float]]:
    grouped: dict[str, dict[Key, float]] = defaultdict(dict)
    for name, total in sorted(totals.items()):
        key = key_of(name)
        if key is not None:
            grouped[key[0]][key] = total
    return grouped


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
        family.add_metric(labels, buckets=_accumulate(buckets), sum_value=buckets.get(SUM, 0.0))
    return family


def _accumulate(buckets: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return cumulative buckets, as Prometheus requires, from separate ones."""
    total = 0.0
    return [(bound, total := total + buckets.get(bound, 0.0)) for bound in BOUNDS]
