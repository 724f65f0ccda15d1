"""The dashboard as a WSGI app, for Flask, Django and other applications that are no ASGI apps.

Requires `pip install "onejob[wsgi]"`.
"""

import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from threading import Lock
from typing import Any, TypeAlias

from a2wsgi import ASGIMiddleware
from celery import Celery

from onejob.jobs.public_view import Job
from onejob.pages.access import Authorize
from onejob.pages.app import dashboard

Environ: TypeAlias = dict[str, Any]
StartResponse: TypeAlias = Callable[..., Any]
WSGIApp: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]
PLAIN_TEXT = [("content-type", "text/plain; charset=utf-8")]


def wsgi_dashboard(
    celery_app: Celery,
    *,
    authorize: Authorize | None = None,
    keys: str | os.PathLike[str] | None = None,
    redact: Callable[[Job, str, Any], Any] | None = None,
) -> WSGIApp:
    """Return the dashboard of a Celery app as a WSGI app, which may be mounted below any `SCRIPT_NAME`.

    The parameters, and the errors that are raised, are those of `onejob.dashboard`. The request that `authorize` gets
    has the WSGI environ as `request.scope["wsgi_environ"]`.

    No request occupies a thread of the server for longer than its page takes: open pages poll every two seconds.
    """
    app: Any = dashboard(celery_app, authorize=authorize, keys=keys, redact=redact)
    lock = Lock()

    @lru_cache(1)
    def bridge_of(_process: int) -> Any:
        """Return the bridge to an event loop in a thread; each process has its own, since a fork loses the thread."""
        return ASGIMiddleware(app)

    def respond(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Respond to a request with the whole response at once, so that a disconnected client leaves nothing open."""
        try:  # ASGI has a path in UTF-8, and a query in ASCII
            for name in ("SCRIPT_NAME", "PATH_INFO"):
                environ.get(name, "").encode("latin-1").decode()
            environ.get("QUERY_STRING", "").encode("ascii")
        except UnicodeError:
            start_response("400 Bad Request", PLAIN_TEXT)
            return [b"the path is not valid UTF-8, or the query is not ASCII"]
        if environ.get("REMOTE_ADDR"):
            environ = {"REMOTE_PORT": "0"} | environ  # not every server names the port; without it there is no address
        with lock:
            bridge = bridge_of(os.getpid())
        return [b"".join(bridge(environ, start_response))]

    return respond
