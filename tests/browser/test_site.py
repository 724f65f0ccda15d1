"""The documentation in a real browser: the site, below a sub-path, and the page of the guide about progress."""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.support import Tabs
from tests.services import Daemon, eventually, free_port, start_redis
from tests.tiers import deep
from website.__main__ import build
from website.blocks import read
from website.navigation import DOCS, ROOT


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


@deep
def test_the_site_is_read_without_another_host(browser: Browser, address: str) -> None:
    """A reader finds a page by a word, copies code and changes the colours, also on a phone, without another host."""
    page = browser.new_page(permissions=["clipboard-read", "clipboard-write"])
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
    page.wait_for_url(f"{address}reference/settings.html**")
    page.goto(f"{address}start/first-job.html")
    page.locator(".language-console", has_text="Hello, Ada").get_by_role("button").click()
    page.wait_for_function("async () => await navigator.clipboard.readText() == 'python first.py'")
    assert requests
    assert [url for url in requests if not url.startswith(address)] == []
    assert faults == []
    page.set_viewport_size({"width": 360, "height": 740})
    for place in ("index", "concepts/lifecycle", "reference/settings", "guides/api", "project/comparison"):
        page.goto(f"{address}{place}.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, place
    page.close()


# --- the guide about progress ---------------------------------------------------------------------------------------


PAGE = read("progress.md", (DOCS / "guides" / "progress.md").read_text(encoding="utf-8"))
ADVANCED = "document.querySelector('progress').value > 0.3 && document.querySelector('output').textContent == 'running'"


def block(language: str) -> str:
    (found,) = [block.code for block in PAGE.blocks if block.language == language]
    return found


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    redis, port = start_redis(tmp_path), free_port()
    for name, text in PAGE.files(only_run=True).items():
        (tmp_path / f"{name}.py").write_text(re.sub(r"redis://localhost:6379/\d", redis.url, text))
    (tmp_path / "page.html").write_text(block("html"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(tmp_path)]))
    commands = (["celery", "-A", "shop", "worker", "-c", "1"], ["uvicorn", "web:web", "--port", str(port)])
    log = tmp_path / "log"
    daemons = [Daemon([sys.executable, "-m", *command], log=log, cwd=tmp_path) for command in commands]
    eventually(lambda: "Uvicorn running" in log.read_text())
    yield f"http://127.0.0.1:{port}/"
    for daemon in daemons:
        daemon.end(signal.SIGTERM)
    redis.stop()


def test_the_bar_follows_the_job(tabs: Tabs, url: str) -> None:
    """The bar moves while the job runs, also after a reload; the result comes at the end, by `fetch` as well."""
    page = tabs.open(url)
    page.get_by_role("button").dblclick()
    page.wait_for_function(ADVANCED)
    page.reload()
    page.wait_for_function(ADVANCED)
    expect(page.locator("output")).to_have_text("report.docx.pdf has 25 pages")
    assert page.locator("progress").evaluate("bar => bar.value") == 1
    page.add_script_tag(content=block("js").replace("function follow", "function read"))
    job = page.evaluate("new Promise(show => read(`/v1/jobs/${location.hash.slice(1)}/events`, 'no-key', show))")
    assert (job["state"], job["duplicate_count"]) == ("completed", 1)
    tabs.close()
