"""Open pages of the dashboard follow what happens, disturb nobody, and say when they do not know."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from playwright.sync_api import Locator, Page, Route, expect
from werkzeug.middleware.dispatcher import DispatcherMiddleware

import onejob
from onejob.jobs.lifecycle import State
from onejob.jobs.model import JobRow
from tests.api.serving import serving_wsgi
from tests.browser.support import OPERATOR, PREFIX, Dashboard, Tabs, marked, serving_dashboard
from tests.pages.sample import Sample
from tests.tiers import deep

LOST = re.compile(r"^Not connected, as of \d+ s ago$")
AGE = re.compile(r"^Updated \d+ s ago$")
COUNT_STREAMS = """(() => {
  window.streams = [];
  window.EventSource = class extends EventSource { constructor(url) { super(url); streams.push(this); } };
})()"""
"""Makes a page keep its event streams, so that a test can look at them."""
OPEN = "count => streams.length === count && streams.at(-1).readyState === EventSource.OPEN"
CLOSED = "streams.every(each => each.readyState === EventSource.CLOSED)"
SWITCH = """{
  const isHidden = !document.hidden;
  Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
"""Does what a browser does when another tab is chosen, and when this one is again."""
LABELS = """() => {
  window.labels = new Set();
  const label = document.querySelector("#updated");
  new MutationObserver(() => labels.add(label.textContent.split(" ")[0])).observe(label, { childList: true });
}"""
"""Notes the first word of each text that the label about the connection has."""


def row(page: Page, job_id: str) -> Locator:
    return page.locator(f'[id="row-{job_id}"]')


def submit(served: Dashboard, project: str) -> str:
    return served.sample.submit("shop.study_plan", "ann@example.org", project=project).job.id


def test_open_pages_follow_a_job(tabs: Tabs, served: Dashboard) -> None:
    """The list, the overview and the page of a job show its submission, progress and end without being loaded again."""
    before = served.sample.ledger.count_states(limit=100)[State.QUEUED]
    overview, jobs = tabs.open(served.url()), tabs.open(served.url("/jobs"))
    queued = overview.locator(".state.queued strong")
    expect(queued).to_have_text(str(before))
    expect(jobs.locator("#updated")).to_have_text(AGE)
    job_id = submit(served, "live")
    expect(queued).to_have_text(str(before + 1))
    expect(row(jobs, job_id)).to_contain_text('project="live"')
    job_page = tabs.open(served.url(f"/jobs/{job_id}"))
    are_same = [marked(page) for page in (overview, jobs, job_page)]
    headline, run = job_page.locator(".headline"), served.sample.start(served.sample.ledger.get(job_id))
    served.sample.ledger.report(run, '{"done": 9, "total": 12, "stage": "check"}')
    served.sample.meter.write()
    expect(row(jobs, job_id)).to_contain_text("running")
    expect(headline).to_contain_text("9 of 12: check")
    served.sample.ledger.complete(run, '{"cards": 36}')
    served.sample.meter.write()
    expect(row(jobs, job_id)).to_contain_text("completed")
    expect(headline).to_contain_text("completed")
    expect(job_page.get_by_role("region", name="Result")).to_contain_text('"cards": 36')
    assert all(is_same() for is_same in are_same)


@deep
def test_a_wrong_clock_of_the_viewer_changes_no_age(tabs: Tabs, served: Dashboard) -> None:
    """A browser whose clock is an hour ahead shows how long a lease lasts, and when a run began; after updates, too."""
    run = served.sample.start(served.sample.ledger.get(submit(served, "on time")))
    page = tabs.open(locale="en")
    page.clock.install(time=datetime.now(UTC) + timedelta(hours=1))
    page.goto(served.url(f"/jobs/{run.id}"))
    for done in (0, 7):
        expect(page.locator(".lease time")).to_have_text(re.compile(r"^in \d+ s$"))
        expect(page.locator(".spans time").last).to_have_text(re.compile(r"^(now|\d+ s ago)$"))
        served.sample.ledger.report(run, json.dumps({"done": done, "total": 12}))
        expect(page.locator(".headline")).to_contain_text(f"{done} of 12")


@deep
def test_a_change_while_a_page_opens_is_shown(tabs: Tabs, served: Dashboard) -> None:
    """What changes after a page was built and before its stream is open is shown, too."""
    for path, locator in (("/jobs/{}", ".headline"), ("/jobs", "[id='row-{}']")):
        run = served.sample.start(served.sample.ledger.get(submit(served, path)))
        page = tabs.open()
        page.route("**/live*", partial(complete_first, served.sample, run), times=1)
        page.goto(served.url(path.format(run.id)))
        expect(page.locator(locator.format(run.id))).to_contain_text("completed")


def complete_first(sample: Sample, run: JobRow, route: Route) -> None:
    sample.ledger.complete(run, "true")
    route.continue_()


@deep
def test_an_update_disturbs_nobody(tabs: Tabs, served: Dashboard) -> None:
    """An update leaves the row of the moment and what is typed, and is suspended while rows are selected."""
    page, other, held = tabs.open(served.url("/jobs")), tabs.open(served.url("/jobs")), list[Any]()
    page.route("**/jobs", lambda route: held.append(route), times=1)  # noqa: PLW0108 - it marks the handler
    with page.expect_request("**/jobs"):
        first = submit(served, "first")
    current = row(page, served.sample.named["running"])
    page.keyboard.press("j")
    while current.get_attribute("class") != "current":
        page.keyboard.press("j")
    held[0].continue_()
    expect(row(page, first)).to_be_visible()
    expect(current).to_be_focused()
    expect(page.locator("[data-row].current")).to_have_count(1)
    page.locator("#find").fill("half a word")
    expect(row(page, submit(served, "second"))).to_be_visible()
    expect(page.locator("#find")).to_be_focused()
    expect(page.locator("#find")).to_have_value("half a word")
    box = row(page, served.sample.named["queued"]).get_by_role("checkbox")
    box.check()
    expect(page.get_by_text("1 selected")).to_be_visible()
    third = submit(served, "third")
    expect(row(other, third)).to_be_visible()
    fourth = submit(served, "fourth")
    expect(row(other, fourth)).to_be_visible()
    expect(row(page, third)).to_have_count(0)
    expect(box).to_be_checked()
    box.uncheck()
    expect(row(page, fourth)).to_be_visible()
    expect(page.get_by_text("1 selected")).to_be_hidden()


@deep
def test_a_hidden_tab_has_no_stream(tabs: Tabs, served: Dashboard) -> None:
    """A hidden tab closes its stream; when it is shown again it opens another, and shows what has happened."""
    page = tabs.open()
    page.add_init_script(COUNT_STREAMS)
    page.goto(served.url("/jobs"))
    page.wait_for_function(OPEN, arg=1)
    page.evaluate(SWITCH)
    page.wait_for_function(CLOSED)
    job_id = submit(served, "unseen")
    expect(row(page, job_id)).to_have_count(0)
    page.evaluate(SWITCH)
    page.wait_for_function(OPEN, arg=2)
    expect(row(page, job_id)).to_be_visible()


@deep
def test_a_page_goes_on_after_its_stream_was_refused(tabs: Tabs, served: Dashboard, expected: list[str]) -> None:
    """A stream that a proxy refuses with an error, as during a deployment, is opened again, and shows what happens."""
    expected.append("status of 502|/live 502")
    page = tabs.open()
    page.route("**/live*", lambda route: route.fulfill(status=502, body="Bad gateway"), times=1)
    page.goto(served.url("/jobs"))
    expect(page.locator("#updated")).to_have_text(LOST)
    expect(row(page, submit(served, "after the error"))).to_be_visible()
    expect(page.locator("#updated")).to_have_text(AGE)


@deep
def test_an_open_page_says_that_it_is_not_connected(tabs: Tabs, sample: Sample, expected: list[str]) -> None:
    """An error of a proxy replaces no page; it, and a server that is gone, are said with the age of what is shown."""
    expected.append("status of 502|/jobs 502|net::ERR_|htmx:error: Failed to fetch")
    with serving_dashboard(sample) as served:
        page = tabs.open(served.url("/jobs"))
        expect(page.locator("#updated")).to_have_text(AGE)
        page.route("**/jobs", lambda route: route.fulfill(status=502, body="<html><p>Bad gateway</p></html>"))
        job_id = submit(served, "live")
        expect(page.locator("#updated")).to_have_text(LOST)
        expect(row(page, sample.named["queued"])).to_be_visible()
        page.unroute("**/jobs")
        expect(row(page, job_id)).to_be_visible()
        expect(page.locator("#updated")).to_have_text(AGE)
    expect(page.locator("#updated")).to_have_text(LOST)
    seen = page.evaluate("updatedAt")
    page.evaluate(SWITCH)
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/jobs")):
        page.evaluate(SWITCH)
    expect(page.locator("#updated")).to_have_text(LOST)
    assert page.evaluate("updatedAt") == seen


@contextmanager
def served_by_wsgi(sample: Sample) -> Iterator[Dashboard]:
    pages = onejob.wsgi_dashboard(sample.app, authorize=lambda _request: OPERATOR)
    with serving_wsgi(DispatcherMiddleware(lambda environ, start: [], {PREFIX: pages})) as url:
        yield Dashboard(sample, url, PREFIX)


@deep
def test_open_pages_follow_behind_wsgi(tabs: Tabs, sample: Sample, expected: list[str]) -> None:
    """Without a stream a list and a page of a job show what changes, and say whether the server answers."""
    expected.append("net::ERR_|htmx:error: Failed to fetch")
    with served_by_wsgi(sample) as served:
        page, job_page = tabs.open(served.url("/jobs")), tabs.open(served.job_url("running"))
        expect(page.locator("#updated")).to_have_text(AGE)
        page.evaluate(LABELS)
        expect(row(page, submit(served, "polled"))).to_contain_text('project="polled"')
        sample.ledger.complete(sample.ledger.get(sample.named["running"]), '{"cards": 36}')
        expect(job_page.locator(".headline")).to_contain_text("completed")
        job_page.goto(served.job_url("queued"))
        job_page.get_by_role("button", name="Cancel", exact=True).click()
        expect(job_page.get_by_role("status").filter(has_text="canceled now")).to_be_visible()
        page.wait_for_event("response", lambda response: response.url.endswith("/live"))
        assert page.evaluate("[...labels]") == ["Updated"]
        job_page.close()
    expect(page.locator("#updated")).to_have_text(LOST)
