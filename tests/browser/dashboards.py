"""Dashboards for tests: a sample ledger behind a real server, at the root or below a prefix, and all pages of it."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from fastapi import FastAPI
from playwright.sync_api import expect

from onejob.api.api_keys import KeyFile, Role
from onejob.pages.access import User
from onejob.pages.app import dashboard
from tests.http.serving import serving
from tests.pages.sample import fill, open_sample

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Page
    from starlette.types import ASGIApp

    from tests.contract.support import StoreAddress
    from tests.pages.sample import Sample

PREFIX = "/admin/onejob"
"""Where an application mounts the dashboard."""
OPERATOR = User("olga@example.org", Role.EDIT)
"""Who uses the dashboard, where the test does not say otherwise."""
STATES = ("queued", "running", "retrying", "completed", "failed", "canceled")
BULK, LOGIN, UNKNOWN = "bulk preview", "login", "error"
CHECK = urlencode({"task": "shop.send_invoice", "arguments": json.dumps({"order_id": 4711})})
PATHS = {
    "overview": "/",
    "overview of a day": "/?window=day",
    "jobs": "/jobs?limit=20",
    "jobs filtered": "/jobs?state=failed&state=completed&since=2d&task=shop.send_invoice&argument=order_id&limit=20",
    "no jobs": "/jobs?task=none",
    **{f"{state} job": f"/jobs/{{{state}}}" for state in STATES},
    "job after a crash": "/jobs/{crashed}",
    **{f"duplicates by {group}": f"/duplicates?by={group}" for group in ("task", "submitter", "identity")},
    "duplicates with a check": f"/duplicates?{CHECK}",
    "dead letters": "/dead",
    "tasks": "/tasks",
    "workers": "/workers",
    "audit log": "/audit",
    "edit form": "/edit/{failed}",
    BULK: "/dead",
    UNKNOWN: "/jobs/unknown",
    LOGIN: "/login",
}
"""The pages by their names, with the ids of the sample's jobs to be filled in."""


NEEDS_SCRIPT = "[data-opens], [data-toggles], [data-copies], [data-selects], #updated"


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard that is served."""

    sample: Sample
    origin: str
    prefix: str = ""

    def url(self, path: str = "/") -> str:
        """Return the URL of a page; `path` may name jobs of the sample in braces."""
        return self.origin + self.prefix + path

    def job_url(self, name: str) -> str:
        """Return the URL of the page of a job of the sample."""
        return self.url(f"/jobs/{self.sample.named[name]}")


@contextmanager
def sample_on(address: StoreAddress, **settings: Any) -> Iterator[Sample]:
    """Open a sample with a little work in it, for the length of a block."""
    sample = open_sample(address, **settings)
    try:
        fill(sample, jobs_per_hour=3)
        sample.named["completed"] = sample.named["double"]
        sample.submit("shop.send_invoice", "web:checkout", order_id=4711)
        yield sample
    finally:
        sample.close()


@contextmanager
def serving_dashboard(sample: Sample, prefix: str = "", **options: Any) -> Iterator[Dashboard]:
    """Serve a dashboard for the length of a block, by default to `OPERATOR`."""
    closing = Event()
    app: ASGIApp = dashboard(sample.app, closing=closing, **(options or {"authorize": lambda _request: OPERATOR}))
    if prefix:
        outer = FastAPI()
        outer.mount(prefix, app)
        app = outer
    with serving(app) as server:
        yield Dashboard(sample, server.url, prefix)
        closing.set()


@contextmanager
def serving_login(sample: Sample, folder: Path, prefix: str = "") -> Iterator[tuple[Dashboard, str]]:
    """Serve a dashboard to which people log in, for the length of a block; the text is an API key of an editor."""
    path = folder / "keys.json"
    text = KeyFile(path).add("kim", Role.EDIT)
    with serving_dashboard(sample, prefix, keys=path) as served:
        yield served, text


def open_named(page: Page, served: Dashboard, name: str) -> None:
    """Open a page by its name in `PATHS`, as a person would."""
    page.goto(served.url(PATHS[name].format(**served.sample.named)))
    if name == BULK:
        page.get_by_role("button", name="Redrive the").first.click()
    expect(page.locator("main h1")).to_be_visible()


def check_without_scripts(page: Page) -> None:
    """Check that a page shows nothing that would need a script, and times that can be read."""
    assert page.locator(NEEDS_SCRIPT).filter(visible=True).count() == 0
    times = page.locator("time").all_text_contents()
    assert [text for text in times if not re.search(r"\d\d:\d\d:\d\d|^in ", text)] == []
