"""The ledger's metrics as observable instruments, by the names that `/metrics` has."""

from __future__ import annotations

import threading
import time
from importlib.metadata import version
from typing import TYPE_CHECKING

from opentelemetry import metrics
from opentelemetry.metrics import Observation

from onejob.celery.app_state import app_state_of
from onejob.ledger.stats import accumulate, read_metrics
from onejob.observability.metrics import PREFIX, SERIES, SUM, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery import Celery
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider

    from onejob.observability.metrics import Key

    Values = dict[Key, float]
    Callback = Callable[[CallbackOptions], Iterator[Observation]]

CACHE_SECONDS = 1.0
"""For so long all instruments observe the same values: those of one collection."""


def report_metrics(app: Celery, meter_provider: MeterProvider | None = None) -> None:
    """Report the metrics of an app's ledger, read from the store at each collection.

    They are totals of all processes, so one process is to report them: in a pool, or from several servers, backends
    would add them up. `meter_provider`: None for OpenTelemetry's global one. Nothing is observed while the store does
    not answer.
    """
    snapshot = _Snapshot(app)
    meter = metrics.get_meter("onejob", version("onejob"), meter_provider)
    for name, series in SERIES.items():
        unit = "s" if name.endswith("_seconds") else "1"
        if series.kind is Kind.HISTOGRAM:
            _report_histogram(meter, snapshot, name, unit)
            continue
        create = meter.create_observable_counter if series.kind is Kind.COUNTER else meter.create_observable_gauge
        create(PREFIX + name, [_observe(snapshot, name)], unit, series.meaning)


class _Snapshot:
    """The values of all series, read once for all instruments of a collection."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._values: dict[str, Values] = {}
        self._read_at = float("-inf")

    def values_of(self, series: str) -> Values:
        """Return the values of a series by key. Raises `StoreError`."""
        with self._lock:
            if time.monotonic() - self._read_at >= CACHE_SECONDS:
                self._values = read_metrics(app_state_of(self._app).ledger)
                self._read_at = time.monotonic()
            return self._values.get(series, {})


def _observe(snapshot: _Snapshot, name: str) -> Callback:
    labels = SERIES[name].labels

    def observe(_: CallbackOptions) -> Iterator[Observation]:
        values = snapshot.values_of(name) or ({} if labels else {(name,): 0.0})
        for (_name, *texts), value in values.items():
            yield Observation(value, dict(zip(labels, texts, strict=True)))

    return observe


def _report_histogram(meter: Meter, snapshot: _Snapshot, name: str, unit: str) -> None:
    """Report a histogram as the series that Prometheus has: OpenTelemetry has no observable histogram.

    Up-down counters, because exporters to Prometheus add `_total` to the names of others.
    """
    meaning = SERIES[name].meaning
    labels = SERIES[name].labels

    def buckets(_: CallbackOptions) -> Iterator[Observation]:
        for texts, found in _by_labels(snapshot.values_of(name)).items():
            for bound, count in accumulate(found):
                yield Observation(count, dict(zip(labels, texts, strict=True)) | {"le": bound})

    def counts(_: CallbackOptions) -> Iterator[Observation]:
        for texts, found in _by_labels(snapshot.values_of(name)).items():
            yield Observation(accumulate(found)[-1][1], dict(zip(labels, texts, strict=True)))

    def sums(_: CallbackOptions) -> Iterator[Observation]:
        for texts, found in _by_labels(snapshot.values_of(name)).items():
            yield Observation(found.get(SUM, 0.0), dict(zip(labels, texts, strict=True)))

    meter.create_observable_up_down_counter(f"{PREFIX}{name}_bucket", [buckets], "1", meaning)
    meter.create_observable_up_down_counter(f"{PREFIX}{name}_count", [counts], "1", meaning)
    meter.create_observable_up_down_counter(f"{PREFIX}{name}_sum", [sums], unit, meaning)


def _by_labels(values: Values) -> dict[Key, dict[str, float]]:
    """Return the amounts of a histogram by its labels, and by bound."""
    found: dict[Key, dict[str, float]] = {}
    for key, amount in values.items():
        found.setdefault(key[1:-1], {})[key[-1]] = amount
    return found
