"""The cookies of the dashboard: scripts and other sites cannot read or send them, other paths do not get them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.api.problems import Problem

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

FORWARDED_HTTPS = "proto=https"


def read_cookies(request: Request, name: str) -> list[str]:
    """Return the values of all cookies of this name, as they were sent: several paths and domains may have one each."""
    parts = (part.strip() for value in request.headers.getlist("cookie") for part in value.split(";"))
    return [part.removeprefix(f"{name}=") for part in parts if part.startswith(f"{name}=")]


def read_cookie(request: Request, name: str) -> str:
    """Return the value of a cookie, "" without one. Raises `Problem` if there are different ones of this name."""
    values = set(read_cookies(request, name))
    if len(values) > 1:
        detail = f"the browser has several cookies {name}: delete the cookies of this host and of the domains above it"
        raise Problem("bad-request", detail)
    return next(iter(values), "")


def set_cookie(response: Response, request: Request, name: str, value: str, *, seconds: int | None = None) -> None:
    """Set a cookie, for some seconds or until the browser is closed."""
    response.set_cookie(
        name, value, max_age=seconds, path=_path_of(request), secure=_is_secure(request), httponly=True,
        samesite="strict",
    )  # fmt: skip


def delete_cookie(response: Response, request: Request, name: str) -> None:
    """Delete a cookie."""
    response.delete_cookie(name, path=_path_of(request))


def _is_secure(request: Request) -> bool:
    """Return whether the browser uses HTTPS, also if only a proxy says so: a false header affects its own client."""
    forwarded = request.headers.get("forwarded", "").lower().replace('"', "")
    return (
        request.url.scheme == "https"
        or request.headers.get("x-forwarded-proto", "").lower().startswith("https")
        or FORWARDED_HTTPS in forwarded
    )


def _path_of(request: Request) -> str:
    """Return the path below which browsers send the cookies of this dashboard."""
    return request.scope.get("root_path", "") or "/"
