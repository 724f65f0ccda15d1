"""The dashboard works in a browser that runs no scripts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from onejob.jobs.lifecycle import State
from tests.browser.dashboards import LOGIN, PATHS, UNKNOWN, open_named, serving_login
from tests.cases import for_each

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.browser.dashboards import Dashboard
    from tests.browser.tabs import Tabs

NEEDS_SCRIPT = "[data-opens], [data-toggles], [data-copies], [data-selects], #updated"


@pytest.fixture
def page(tabs: Tabs, served: Dashboard) -> Page:
    """Return a page that runs no scripts."""
    return tabs.open(java_script_enabled=False)


@for_each("name", [each for each in PATHS if each != LOGIN])
def test_every_page_reads(page: Page, served: Dashboard, expected: list[str], name: str) -> None:
    """Every page is readable, and shows nothing that would need a script."""
    if name == UNKNOWN:
        expected.append("404")
    open_named(page, served, name)
    assert page.locator(NEEDS_SCRIPT).filter(visible=True).count() == 0
    times = page.locator("time").all_text_contents()
    assert all(re.search(r"\d\d:\d\d:\d\d|^in ", each) for each in times), times


def test_filters_and_links_work(page: Page, served: Dashboard) -> None:
    """A filter is a form, a state, a column and the next page are links, and a job is one click away."""
    page.goto(served.url("/jobs"))
    page.get_by_role("combobox", name="Task", exact=True).fill("shop.study_plan")
    page.get_by_role("button", name="Filter").click()
    page.get_by_text("More filters").click()
    page.locator("select[name=limit]").select_option("20")
    page.get_by_role("button", name="Filter").click()
    expect(page).to_have_url(re.compile("task=shop.study_plan.*limit=20"))
    expect(page.locator("[data-row]")).to_have_count(20)
    first = page.locator("[data-row] a.id").first.get_attribute("href")
    page.get_by_role("link", name="Older jobs").click()
    expect(page.locator("[data-row] a.id").first).not_to_have_attribute("href", str(first))
    page.get_by_role("link", name="Newest").click()
    page.get_by_role("navigation", name="States").get_by_role("link", name="running").click()
    expect(page.locator("[data-row]")).to_have_count(1)
    page.locator("[data-row] a.id").click()
    expect(page).to_have_url(served.job_url("running"))


def test_the_search_works(page: Page, served: Dashboard) -> None:
    """The search finds a job by its id."""
    page.goto(served.url())
    page.get_by_role("searchbox").fill(served.sample.named["double"])
    page.get_by_role("searchbox").press("Enter")
    expect(page).to_have_url(served.job_url("double"))


def test_a_bulk_operation_is_continued(page: Page, served: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each portion of a bulk operation a button continues with the next one."""
    monkeypatch.setattr("onejob.pages.bulk.PORTION", 2)
    jobs = [served.sample.submit("shop.index_document", "batch", document=each, text="").job.id for each in range(5)]
    page.goto(served.url("/jobs?submitter=batch"))
    page.get_by_label("Apply to").select_option("all that match")
    page.get_by_role("button", name="Cancel…").click()
    expect(page.locator(".big")).to_contain_text("5 jobs will be canceled.")
    page.get_by_role("button", name="Cancel 5").click()
    for sofar in (2, 4):
        expect(page.locator(".big")).to_have_text(f"{sofar} canceled so far.")
        page.get_by_role("button", name="Continue").click()
    expect(page.locator(".big")).to_have_text("5 canceled.")
    assert {served.sample.ledger.get(job_id).state for job_id in jobs} == {State.CANCELED}


def test_people_log_in_and_out(tabs: Tabs, served: Dashboard, tmp_path: Path, expected: list[str]) -> None:
    """A wrong API key is refused, a right one logs in, and the button at the top logs out again."""
    expected.append("401")
    with serving_login(served.sample, tmp_path) as (login, key):
        page = tabs.open(login.url("/tasks"), java_script_enabled=False)
        for text, shown in (("wrong", "[role=alert]"), (key, "p[role=status]")):
            page.get_by_label("API key").fill(text)
            page.get_by_role("button", name="Log in").click()
            expect(page.locator(shown)).to_be_visible()
        expect(page.locator(".notice")).to_have_text("You are logged in as kim.")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("API key")).to_be_visible()
