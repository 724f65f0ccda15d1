"""The documentation site in a real browser, below a sub-path."""

from __future__ import annotations

import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from website.__main__ import build

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser


class Files(SimpleHTTPRequestHandler):
    """Serve files without a log."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name is the library's)
        """Write nothing."""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Return the address of the site, which is not the root of its host."""
    assert build(tmp_path) == []
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=tmp_path))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/site/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_site_is_read_without_another_host(browser: Browser, address: str) -> None:
    """A reader finds a page by a word, copies code and changes the colours, also on a phone, without another host."""
    page = browser.new_page()
    requests: list[str] = []
    faults: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(f"{address}guides/duplicates.html")
    expect(page.locator(".md-clipboard, [data-clipboard-target], button[title*='opy']").first).to_be_attached()
    scheme = page.evaluate("document.body.dataset.mdColorScheme")
    page.locator(".md-header__option label:visible").first.click()
    page.locator(".md-header__option label:visible").first.click()
    expect(page.locator(f"body[data-md-color-scheme='{scheme}']")).to_have_count(0)
    page.keyboard.press("Control+k")
    page.keyboard.type("tombstone")
    page.locator("dialog a[href*='settings.html']").first.click()
    page.wait_for_url(f"{address}settings.html**")
    assert requests
    assert [url for url in requests if not url.startswith(address)] == []
    assert faults == []
    page.set_viewport_size({"width": 360, "height": 740})
    for place in ("index", "lifecycle", "settings", "guides/api", "measurements"):
        page.goto(f"{address}{place}.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, place
    page.close()
