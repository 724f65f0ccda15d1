"""The security headers of every page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.api.problems import add_security_headers

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""The content security policy: nothing is loaded from elsewhere, and no script or style is inline."""
OWN_HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
"""The referrer stays, since a form whose referrer is suppressed has no `Origin` that could be checked."""


class PageHeaders:
    """Adds the headers that a response does not set itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the app, and add the headers to its response."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                own = [header for header in OWN_HEADERS if header[0] not in given]
                message["headers"] = add_security_headers([*message["headers"], *own])
            await send(message)

        await self._app(scope, receive, send_with_headers)
