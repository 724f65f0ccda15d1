"""An open page of the dashboard shows what changes, and leaves alone what its reader does meanwhile."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from onejob.jobs.lifecycle import State
from tests.browser.dashboards import serving_dashboard
from tests.browser.tabs import marked
from tests.cases import for_each

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route

    from tests.browser.dashboards import Dashboard
    from tests.browser.tabs import Tabs
    from tests.pages.sample import Sample

LOST = re.compile(r"^Not connected, as of \d+ s ago$")
AGE = re.compile(r"^Updated \d+ s ago$")
COUNT_STREAMS = """(() => {
  window.streams = [];
  window.EventSource = class extends EventSource { constructor(url) { super(url); streams.push(this); } };
})()"""
"""Makes a page keep its event streams, so that a test can look at them."""
OPEN = "count => streams.length === count && streams.at(-1).readyState === EventSource.OPEN"
CLOSED = "streams.every(each => each.readyState === EventSource.CLOSED)"
HIDE = """isHidden => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
"""Does what a browser does when another tab is chosen, and when this one is again."""


def row(page: Page, job_id: str) -> Locator:
    """Return the row of a job."""
    return page.locator(f'[id="row-{job_id}"]')


def submit(served: Dashboard, project: str) -> str:
    """Submit a job and return its id."""
    return served.sample.submit("shop.study_plan", "ann@example.org", project=project).job.id


def test_a_submitted_job_appears(tabs: Tabs, served: Dashboard) -> None:
    """An open list shows a job that is submitted, and each of its states, without being loaded again."""
    page = tabs.open(served.url("/jobs"))
    expect(page.locator("#updated")).to_have_text(AGE)
    is_same = marked(page)
    job_id = submit(served, "live")
    expect(row(page, job_id)).to_contain_text('project="live"')
    run = served.sample.start(served.sample.ledger.get(job_id))
    served.sample.meter.write()
    expect(row(page, job_id)).to_contain_text("running")
    served.sample.ledger.complete(run, "true")
    served.sample.meter.write()
    expect(row(page, job_id)).to_contain_text("completed")
    assert is_same()


def test_the_overview_counts_a_submitted_job(tabs: Tabs, served: Dashboard) -> None:
    """The open overview counts a job that is submitted."""
    page = tabs.open(served.url())
    queued = page.locator(".state.queued strong")
    before = served.sample.ledger.count_states(limit=100)[State.QUEUED]
    expect(queued).to_have_text(str(before))
    submit(served, "live")
    expect(queued).to_have_text(str(before + 1))


def test_the_page_of_a_job_shows_its_changes(tabs: Tabs, served: Dashboard) -> None:
    """The open page of a job shows its progress and its end, without being loaded again."""
    page = tabs.open(served.job_url("running"))
    headline = page.locator(".headline")
    expect(headline).to_contain_text("7 of 12: write cards")
    is_same = marked(page)
    run = served.sample.ledger.get(served.sample.named["running"])
    served.sample.ledger.report(run, '{"done": 9, "total": 12, "stage": "check"}')
    expect(headline).to_contain_text("9 of 12: check")
    served.sample.ledger.complete(run, '{"cards": 36}')
    expect(headline).to_contain_text("completed")
    expect(page.get_by_role("region", name="Result")).to_contain_text('"cards": 36')
    assert is_same()


@for_each("name, path, locator", [("job", "/jobs/{running}", ".headline"), ("list", "/jobs", "[id='row-{running}']")])
def test_a_change_while_a_page_opens_is_shown(
    tabs: Tabs, served: Dashboard, name: str, path: str, locator: str
) -> None:
    """What changes after a page was built and before its stream is open is shown, too."""
    run = served.sample.start(served.sample.submit("shop.study_plan", project=name).job)
    page = tabs.open()

    def complete_first(route: Route) -> None:
        served.sample.ledger.complete(run, "true")
        route.continue_()

    page.route("**/live*", complete_first, times=1)
    page.goto(served.url(path.format(running=run.id)))
    expect(page.locator(locator.format(running=run.id))).to_contain_text("completed")


def test_an_update_keeps_the_focus(tabs: Tabs, served: Dashboard) -> None:
    """An update leaves the current row, the focus and what is typed into the search as they are."""
    page = tabs.open(served.url("/jobs"))
    current = row(page, served.sample.named["running"])
    page.keyboard.press("j")
    while current.get_attribute("class") != "current":
        page.keyboard.press("j")
    expect(row(page, submit(served, "first"))).to_be_visible()
    expect(current).to_be_focused()
    expect(page.locator("[data-row].current")).to_have_count(1)
    page.locator("#find").fill("half a word")
    expect(row(page, submit(served, "second"))).to_be_visible()
    expect(page.locator("#find")).to_be_focused()
    expect(page.locator("#find")).to_have_value("half a word")


def test_a_selection_suspends_updates(tabs: Tabs, served: Dashboard) -> None:
    """While rows are selected their list stays as it is; afterwards it shows what has happened."""
    page, other = tabs.open(served.url("/jobs")), tabs.open(served.url("/jobs"))
    box = row(page, served.sample.named["queued"]).get_by_role("checkbox")
    box.check()
    expect(page.get_by_text("1 selected")).to_be_visible()
    first = submit(served, "first")
    expect(row(other, first)).to_be_visible()
    second = submit(served, "second")
    expect(row(other, second)).to_be_visible()
    expect(row(page, first)).to_have_count(0)
    expect(box).to_be_checked()
    box.uncheck()
    expect(row(page, second)).to_be_visible()
    expect(page.get_by_text("1 selected")).to_be_hidden()


def test_a_hidden_tab_has_no_stream(tabs: Tabs, served: Dashboard) -> None:
    """A hidden tab closes its stream; when it is shown again it opens another, and shows what has happened."""
    page = tabs.open()
    page.add_init_script(COUNT_STREAMS)
    page.goto(served.url("/jobs"))
    page.wait_for_function(OPEN, arg=1)
    page.evaluate(HIDE, True)
    page.wait_for_function(CLOSED)
    job_id = submit(served, "unseen")
    expect(row(page, job_id)).to_have_count(0)
    page.evaluate(HIDE, False)
    page.wait_for_function(OPEN, arg=2)
    expect(row(page, job_id)).to_be_visible()


def test_an_error_of_a_proxy_replaces_no_page(tabs: Tabs, served: Dashboard, expected: list[str]) -> None:
    """A response that is no page of the dashboard leaves the open page, which says that it is not connected."""
    expected.append("status of 502|/jobs 502")
    page = tabs.open(served.url("/jobs"))
    expect(page.locator("#updated")).to_have_text(AGE)
    page.route("**/jobs", lambda route: route.fulfill(status=502, body="<html><p>Bad gateway</p></html>"))
    job_id = submit(served, "live")
    expect(page.locator("#updated")).to_have_text(LOST)
    expect(row(page, served.sample.named["queued"])).to_be_visible()
    page.unroute("**/jobs")
    expect(row(page, job_id)).to_be_visible()
    expect(page.locator("#updated")).to_have_text(AGE)


def test_a_lost_server_is_reported(tabs: Tabs, sample: Sample, expected: list[str]) -> None:
    """A page whose server is gone says so, with the age of what it shows."""
    expected.append("net::ERR_|htmx:error: Failed to fetch")
    with serving_dashboard(sample) as served:
        page = tabs.open(served.url("/jobs"))
        expect(page.locator("#updated")).to_have_text(AGE)
    expect(page.locator("#updated")).to_have_text(LOST)
    seen = page.evaluate("updatedAt")
    page.evaluate(HIDE, True)
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/jobs")):
        page.evaluate(HIDE, False)
    expect(page.locator("#updated")).to_have_text(LOST)
    assert page.evaluate("updatedAt") == seen
