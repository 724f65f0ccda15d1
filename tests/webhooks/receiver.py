"""A receiver of webhooks on loopback; the path of the URL selects its behaviour, correct or hostile."""

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from standardwebhooks import Webhook

from tests.services import eventually

SECRET = "whsec_" + "c2VjcmV0LW9mLXRoZS10ZXN0cy0wMTIzNDU2Nzg5"
OLDER = "whsec_" + "b2xkZXItc2VjcmV0LW9mLXRoZS10ZXN0cy0wMTIz"
LOOPBACK = ["127.0.0.0/8", "::1/128"]
SETTINGS: dict[str, Any] = {"onejob_webhook_secrets": [SECRET], "onejob_webhook_allow": LOOPBACK}
PATIENCE = 40.0


@dataclass(frozen=True, slots=True)
class Got:
    path: str
    headers: dict[str, str]
    body: bytes
    at: float = field(default_factory=time.monotonic)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def verified(self, secret: str = SECRET) -> Any:
        """Return the event; raises when the signature is invalid."""
        return Webhook(secret).verify(self.body, self.headers)


class Receiver:
    """Records requests, and responds as their path says: `/status/N`, `/times/N` (N failures first), `/hang` etc."""

    def __init__(self, server: ThreadingHTTPServer, scheme: str) -> None:
        self._server = server
        self._scheme = scheme
        self._lock = threading.Lock()
        self._got: list[Got] = []
        self.released = threading.Event()
        """Set to let hanging handlers proceed."""

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def url(self, path: str = "/ok", host: str = "127.0.0.1") -> str:
        return f"{self._scheme}://{host}:{self.port}{path}"

    def add(self, got: Got) -> int:
        """Record a request, and return the number of requests to its path."""
        with self._lock:
            self._got.append(got)
            return sum(each.path == got.path for each in self._got)

    def got(self, path: str | None = None) -> list[Got]:
        with self._lock:
            return [got for got in self._got if path in (None, got.path)]

    def await_(self, path: str, times: int = 1) -> list[Got]:
        """Wait until a path has `times` requests, and return them."""
        eventually(lambda: len(self.got(path)) >= times, PATIENCE)
        return self.got(path)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    receiver: Receiver

    def log_message(self, *_: Any) -> None: ...

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        number = self.receiver.add(Got(self.path, headers, body))
        _, kind, *rest = self.path.partition("?")[0].split("/")
        self.close_connection = True
        with suppress(OSError):
            getattr(self, f"_{kind}")(number, *rest)

    def _respond(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _ok(self, number: int, *_: str) -> None:
        self._respond(204)

    def _status(self, number: int, status: str, after: str = "") -> None:
        self._respond(
            int(status), b"no\x00\x1b[31m  thanks\n" + b"x" * 1000, **({"retry_after": after} if after else {})
        )

    def _times(self, number: int, refusals: str, *_: str) -> None:
        self._respond(500 if number <= int(refusals) else 200)

    def _hang(self, number: int, *_: str) -> None:
        self.receiver.released.wait(PATIENCE)

    def _hold(self, number: int, *_: str) -> None:
        self.receiver.released.wait(PATIENCE)
        self._respond(204)

    def _close(self, number: int, *_: str) -> None: ...

    def _redirect(self, number: int, status: str) -> None:
        self._respond(int(status), location=self.receiver.url("/ok/stolen"))

    def _drip(self, number: int, where: str) -> None:
        """Send an endless header or body, one byte at a time."""
        self.wfile.write(
            b"HTTP/1.1 500 No\r\n" if where == "head" else b"HTTP/1.1 500 No\r\ncontent-length: 99999\r\n\r\n"
        )
        while not self.receiver.released.wait(0.02):
            self.wfile.write(b"x")

    def _flood(self, number: int, where: str) -> None:
        """Send an endless header, body, or series of 103 responses, as fast as it is read."""
        starts = {
            "head": b"HTTP/1.1 200 OK\r\nx: ", "body": b"HTTP/1.1 500 No\r\n\r\n", "good": b"HTTP/1.1 200 OK\r\n\r\n",
            "early": b"",
        }  # fmt: skip
        self.wfile.write(starts[where])
        while not self.receiver.released.is_set():
            self.wfile.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 2000 if where == "early" else b"x" * 65536)

    def _garbage(self, number: int, *_: str) -> None:
        self.wfile.write(b"\x16\x03\x01 this is no HTTP\r\n\r\n")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: Any) -> None: ...


@contextmanager
def receiving(tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Iterator[Receiver]:
    handler = type("Handler", (_Handler,), {})
    server = _Server((host, 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    receiver = handler.receiver = Receiver(server, "http" if tls is None else "https")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.released.set()
        server.shutdown()
        thread.join(PATIENCE)
        server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver
