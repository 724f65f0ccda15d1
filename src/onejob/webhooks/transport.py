"""The network below a webhook: a name is resolved once, its addresses are checked and connected to, in time."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from ipaddress import ip_address
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import httpcore2

from onejob.webhooks.ip_policy import literal

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable

    from onejob.webhooks.ip_policy import Address

ANSWER_LIMIT = 64 * 1024
"""How many bytes are read of one answer, its head included."""
LOOK_UPS = threading.BoundedSemaphore(16)
"""A resolver cannot be interrupted: so many threads may hang in it, and no more are started."""


class ForbiddenAddressError(Exception):
    """The name leads to an address that no webhook may be sent to."""


class Deadline:
    """A moment of this process's clock before which everything has to happen."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def left(self, most: float | None = None) -> float:
        """Return the seconds that are left, `most` at most. Raises `TimeoutError` when there are none."""
        seconds = self._at - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds if most is None else min(seconds, most)


class GuardedNetwork(httpcore2.NetworkBackend):
    """Connects to what a name resolves to, if `permits` says so of every address that it resolves to."""

    def __init__(self, permits: Callable[[Address], bool], deadline: Deadline, connect_seconds: float) -> None:
        self._permits = permits
        self._deadline = deadline
        self._connect_seconds = connect_seconds

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - the deadline is ours
        local_address: str | None = None,  # noqa: ARG002 - httpcore2's signature
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002 - the same
    ) -> httpcore2.NetworkStream:
        """Connect to the first address that answers. Raises `ForbiddenAddressError`, and `OSError`."""
        connecting = Deadline(self._deadline.left(self._connect_seconds))
        places = _resolve(host.strip("[]"), port, connecting)
        if not places or not all(self._permits(ip_address(place[4][0])) for place in places):
            raise ForbiddenAddressError
        return Stream(_connect(places, connecting), self._deadline)


class Stream(httpcore2.NetworkStream):
    """A connection on which neither side can take longer than the deadline, nor the other say more than the limit."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline
        self._allowance = ANSWER_LIMIT

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - the deadline is ours
        """Return what has come, empty at the end, which is also where the limit is."""
        if not self._allowance:
            return b""
        self._sock.settimeout(self._deadline.left())
        read = self._sock.recv(min(max_bytes, self._allowance))
        self._allowance -= len(read)
        return read

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - as above
        """Send all of it. Raises `httpcore2.WriteError` for a connection that was closed: there may be an answer."""
        rest = memoryview(buffer)
        while rest:
            self._sock.settimeout(self._deadline.left())
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
        """Encrypt the connection; the certificate has to be that of the name that was asked for."""
        name = server_hostname and server_hostname.strip("[]")
        try:
            self._sock.settimeout(self._deadline.left())
            self._sock = ssl_context.wrap_socket(self._sock, server_hostname=name)
        except BaseException:
            self.close()
            raise
        return self


def _resolve(host: str, port: int, deadline: Deadline) -> list[Any]:
    """Return what the system's resolver says. Raises `TimeoutError`, and `OSError`."""
    address, look_ups = literal(host), LOOK_UPS
    if not look_ups.acquire(timeout=deadline.left()):
        raise TimeoutError
    answers: SimpleQueue[list[Any] | OSError] = SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(socket.getaddrinfo(str(address or host), port, type=socket.SOCK_STREAM))
        except OSError as error:
            answers.put(error)
        except UnicodeError:  # a label that is empty or too long
            answers.put(socket.gaierror(socket.EAI_NONAME, "no name at all"))
        finally:
            look_ups.release()

    threading.Thread(target=look_up, name="onejob-look-up", daemon=True).start()
    with suppress(Empty):
        answer = answers.get(timeout=deadline.left())
        if isinstance(answer, OSError):
            raise answer
        return answer
    raise TimeoutError


def _connect(places: Iterable[Any], deadline: Deadline) -> socket.socket:
    error = OSError("there is no address")
    for family, kind, protocol, _, place in places:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(deadline.left())
            sock.connect(place)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as failure:
            sock.close()
            error = failure
        else:
            return sock
    raise error
