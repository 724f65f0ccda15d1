"""Proxies in front of a server on loopback: they pass on bytes, and a test says which, and what else happens then."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

Carry: TypeAlias = Callable[[bytes, socket.socket], None]
"""Passes on what one side of a connection has written to the other side; b"" is its end."""


def carry(data: bytes, sink: socket.socket) -> None:
    """Pass on everything."""
    if data:
        sink.sendall(data)
    else:
        sink.shutdown(socket.SHUT_RDWR)


class Proxy:
    """Accepts connections, and carries what clients and server write."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open = ExitStack()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def carries(self) -> tuple[Carry, Carry]:
        """Return what carries the requests and the replies of a new connection."""
        return carry, carry

    def close(self) -> None:
        """Close all connections, and accept no more."""
        _end(self._listener)
        self._accepting.join(5)  # so that what it has accepted is closed, too
        self._open.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._connected(self._listener.accept()[0])
                server = self._connected(socket.create_connection(("127.0.0.1", self._target)))
                for source, sink, by in zip((client, server), (server, client), self.carries(), strict=True):
                    threading.Thread(target=_pass_on, args=(source, sink, by), daemon=True).start()

    def _connected(self, opened: socket.socket) -> socket.socket:
        self._open.callback(_end, opened)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened


def _pass_on(source: socket.socket, sink: socket.socket, by: Carry) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 20):
            by(data, sink)
    with suppress(OSError):
        by(b"", sink)


def _end(opened: socket.socket) -> None:
    with opened, suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)  # which wakes the thread that reads it or accepts from it


class HalfOpen(Proxy):
    """Carries everything, until a direction is silent: connections stay open, and nothing arrives."""

    drops_requests = drops_replies = False
    cuts = 0
    """How often `cut` was called."""

    def cut(self) -> None:
        """Pass nothing any more over the connections that are open now, not even their end; new ones work."""
        self.cuts += 1

    def carries(self) -> tuple[Carry, Carry]:
        """Return what carries both directions until it is cut."""
        cuts = self.cuts

        def unless(dropped: str) -> Carry:
            def by(data: bytes, sink: socket.socket) -> None:
                if self.cuts == cuts and not (data and getattr(self, dropped)):
                    carry(data, sink)

            return by

        return unless("drops_requests"), unless("drops_replies")


# --- a reverse proxy --------------------------------------------------------------------------------------------------


@contextmanager
def publishing(target: str, path: str, *, removes_path: bool) -> Iterator[str]:
    """Publish a server below a path, which the proxy may remove, as `proxy_pass` of nginx does; yield the URL."""
    host = target.removeprefix("http://")

    class Handler(BaseHTTPRequestHandler):
        def forward(self) -> None:
            if not self.path.startswith(f"{path}/") and self.path != path:
                self.send_error(404, "the proxy publishes no such path")
                return
            below = self.path.removeprefix(path) if removes_path else self.path
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            headers = {**self.headers, "x-forwarded-for": "203.0.113.9", "x-forwarded-prefix": "/elsewhere"}
            connection = HTTPConnection(host, timeout=60)
            with closing(connection):
                connection.request(self.command, below or "/", body, headers)
                answer = connection.getresponse()
                self.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    if name not in {"transfer-encoding", "connection"}:
                        self.send_header(name, value)
                self.end_headers()
                with suppress(OSError):
                    while data := answer.read1():
                        self.wfile.write(data)

        def __getattr__(self, name: str) -> Callable[[], None]:
            return self.forward if name.startswith("do_") else self.__getattribute__(name)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield url


@contextmanager
def running(server: Any) -> Iterator[str]:
    """Run a server of `http.server` or `werkzeug` in a thread, and yield its URL."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(20)
        server.server_close()
