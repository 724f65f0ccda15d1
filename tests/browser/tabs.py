"""Pages in a real browser, which records whatever it complains about."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, BrowserContext, Page, Request, Response

REPORT_VIOLATIONS = """addEventListener("securitypolicyviolation", (event) =>
  console.error(`content security policy: ${event.violatedDirective} ${event.blockedURI}`))"""
LEFT = "net::ERR_ABORTED"
"""How a request fails whose page has been left."""


class Tabs:
    """Opens pages, each in a context of its own, and records console messages, errors and failed requests."""

    def __init__(self, browser: Browser, expected: list[str]) -> None:
        self._browser = browser
        self._expected = expected
        self._contexts: list[BrowserContext] = []
        self._messages: list[str] = []

    def open(self, url: str = "about:blank", **options: Any) -> Page:
        """Open a page in a new context with these options."""
        self._contexts.append(self._browser.new_context(**options))
        self._contexts[-1].add_init_script(REPORT_VIOLATIONS)
        page = self._contexts[-1].new_page()
        page.on("console", lambda message: self._messages.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self._messages.append(f"error: {error}"))
        page.on("requestfailed", self._record_failure)
        page.on("response", self._record_refusal)
        page.goto(url)
        return page

    def complaints(self) -> list[str]:
        """Return what was recorded and not expected."""
        return [each for each in self._messages if not any(re.search(pattern, each) for pattern in self._expected)]

    def close(self) -> None:
        """Close all pages."""
        while self._contexts:
            self._contexts.pop().close()

    def _record_failure(self, request: Request) -> None:
        if request.failure != LEFT:
            self._messages.append(f"failed: {request.url} {request.failure}")

    def _record_refusal(self, response: Response) -> None:
        if response.status >= 400:
            self._messages.append(f"refused: {response.url} {response.status}")


def marked(page: Page) -> Callable[[], bool]:
    """Mark a page; the returned function tells whether the page has not been loaded again."""
    page.evaluate("window.marked = true")
    return lambda: page.evaluate("window.marked === true")
