"""The cookies of the dashboard: scripts and other sites cannot read or send them, other paths do not get them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


def set_cookie(response: Response, request: Request, name: str, value: str, *, seconds: int | None = None) -> None:
    """Set a cookie, for some seconds or until the browser is closed."""
    response.set_cookie(
        name, value, max_age=seconds, path=_path_of(request), secure=request.url.scheme == "https", httponly=True,
        samesite="strict",
    )  # fmt: skip


def delete_cookie(response: Response, request: Request, name: str) -> None:
    """Delete a cookie."""
    response.delete_cookie(name, path=_path_of(request))


def _path_of(request: Request) -> str:
    """Return the path below which browsers send the cookies of this dashboard."""
    return request.scope.get("root_path", "") or "/"
