"""The HTTP client for webhooks: one POST per attempt, without redirects, cookies or proxies, under one deadline."""

import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from ipaddress import ip_address
from typing import Any

import httpcore2

from onejob.webhooks.job import Headers
from onejob.webhooks.settings import Address, WebhookSettings, WebhookUrl, may_connect, parse_ip


class FairSlots:
    """Shares `total` slots: at most `per_host` for one host, and for one submitter no more than are then free.

    So a submitter gets half of the slots, and each of n greedy submitters 1/(n + 1) of them: the rest is always free
    for another submitter. Safe to use from many threads.
    """

    def __init__(self, total: int, per_host: int) -> None:
        self._total = total
        self._per_host = per_host
        self._submitters: Counter[str] = Counter()
        self._hosts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def acquire(self, submitter: str, host: str) -> bool:
        """Take a slot; False if a limit is reached. Never waits."""
        with self._lock:
            free = self._total - self._submitters.total()
            if self._submitters[submitter] >= free or self._hosts[host] >= self._per_host:
                return False
            self._submitters[submitter] += 1
            self._hosts[host] += 1
            return True

    def release(self, submitter: str, host: str) -> None:
        """Return a slot that `acquire` has taken with these arguments."""
        with self._lock:
            for counter, name in ((self._submitters, submitter), (self._hosts, host)):
                counter[name] -= 1
                if not counter[name]:
                    del counter[name]

    def used_by(self, submitter: str) -> int:
        """Return how many slots a submitter has."""
        return self._submitters[submitter]


RESPONSE_LIMIT = 64 * 1024
"""The bytes that are read of a response, including the headers."""
LOOKUPS = FairSlots(64, per_host=2)
"""Limits the lookup threads: `getaddrinfo` cannot be interrupted, so that a thread may outlive its deadline."""


class LookupBusyError(Exception):
    """Too many DNS lookups of this submitter or host hang to start another: nothing was attempted."""


class ForbiddenAddressError(Exception):
    """The host resolves to an address that webhooks may not connect to."""


class Deadline:
    """A point in time on the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def remaining(self, at_most: float | None = None) -> float:
        """Return the remaining seconds, capped by `at_most`. Raises `TimeoutError` after the deadline."""
        seconds = self._at - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds if at_most is None else min(seconds, at_most)


class RestrictedBackend(httpcore2.NetworkBackend):
    """Connects to a host if `is_allowed` accepts every address that the host resolves to."""

    def __init__(self, is_allowed: Callable[[Address], bool], deadline: Deadline, submitter: str) -> None:
        self._is_allowed = is_allowed
        self._submitter = submitter
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - `Deadline` applies instead
        local_address: str | None = None,  # noqa: ARG002 - httpcore2's signature
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002 - the same
    ) -> httpcore2.NetworkStream:
        """Connect to the first address that accepts. Raises `ForbiddenAddressError`, `LookupBusyError`, `OSError`."""
        connect_deadline = Deadline(self._deadline.remaining(CONNECT_SECONDS))
        addresses = _resolve(host.strip("[]"), port, connect_deadline, self._submitter)
        if not addresses or not all(self._is_allowed(ip_address(sockaddr[0])) for *_, sockaddr in addresses):
            raise ForbiddenAddressError
        return LimitedStream(_connect(addresses, connect_deadline), self._deadline)


class LimitedStream(httpcore2.NetworkStream):
    """A connection whose reads and writes end at the deadline, and which reads `RESPONSE_LIMIT` bytes at most."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline
        self._readable = RESPONSE_LIMIT

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - `Deadline` applies instead
        """Return the next bytes; none at the end of the stream or at the limit."""
        self._sock.settimeout(self._deadline.remaining())
        received = self._sock.recv(min(max_bytes, self._readable))
        self._readable -= len(received)
        return received

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - as above
        """Send all bytes. Raises `httpcore2.WriteError` if the peer closed: httpcore then still reads the response."""
        rest = memoryview(buffer)
        while rest:
            self._sock.settimeout(self._deadline.remaining())
            try:
                rest = rest[self._sock.send(rest) :]
            except ConnectionError as error:
                raise httpcore2.WriteError(str(error)) from error

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002 - as above
    ) -> httpcore2.NetworkStream:
        """Start TLS; the certificate must match the host of the URL."""
        name = server_hostname and server_hostname.strip("[]")
        try:
            self._sock.settimeout(self._deadline.remaining())
            self._sock = ssl_context.wrap_socket(self._sock, server_hostname=name)
        except BaseException:
            self.close()
            raise
        return self


def _resolve(host: str, port: int, deadline: Deadline, submitter: str) -> list[Any]:
    """Return the results of `getaddrinfo`. Raises `LookupBusyError`, `TimeoutError` and `OSError`."""
    address, lookups = parse_ip(host), LOOKUPS
    if address is not None:
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6  # noqa: PLR2004 - of IP
        return [(family, socket.SOCK_STREAM, 0, "", (str(address), port))]
    if not lookups.acquire(submitter, host):
        raise LookupBusyError(f"no DNS lookup of {host} could be started, because too many hang")
    found: Future[list[Any]] = Future()

    def look_up() -> None:
        try:
            found.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            found.set_exception(error)
        except UnicodeError:  # a DNS label is empty or too long
            found.set_exception(socket.gaierror(socket.EAI_NONAME, "invalid host name"))
        finally:
            lookups.release(submitter, host)

    try:
        threading.Thread(target=look_up, name="onejob-dns-lookup", daemon=True).start()
    except RuntimeError:
        lookups.release(submitter, host)
        raise LookupBusyError(f"no DNS lookup of {host} could be started: the system has no more threads") from None
    return found.result(timeout=deadline.remaining())


def _connect(addresses: Sequence[Any], deadline: Deadline) -> socket.socket:
    """Return a socket to the first address that accepts in its share of the time that is left. Raises `OSError`."""
    error = OSError("the host has no address")
    for number, (family, kind, protocol, _, sockaddr) in enumerate(addresses):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(deadline.remaining() / (len(addresses) - number))
            sock.connect(sockaddr)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as failure:
            sock.close()
            error = failure
        else:
            return sock
    raise error


TOTAL_SECONDS = 10.0
"""Limit for one attempt, from the DNS lookup to the end of the response."""
CONNECT_SECONDS = 5.0
"""Limit for the DNS lookup and the TCP connection, within `TOTAL_SECONDS`."""
EXCERPT_LIMIT = 100
"""Characters of the response body that are kept when an attempt fails."""
SUCCESS = range(200, 300)
HEADER_LIMIT = 100
MAX_RETRY_AFTER = 86_400.0


@dataclass(frozen=True, slots=True)
class WebhookResponse:
    """The response of a receiver."""

    status: int
    retry_after: float = 0.0
    """Seconds, from the header `Retry-After`; 0 without one."""
    excerpt: str = ""
    """The beginning of the body, unless the attempt succeeded."""

    @property
    def ok(self) -> bool:
        """Whether the receiver accepted the event: any 2xx status."""
        return self.status in SUCCESS


class DeliveryError(Exception):
    """An attempt got no response; the message says why."""


class WebhookClient:
    """Sends to the addresses that the settings allow. `tls` replaces the default context, e.g. for a private CA."""

    def __init__(self, settings: WebhookSettings, tls: ssl.SSLContext | None = None) -> None:
        self._settings = settings
        self._tls = tls or httpcore2.default_ssl_context()

    def send(
        self, url: str, body: bytes, headers: Headers, *, seconds: float = TOTAL_SECONDS, submitter: str = ""
    ) -> WebhookResponse:
        """Make one attempt within `seconds`; `submitter` has named the URL, and shares the DNS lookups with others.

        Raises `DeliveryError`, `InvalidArgumentsError` for an invalid URL, and `LookupBusyError` if nothing was sent
        because too many lookups hang.
        """
        target, deadline = WebhookUrl.parse(url), Deadline(seconds)
        is_allowed = partial(may_connect, target=target, settings=self._settings)
        backend = RestrictedBackend(is_allowed, deadline, submitter)
        try:
            with httpcore2.ConnectionPool(ssl_context=self._tls, network_backend=backend, max_connections=1) as pool:
                receiver = httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
                with pool.stream("POST", receiver, headers=headers, content=body) as response:
                    if response.status in SUCCESS:
                        return WebhookResponse(response.status)  # without reading the body
                    fields = {name.lower(): value for name, value in response.headers}
                    retry_after = parse_retry_after(fields.get(b"retry-after", b""))
                    return WebhookResponse(response.status, retry_after, _read_excerpt(response))
        except (ForbiddenAddressError, OSError, httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            raise DeliveryError(_describe(target.host, error, seconds)) from None


def _describe(host: str, error: Exception, seconds: float) -> str:
    match error:
        case ForbiddenAddressError():
            return f"{host} resolves to an address, or uses a port, that webhooks may not connect to"
        case TimeoutError():
            return f"{host} did not answer within {seconds:g} s"
        case ssl.SSLError():
            return f"TLS with {host} failed: {error.reason or error}"
        case OSError():
            return f"{host} cannot be reached: {error.strerror or error}"
        case httpcore2.NetworkError():
            return f"{host} closed the connection: {error}"
    return f"{host} sent an invalid HTTP response: {str(error)[:EXCERPT_LIMIT]}"


def _read_excerpt(response: httpcore2.Response) -> str:
    """Return the beginning of the body, up to the deadline or an error, as one printable line."""
    read = b""
    with suppress(httpcore2.ProtocolError, httpcore2.NetworkError, OSError):
        for part in response.iter_stream():
            read += part
            if len(read) >= 4 * EXCERPT_LIMIT:
                break
    words = read[: 4 * EXCERPT_LIMIT].decode(errors="replace").split()
    return "".join(c if c.isprintable() else "?" for c in " ".join(words))[:EXCERPT_LIMIT]


def parse_retry_after(header: bytes) -> float:
    """Return the seconds of a `Retry-After` (RFC 9110: a number or a date), a day at most; 0 for an invalid one."""
    text = header[:HEADER_LIMIT].decode("latin-1").strip()
    if text.isdecimal():
        return min(float(text[:10]), MAX_RETRY_AFTER)
    with suppress(ValueError, OverflowError):
        date = parsedate_to_datetime(text)
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        return min(max((date - datetime.now(UTC)).total_seconds(), 0.0), MAX_RETRY_AFTER)
    return 0.0
