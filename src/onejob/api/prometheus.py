"""The metrics of a ledger as the text that Prometheus reads."""

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
    """Return the text: totals that all processes have counted, and what is counted in the ledger now."""
    registry = CollectorRegistry()
    registry.register(_Metrics(ledger))
    return generate_latest(registry)


class _Metrics(Collector):
    """The metrics of a ledger at one moment."""

    def __init__(self, ledger: Ledger) -> None:
        self._totals = _by_series(ledger.store.totals())
        jobs = ledger.counts(Query())
        self._totals["jobs"] = {("jobs", state.value): float(count) for state, count in jobs.items()}
        self._totals["dead_letters"] = {("dead_letters",): float(jobs[State.FAILED])}
        self._totals["workers"] = {("workers",): float(len(ledger.store.workers()))}

    def collect(self) -> Iterator[Metric]:
        """Yield each series with its values."""
        for name, series in SERIES.items():
            totals = self._totals.get(name, {})
            yield _histogram(name, series, totals) if series.kind is Kind.HISTOGRAM else _plain(name, series, totals)


def _by_series(totals: Mapping[str, float]) -> dict[str, dict[Key, float]]:
    found: dict[str, dict[Key, float]] = defaultdict(dict)
    for name, total in sorted(totals.items()):
        key = key_of(name)
        if key is not None:
            found[key[0]][key] = total
    return found


def _plain(name: str, series: Series, totals: Mapping[Key, float]) -> Metric:
    kind = CounterMetricFamily if series.kind is Kind.COUNTER else GaugeMetricFamily
    family = kind(PREFIX + name, series.meaning, labels=series.labels)
    for (_, *labels), total in (totals or ({} if series.labels else {(name,): 0.0})).items():
        family.add_metric(labels, total)
    return family


def _histogram(name: str, series: Series, totals: Mapping[Key, float]) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, series.meaning, labels=series.labels)
    for labels in dict.fromkeys(key[1:-1] for key in totals):
        parts = {key[-1]: total for key, total in totals.items() if key[1:-1] == labels}
        family.add_metric(labels, buckets=_cumulative(parts), sum_value=parts.get(SUM, 0.0))
    return family


def _cumulative(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return how many were at most as long as each bound, from how many were in each bucket."""
    total = 0.0
    return [(bound, total := total + parts.get(bound, 0.0)) for bound in BOUNDS]
