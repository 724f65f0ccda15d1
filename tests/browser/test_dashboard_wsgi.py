"""The dashboard behind a WSGI server, in a real browser: what streams elsewhere is asked for there."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from playwright.sync_api import expect
from werkzeug.middleware.dispatcher import DispatcherMiddleware

import onejob
from tests.browser.dashboards import OPERATOR, PREFIX, Dashboard
from tests.pages.wsgi_server import serving_wsgi

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.browser.tabs import Tabs
    from tests.pages.sample import Sample

AGE = re.compile(r"^Updated \d+ s ago$")
LOST = re.compile(r"^Not connected, as of \d+ s ago$")
LABELS = """() => {
  window.labels = new Set();
  const label = document.querySelector("#updated");
  new MutationObserver(() => labels.add(label.textContent.split(" ")[0])).observe(label, { childList: true });
}"""
"""Notes the first word of each text that the label about the connection has."""


@contextmanager
def served_by_wsgi(sample: Sample) -> Iterator[Dashboard]:
    """Serve the dashboard below a prefix of a WSGI application."""
    pages = onejob.wsgi_dashboard(sample.app, authorize=lambda _request: OPERATOR)
    with serving_wsgi(DispatcherMiddleware(lambda environ, start: [], {PREFIX: pages})) as url:
        yield Dashboard(sample, url, PREFIX)


def test_open_pages_show_changes_without_a_stream(tabs: Tabs, sample: Sample) -> None:
    """A list and a page of a job behind a WSGI server show what changes, and say that they are up to date."""
    with served_by_wsgi(sample) as served:
        page, job_page = tabs.open(served.url("/jobs")), tabs.open(served.job_url("running"))
        expect(page.locator("#updated")).to_have_text(AGE)
        page.evaluate(LABELS)
        job_id = sample.submit("shop.study_plan", "ann@example.org", project="polled").job.id
        expect(page.locator(f'[id="row-{job_id}"]')).to_contain_text('project="polled"')
        run = sample.ledger.get(sample.named["running"])
        sample.ledger.complete(run, '{"cards": 36}')
        expect(job_page.locator(".headline")).to_contain_text("completed")
        page.wait_for_event("response", lambda response: response.url.endswith("/live"))
        assert page.evaluate("[...labels]") == ["Updated"]
        tabs.close()


def test_an_operation_works_behind_wsgi(tabs: Tabs, sample: Sample) -> None:
    """A form of a page behind a WSGI server is accepted, and the page that follows shows its notice."""
    with served_by_wsgi(sample) as served:
        page = tabs.open(served.job_url("queued"))
        page.get_by_role("button", name="Cancel", exact=True).click()
        expect(page.get_by_role("status").filter(has_text="canceled now")).to_be_visible()
        assert sample.ledger.get(sample.named["queued"]).state == "canceled"
        tabs.close()


def test_a_lost_wsgi_server_is_reported(tabs: Tabs, sample: Sample, expected: list[str]) -> None:
    """A page whose WSGI server is gone says so."""
    expected.append("net::ERR_|htmx:error: Failed to fetch")
    with served_by_wsgi(sample) as served:
        page = tabs.open(served.url("/jobs"))
        expect(page.locator("#updated")).to_have_text(AGE)
    expect(page.locator("#updated")).to_have_text(LOST)
