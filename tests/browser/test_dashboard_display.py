"""The theme is remembered, and times are those of the reader."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from playwright.sync_api import expect

from tests.cases import for_each

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.dashboards import Dashboard
    from tests.browser.tabs import Tabs

DARK, LIGHT = "rgb(18, 21, 26)", "rgb(247, 247, 245)"


def expect_colour(page: Page, colour: str) -> None:
    """Wait until the page has this background."""
    expect(page.locator("body")).to_have_css("background-color", colour)


@for_each("system, first, second", [("light", LIGHT, DARK), ("dark", DARK, LIGHT)])
def test_the_theme_is_remembered(tabs: Tabs, served: Dashboard, system: str, first: str, second: str) -> None:
    """The theme is the system's until it is switched, and is remembered then, on all pages."""
    page = tabs.open(served.url(), color_scheme=system)
    expect_colour(page, first)
    page.get_by_role("button", name="Switch between light and dark").click()
    expect_colour(page, second)
    page.reload()
    expect_colour(page, second)
    page.goto(served.url("/audit"))
    expect_colour(page, second)
    page.get_by_role("button", name="Switch between light and dark").click()
    expect_colour(page, first)


@for_each("zone", ["Asia/Tokyo", "America/St_Johns"])
def test_times_are_those_of_the_reader(tabs: Tabs, served: Dashboard, zone: str) -> None:
    """A time is shown as an age, with the exact time in the reader's zone when it is pointed at, on the first page."""
    job = served.sample.ledger.get(served.sample.named["completed"])
    at = datetime.fromtimestamp(job.created_at, ZoneInfo(zone))
    exact = f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} {at:%Z}"
    page = tabs.open(served.url("/jobs?argument=order_id=4711&state=completed"), timezone_id=zone)
    expect(page.locator("[data-row] time")).to_have_attribute("title", exact)
    expect(page.locator("[data-row] time")).to_have_text(re.compile(r"^\d+ min ago$"))
    page.goto(served.job_url("completed"))
    expect(page.get_by_role("region", name="What happened")).to_contain_text(f"{at:%Y-%m-%d %H:%M:%S %Z}")


def test_every_time_is_exact_when_pointed_at(tabs: Tabs, served: Dashboard) -> None:
    """No time is shown without the exact one as its title."""
    page = tabs.open(timezone_id="Asia/Tokyo")
    for path in ("/", "/jobs", "/dead", "/workers", *(f"/jobs/{job_id}" for job_id in served.sample.named.values())):
        page.goto(served.url(path))
        expect(page.locator("time").first).to_be_attached()
        assert page.locator("time:not([title$=' JST'])").count() == 0, path
