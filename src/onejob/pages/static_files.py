"""The static files of the dashboard, with a version in their URLs, so that browsers may cache them for ever."""

from __future__ import annotations

import hashlib
import mimetypes
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.staticfiles import StaticFiles

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Scope

CACHED = "public, max-age=31536000, immutable"
mimetypes.add_type("text/javascript", ".js")  # as Python has it from 3.12 on, whatever the system says


@cache
def static_version() -> str:
    """Return a digest of all static files, which is a part of their URLs."""
    contents = sorted((each.name, each.read_bytes()) for each in (files("onejob.pages") / "static").iterdir())
    return hashlib.sha256(b"".join(content for _, content in contents)).hexdigest()[:12]


class VersionedFiles(StaticFiles):
    """The files below `/static/{version}`. One of another version, as during a rolling deployment, is not cached."""

    def __init__(self) -> None:
        super().__init__(packages=[("onejob.pages", "static")])

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Respond with a file. Raises `HTTPException`."""
        response = await super().get_response(path, scope)
        if scope["path_params"]["version"] == static_version():
            response.headers["cache-control"] = CACHED
        return response
