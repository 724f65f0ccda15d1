"""The network backend of webhooks: resolves a host once, checks all its addresses and connects, under one deadline."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from ipaddress import ip_address
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import httpcore2

from onejob.webhooks.fair_slots import FairSlots
from onejob.webhooks.ip_policy import parse_ip

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable

    from onejob.webhooks.ip_policy import Address

RESPONSE_LIMIT = 64 * 1024
"""Bytes that are read of one response, including the headers."""
LOOKUPS = FairSlots(64, per_host=2)
"""Limits the lookup threads: `getaddrinfo` cannot be interrupted, so that a thread may outlive its deadline."""


class LookupBusyError(Exception):
    """No DNS lookup could be started, because too many of this submitter or host still hang: nothing was attempted."""


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

    def __init__(
        self, is_allowed: Callable[[Address], bool], deadline: Deadline, connect_seconds: float, submitter: str
    ) -> None:
        self._is_allowed = is_allowed
        self._submitter = submitter
        self._deadline = deadline
        self._connect_seconds = connect_seconds

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - `Deadline` applies instead
        local_address: str | None = None,  # noqa: ARG002 - httpcore2's signature
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002 - the same
    ) -> httpcore2.NetworkStream:
        """Connect to the first address that accepts. Raises `ForbiddenAddressError`, `LookupBusyError`, `OSError`."""
        connect_deadline = Deadline(self._deadline.remaining(self._connect_seconds))
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
        if not self._readable:
            return b""
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
        msg = f"no DNS lookup of {host} could be started, because too many hang"
        raise LookupBusyError(msg)
    results: SimpleQueue[list[Any] | OSError] = SimpleQueue()

    def look_up() -> None:
        try:
            results.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            results.put(error)
        except UnicodeError:  # a DNS label is empty or too long
            results.put(socket.gaierror(socket.EAI_NONAME, "invalid host name"))
        finally:
            lookups.release(submitter, host)

    threading.Thread(target=look_up, name="onejob-dns-lookup", daemon=True).start()
    with suppress(Empty):
        result = results.get(timeout=deadline.remaining())
        if isinstance(result, OSError):
            raise result
        return result
    raise TimeoutError


def _connect(addresses: Iterable[Any], deadline: Deadline) -> socket.socket:
    error = OSError("the host has no address")
    for family, kind, protocol, _, sockaddr in addresses:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(deadline.remaining())
            sock.connect(sockaddr)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as failure:
            sock.close()
            error = failure
        else:
            return sock
    raise error
