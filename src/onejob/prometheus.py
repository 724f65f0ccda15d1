"""The metrics of a ledger in the Prometheus text format, and a server of them in a worker's parent process."""

from __future__ import annotations

import errno
import io
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from onejob.concurrency.batching import TTLCache
from onejob.concurrency.loops import Loop
from onejob.errors import ConfigurationError
from onejob.ledger.ledger import Ledger
from onejob.ledger.stats import accumulate, read_metrics
from onejob.observability.metrics import PREFIX, SERIES, SUM, Key, Kind, Series
from onejob.observability.request_origin import FOREIGN_SITES, LOCAL_NAMES, is_loopback, without_port

logger = logging.getLogger("onejob")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CACHE_SECONDS = 1.0
"""Seconds for which the text is cached, so that frequent scrapes do not reach the store."""
COST_FACTOR = 9.0
"""The factor of the caching time: counting a large ledger's jobs may keep the store busy for a tenth of the time."""


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
"""Seconds between two attempts of a worker to bind a port that is taken."""
REQUEST_SECONDS = 5.0
"""Seconds that a client may take for its request and for reading the response, in all."""
REQUESTS_AT_ONCE = 8
"""How many requests are answered at once, each in a thread of the worker's parent process; others are closed."""
SLOT_SECONDS = 0.25
"""Seconds for which a request waits for a thread: a client reads the end of a response before the thread has ended."""


class MetricsServer:
    """Serves `GET /metrics` at an address. All workers of a ledger return the same numbers.

    One of several workers on a host serves; another worker takes the port when the first has ended.
    """

    def __init__(self, ledger: Ledger, address: str, port: int) -> None:
        self._place = (address, port)
        self._shown = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        self._handler = _handler_of(cached_metrics(ledger), is_local=is_loopback(address))
        self._server: ThreadingHTTPServer | None = None
        self._loop = Loop("onejob-metrics-port", RETRY_SECONDS, self._bind)

    def start(self) -> None:
        """Serve, now or when the port is free. Raises `ConfigurationError` for an address that is not of this host."""
        self._bind()
        if self._server is None:
            logger.warning(
                "the port %d of onejob_metrics_port is taken on this host: retrying every %g s",
                self._place[1],
                RETRY_SECONDS,
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
            raise ConfigurationError(f"onejob_metrics_port={self._shown!r} cannot be bound: {error}") from error
        logger.info("metrics are served at http://%s/metrics", self._shown)
        threading.Thread(target=self._server.serve_forever, name="onejob-metrics-server", daemon=True).start()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, place: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self._slots = threading.BoundedSemaphore(REQUESTS_AT_ONCE)
        super().__init__(place, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a request in a thread, or close its connection if too many are answered already."""
        if self._slots.acquire(timeout=SLOT_SECONDS):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnected or was too slow while it was sent the response."""


class _Reader(io.RawIOBase):
    """Reads a socket until a deadline, however little each read gets. Raises `TimeoutError`."""

    def __init__(self, connection: socket.socket, ends_at: float) -> None:
        self._connection = connection
        self._ends_at = ends_at

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        remaining = self._ends_at - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._connection.settimeout(remaining)
        return self._connection.recv_into(buffer)


def _handler_of(metrics: Callable[[], bytes], *, is_local: bool) -> type[BaseHTTPRequestHandler]:
    """Return the handler of requests; `is_local`: respond only to local host names (no DNS rebinding)."""

    class Handler(BaseHTTPRequestHandler):
        def setup(self) -> None:
            super().setup()
            self.rfile = io.BufferedReader(_Reader(self.connection, time.monotonic() + REQUEST_SECONDS))

        def refusal(self) -> str:
            """Return the reason why a request is refused; "" if it is not."""
            host = without_port(self.headers.get("host", "localhost"))
            site = self.headers.get("sec-fetch-site", "")
            if is_local and host not in LOCAL_NAMES:
                return (
                    "the port is bound to loopback: request localhost or 127.0.0.1, or write an address before the "
                    "port: onejob_metrics_port = '0.0.0.0:9100'"
                )
            if site in FOREIGN_SITES and self.headers.get("sec-fetch-mode") != "navigate":
                return "a page of another origin has sent the request"
            return ""

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "metrics are at /metrics")
                return
            if refusal := self.refusal():
                self.send_error(403, refusal)
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
