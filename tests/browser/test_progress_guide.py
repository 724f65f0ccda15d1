"""The page of docs/guides/progress.md, in a real browser beside a real worker."""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.services import Daemon, eventually, free_port, start_redis
from website.blocks import read
from website.navigation import DOCS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.browser.tabs import Tabs

PAGE = read("progress.md", (DOCS / "guides" / "progress.md").read_text(encoding="utf-8"))
ADVANCED = "document.querySelector('progress').value > 0.3 && document.querySelector('output').textContent == 'running'"


def block(language: str) -> str:
    """Return the only block of a language."""
    (found,) = [block.code for block in PAGE.blocks if block.language == language]
    return found


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the URL of the guide's program, which runs with its worker."""
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
