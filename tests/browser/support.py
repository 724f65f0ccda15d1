"""What the tests in a real browser share: dashboards, the demo, and pages whose console messages are recorded."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlencode

from axe_playwright_python.sync_playwright import Axe
from fastapi import FastAPI
from playwright.sync_api import BrowserContext, Page, Request, Response, expect
from starlette.types import ASGIApp

from onejob.api.api_keys import KeyFile, Role
from onejob.demo import TASK
from onejob.demo.scenario import LIVE
from onejob.demo.supervisor import Stack
from onejob.pages.access import User
from onejob.pages.app import dashboard
from tests.api.serving import serving
from tests.pages.sample import Sample, fill, open_sample
from tests.services import eventually
from tests.stores.support import StoreAddress

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
    "schedules": "/schedules",
    "pauses": "/blocks",
    "limits": "/limits",
    "limited job": "/jobs/{limited}",
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


def check_accessibility(page: Page, *rules: str, within: str | None = None) -> None:
    """Check that axe-core finds nothing, with all rules or only these, in the page or an element of it."""
    only = {"runOnly": rules} if rules else {}
    found = Axe().run(page, within, {"resultTypes": ["violations"], **only})  # to list the rest takes half of the time
    assert found.violations_count == 0, found.generate_report()


REPORT_VIOLATIONS = """addEventListener("securitypolicyviolation", (event) =>
  console.error(`content security policy: ${event.violatedDirective} ${event.blockedURI}`))"""
LEFT = "net::ERR_ABORTED"
"""How a request fails whose page has been left."""


class Tabs:
    """Opens pages, and records console messages, errors and failed requests."""

    def __init__(self, context: BrowserContext, expected: list[str]) -> None:
        self._shared = context
        self._expected = expected
        self._pages: list[Page] = []
        self._messages: list[str] = []

    def open(self, url: str = "about:blank", **options: Any) -> Page:
        """Open a page; with options it is in a context of its own."""
        browser = self._shared.browser
        page = browser.new_page(**options) if browser is not None and options else self._shared.new_page()
        page.add_init_script(REPORT_VIOLATIONS)
        self._pages.append(page)
        page.on("console", lambda message: self._messages.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self._messages.append(f"error: {error}"))
        page.on("requestfailed", self._record_failure)
        page.on("response", self._record_refusal)
        page.goto(url)
        return page

    def complaints(self) -> list[str]:
        return [each for each in self._messages if not any(re.search(pattern, each) for pattern in self._expected)]

    def close(self) -> None:
        """Close all pages, and forget their cookies."""
        while self._pages:
            self._pages.pop().close()  # with the context that is its own
        self._shared.clear_cookies()

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


PATIENCE = 45.0


class Provider:
    """The paid provider of the demo, whose duration the test controls."""

    def __init__(self, bill: Path) -> None:
        self._bill = bill
        self._hold: sqlite3.Connection | None = None

    def hold(self) -> None:
        """Hold all calls from now on until they are released."""
        self._hold = self._opened()
        self._hold.execute("begin immediate")

    def release(self) -> None:
        if self._hold is not None:
            self._hold.close()
            self._hold = None

    def let_through(self, calls: int) -> None:
        """Release some calls, or a few more, and hold the others."""
        wanted = self._paid() + calls
        self.release()
        eventually(lambda: self._paid() >= wanted, PATIENCE)
        self.hold()

    def _paid(self) -> int:
        with closing(self._opened()) as bill:
            return int(bill.execute("select count(*) from calls").fetchone()[0])

    def _opened(self) -> sqlite3.Connection:
        return sqlite3.connect(self._bill, timeout=PATIENCE, isolation_level=None)


class Demo:
    """The demo, with operations for tests."""

    def __init__(self, stack: Stack, documents: Path) -> None:
        self.stack = stack
        self.documents = documents
        self.api = stack.start()
        self.provider = Provider(stack.folder / "bill.db")

    def jobs(self, project: str) -> list[dict[str, Any]]:
        validated = self.api.post("jobs", {"task": TASK, "kwargs": {"project": project}, "validate_only": True})
        found: list[dict[str, Any]] = self.api.get(f"jobs?include=result&identity={validated['identity']}")["jobs"]
        return found

    def occupy(self, project: str) -> None:
        """Occupy every worker with a job that waits for the provider."""
        jobs = [self.api.submit(f"{project}-{number}")["job"]["id"] for number in (1, 2)]
        eventually(lambda: all(self.api.job(job)["state"] == "running" for job in jobs), PATIENCE)

    def rest(self) -> None:
        self.provider.release()
        eventually(lambda: not self._live(), PATIENCE)

    def _live(self) -> list[str]:
        return [job["id"] for job in self.api.get("jobs")["jobs"] if job["state"] in LIVE]
