"""A WSGI server in a thread of the test's process: werkzeug's, with a thread per request, or the one of Python."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from werkzeug.serving import WSGIRequestHandler as WerkzeugHandler
from werkzeug.serving import make_server as make_werkzeug_server

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 20.0
SERVERS = ("werkzeug", "wsgiref")


class _SilentWerkzeug(WerkzeugHandler):
    def log(self, *args: Any) -> None:
        """Log nothing."""


class _SilentWsgiref(WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def serving_wsgi(app: Any, name: str = "werkzeug") -> Iterator[str]:
    """Run a server for the length of a block, and yield its URL."""
    server: Any
    if name == "werkzeug":
        server = make_werkzeug_server("127.0.0.1", 0, app, threaded=True, request_handler=_SilentWerkzeug)
    else:
        server = make_server("127.0.0.1", 0, app, handler_class=_SilentWsgiref)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(PATIENCE)
        server.server_close()
