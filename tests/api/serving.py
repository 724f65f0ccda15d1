"""Servers in a thread of the test's process: ours, and a WSGI server."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from werkzeug.serving import WSGIRequestHandler, make_server

from onejob.api.server import DEFAULT_LIMITS, BoundedProtocol, Limits
from tests.proxies import running
from tests.services import eventually

PATIENCE = 20.0


class ServerThread:
    """The server, its address, and its open connections."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        http: Any = partial(BoundedProtocol, limits)
        config = uvicorn.Config(
            app, http=http, ws="none", interface="asgi3", log_config=None, lifespan="off", proxy_headers=False
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, args=([listener],))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.address[1]}"

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    def connect(self, *sent: bytes) -> socket.socket:
        connection = socket.create_connection(self.address, timeout=PATIENCE)
        with suppress(ConnectionError):  # a server that refuses the first bytes does not take the last ones
            for each in sent:
                connection.sendall(each)
        return connection


@contextmanager
def serving(app: ASGIApp, limits: Limits = DEFAULT_LIMITS) -> Iterator[ServerThread]:
    served = ServerThread(app, limits)
    served.thread.start()
    try:
        eventually(lambda: served.server.started)
        yield served
    finally:
        served.server.should_exit = served.server.force_exit = True
        served.thread.join(PATIENCE)


def asgi_status(app: Any, path: str, client: str, headers: dict[str, str], received: str = "http.request") -> int:
    """Return the status of a request with these headers alone: a GET, or a POST that its client leaves unfinished."""
    return asyncio.run(await_status(app, path, client, headers, received))


async def await_status(
    app: Any, path: str, client: str, headers: dict[str, str], received: str = "http.request"
) -> int:  # fmt: skip
    """Return the status of a request, in the event loop of the caller."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": received, "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http", "http_version": "1.1", "method": "GET" if received == "http.request" else "POST", "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http",
        "server": ("127.0.0.1", 80), "client": (client, 1), "state": {},
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    await app(scope, receive, send)
    return int(sent[0]["status"])


class _Silent(WSGIRequestHandler):
    def log(self, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def serving_wsgi(app: Any) -> Iterator[str]:
    with running(make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Silent)) as url:
        yield url
