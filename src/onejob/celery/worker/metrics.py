"""The metrics of a ledger in the Prometheus text format, and a server of them in a worker's parent process."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from onejob.celery.batching import TTLCache
from onejob.celery.loops import Loop
from onejob.errors import ConfigurationError
from onejob.ledger.ledger import Ledger
from onejob.ledger.stats import accumulate, read_metrics
from onejob.observability.metrics import PREFIX, SERIES, SUM, Key, Kind, Series

logger = logging.getLogger("onejob")
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
    return generate_latest(_Metrics(ledger))


class _Metrics(Collector):
    def __init__(self, ledger: Ledger) -> None:
        self._totals = read_metrics(ledger)

    def collect(self) -> Iterator[Metric]:
        for name, series in SERIES.items():
            totals = self._totals.get(name, {})
            if series.kind is Kind.HISTOGRAM:
                yield _build_histogram(name, series, totals)
                continue
            family_type = CounterMetricFamily if series.kind is Kind.COUNTER else GaugeMetricFamily
            family = family_type(PREFIX + name, series.meaning, labels=series.labels)
            for (_, *labels), total in (totals or ({} if series.labels else {(name,): 0.0})).items():
                family.add_metric(labels, total)
            yield family


def _build_histogram(name: str, series: Series, totals: Mapping[Key, float]) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, series.meaning, labels=series.labels)
    for labels in dict.fromkeys(key[1:-1] for key in totals):
        buckets = {key[-1]: total for key, total in totals.items() if key[1:-1] == labels}
        family.add_metric(labels, buckets=accumulate(buckets), sum_value=buckets.get(SUM, 0.0))
    return family


# --- a server for installations without the HTTP API ------------------------------------------------------------------


RETRY_SECONDS = 5.0
"""How often a worker tries again to bind a port that is taken."""
REQUEST_SECONDS = 10.0
"""How long a client may take for its request."""


class MetricsServer:
    """Serves `GET /metrics` at an address. All workers of a ledger return the same numbers.

    So of several workers on a host one serves, and another one takes the port when that worker has ended.
    """

    def __init__(self, ledger: Ledger, address: str, port: int) -> None:
        self._place = (address, port)
        self._handler = _handler_of(cached_metrics(ledger))
        self._server: ThreadingHTTPServer | None = None
        self._loop = Loop("onejob-metrics-port", RETRY_SECONDS, self._bind)

    def start(self) -> None:
        """Serve, now or when the port is free. Raises `ConfigurationError` for an address that is not of this host."""
        self._bind()
        if self._server is None:
            logger.warning(
                "onejob_metrics_port %d is taken on this host: retrying every %g s", *self._place[1:], RETRY_SECONDS
            )
            self._loop.start()

    def stop(self) -> None:
        """Close the port."""
        self._loop.stop()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _bind(self) -> None:
        if self._server is not None:
            return
        try:
            self._server = _Server(self._place, self._handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return
            msg = f"onejob_metrics_address={self._place[0]!r}, port {self._place[1]}, cannot be bound: {error}"
            raise ConfigurationError(msg) from error
        host, port = self._place
        logger.info("metrics are served at http://%s:%d/metrics", f"[{host}]" if ":" in host else host, port)
        threading.Thread(target=self._server.serve_forever, name="onejob-metrics-server", daemon=True).start()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, place: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        super().__init__(place, handler)


def _handler_of(metrics: Callable[[], bytes]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "metrics are at /metrics")
                return
            try:
                text = metrics()
            except Exception as error:  # noqa: BLE001 - a driver may raise anything
                logger.warning("the metrics cannot be read: %s", error)
                self.send_error(503, "the store is unavailable")
                return
            self.send_response(200)
            self.send_header("content-type", CONTENT_TYPE)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Log no request."""

    return Handler
