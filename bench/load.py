"""A cheap HTTP/1.1 load generator: each connection sends its next request after the response to the last one."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass(slots=True)
class Served:
    """The responses to a load."""

    seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)
    """How long each answer took, in seconds."""
    bodies: list[bytes] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Answers per second."""
        return sum(self.statuses.values()) / self.seconds


class _Connection(asyncio.Protocol):
    """One client: a request, its answer, the next request."""

    def __init__(self, requests: Iterator[bytes], served: Served, *, keep: bool) -> None:
        self.applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests = requests
        self._served = served
        self._keep = keep
        self._buffer = b""
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = cast("asyncio.Transport", transport)
        self._next()

    def connection_lost(self, error: Exception | None) -> None:
        """Raise an error unless all responses have arrived."""
        if not self.applied.done():
            self.applied.set_exception(error or ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        """Take a part of an answer."""
        self._buffer += data
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        found = _LENGTH.search(head)
        length = int(found[1]) if found else 0
        if len(rest) < length:
            return
        self._served.statuses[int(head[9:12])] += 1
        self._served.waits.append(time.perf_counter() - self._sent)
        if self._keep:
            self._served.bodies.append(rest[:length])
        self._buffer = rest[length:]
        self._next()

    def _next(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self.applied.set_result(None)
            self._transport.close()
            return
        self._sent = time.perf_counter()
        self._transport.write(request)


async def load(port: int, requests: Iterator[bytes], *, clients: int, keep: bool = False) -> Served:
    """Send these requests over so many connections to a port of this machine; `keep`: the bodies of the answers."""
    loop, served = asyncio.get_running_loop(), Served()
    began = time.perf_counter()
    made = [
        await loop.create_connection(lambda: _Connection(requests, served, keep=keep), "127.0.0.1", port)
        for _ in range(clients)
    ]
    await asyncio.gather(*(protocol.applied for _, protocol in made))
    served.seconds = time.perf_counter() - began
    return served


def post(path: str, body: bytes) -> bytes:
    """Return a request that posts JSON."""
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def get(path: str, *headers: str) -> bytes:
    """Return a request that reads."""
    lines = (f"GET {path} HTTP/1.1", "host: 127.0.0.1", *headers)
    return "\r\n".join(lines).encode() + b"\r\n\r\n"
