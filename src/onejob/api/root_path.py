"""The path below which a proxy publishes the server: `/jobs-ui` of `https://example.org/jobs-ui/dashboard/`.

The operator sets it. The header `X-Forwarded-Prefix` is not read: a proxy that does not replace it passes on the
client's header, and the client would choose where redirects and links lead.
"""

import re

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from onejob.errors import ConfigurationError

_ROOT_PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+)+")


def check_root_path(root_path: str, app: FastAPI) -> None:
    """Raise `ConfigurationError` for an invalid root path, or one that begins like a path of the app."""
    if not _ROOT_PATH.fullmatch(root_path):
        raise ConfigurationError(
            f"{root_path!r:.200} is not the path of a proxy: write it with a slash at its beginning and none at its "
            "end, such as /jobs-ui"
        )
    first = root_path.split("/")[1]
    paths = [*app.openapi()["paths"], "/openapi.json", *(getattr(route, "path", "") for route in app.router.routes)]
    if first in {path.strip("/").partition("/")[0] for path in paths}:
        raise ConfigurationError(
            f"the root path {root_path!r} begins like /{first}, a path of the server itself: choose another one, such "
            f"as /jobs-ui, or /ui{root_path}"
        )


def path_of(scope: Scope) -> str:
    """Return the path of a request as its client has sent it, whether or not the proxy has removed the root path."""
    root_path, path = str(scope.get("root_path", "")), str(scope["path"])
    return path if path == root_path or path.startswith(f"{root_path}/") else root_path + path


class RootPath:
    """Serves an app below a root path, which a proxy may have removed from the paths of requests, or not."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the app with the whole path."""
        if scope["type"] == "http":
            whole = path_of({**scope, "root_path": self._root_path})
            is_removed = whole != scope["path"]
            raw = (self._root_path.encode() if is_removed else b"") + scope.get("raw_path", b"")
            scope = {**scope, "root_path": self._root_path, "path": whole, "raw_path": raw}
        await self._app(scope, receive, send)
