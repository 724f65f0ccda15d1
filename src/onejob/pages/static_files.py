"""The static files of the dashboard, with a version in their URLs, so that browsers may cache them for ever."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.responses import Response

from onejob.api.problems import Problem

if TYPE_CHECKING:
    from starlette.requests import Request

TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
"""The media types by suffix: a file of another kind is not served."""
CACHED = {"cache-control": "public, max-age=31536000, immutable"}


@cache
def _contents() -> dict[str, bytes]:
    folder = files("onejob.pages") / "static"
    names = sorted(each.name for each in folder.iterdir() if each.name.rpartition(".")[2] in TYPES)
    return {name: (folder / name).read_bytes() for name in names}


@cache
def static_version() -> str:
    """Return a digest of all static files, which is a part of their URLs."""
    return hashlib.sha256(b"".join(_contents().values())).hexdigest()[:12]


def serve_static(request: Request) -> Response:
    """Respond with a static file. One of another version, as during a rolling deployment, is not cached."""
    name = request.path_params["name"]
    content = _contents().get(name)
    if content is None:
        raise Problem("not-found", "no such file")
    headers = CACHED if request.path_params["version"] == static_version() else {}
    return Response(content, headers=headers, media_type=TYPES[name.rpartition(".")[2]])
