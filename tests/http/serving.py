"""A server in a thread of the test's process."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn

from onejob.api.server import DEFAULT_LIMITS, BoundedProtocol
from tests.services import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp

    from onejob.api.server import Limits

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
        """The URL of the server."""
        return f"http://127.0.0.1:{self.address[1]}"

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self.server.server_state.connections)

    def connect(self, *sent: bytes) -> socket.socket:
        """Open a connection and send some bytes."""
        connection = socket.create_connection(self.address, timeout=PATIENCE)
        for each in sent:
            connection.sendall(each)
        return connection


@contextmanager
def serving(app: ASGIApp, limits: Limits = DEFAULT_LIMITS) -> Iterator[ServerThread]:
    """Run a server for the length of a block."""
    served = ServerThread(app, limits)
    served.thread.start()
    try:
        eventually(lambda: served.server.started)
        yield served
    finally:
        served.server.should_exit = served.server.force_exit = True
        served.thread.join(PATIENCE)
