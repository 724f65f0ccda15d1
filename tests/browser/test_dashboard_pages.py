"""The pages of the dashboard open quietly, fit, and are accessible: on every store, wherever it is mounted."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.browser.dashboards import (
    LOGIN,
    PATHS,
    PREFIX,
    UNKNOWN,
    open_named,
    sample_on,
    serving_dashboard,
    serving_login,
)
from tests.browser.hostile import attack
from tests.contract.support import StoreAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.browser.dashboards import Dashboard
    from tests.browser.tabs import Tabs
    from tests.pages.sample import Sample

    Mounted = Callable[[str, str], Dashboard]

LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True},
}
WITNESSES = ("overview", "jobs", "failed job", "duplicates with a check", "login")
"""The pages that the quick tests look at; the others are as good, and take as long."""
CASES = [name if name in WITNESSES else pytest.param(name, marks=pytest.mark.deep) for name in PATHS]
NOT_FOUND = r"status of 404|/jobs/unknown 404"


def mount(sample: Sample, folder: Path, stack: ExitStack) -> Mounted:
    """Serve a sample at the root and below a prefix; the returned function tells where a page is."""
    pages = {prefix: stack.enter_context(serving_dashboard(sample, prefix)) for prefix in ("", PREFIX)}
    login, _ = stack.enter_context(serving_login(sample, folder, PREFIX))
    return lambda name, prefix: login if name == LOGIN else pages[prefix]


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """Return where the pages of a sample are, which the tests only look at."""
    folder = tmp_path_factory.mktemp("sample")
    with ExitStack() as stack:
        sample = stack.enter_context(sample_on(StoreAddress(f"sqlite:///{folder / 'ledger.db'}", "unused")))
        yield mount(sample, folder, stack)


def check_fit(page: Page) -> None:
    """Check that a page is not wider than the window."""
    width = page.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1], page.url


def check_accessibility(page: Page, *rules: str) -> None:
    """Check that axe-core finds nothing, with all rules or only these."""
    found = Axe().run(page, options={"runOnly": rules} if rules else {})
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("name", CASES)
def test_every_page_opens_quietly(tabs: Tabs, mounted: Mounted, expected: list[str], name: str) -> None:
    """Every page opens, at the root and below a prefix, without a message of the browser, and fits a phone."""
    if name == UNKNOWN:
        expected.append(NOT_FOUND)
    for look, prefix in (("dark", ""), ("light", PREFIX), ("phone", PREFIX)):
        page = tabs.open(**LOOKS[look])
        open_named(page, mounted(name, prefix), name)
        check_fit(page)


def test_long_names_fit_a_phone(tabs: Tabs, served: Dashboard) -> None:
    """No page is wider than a phone, however long the names and values are that it shows."""
    long = attack(served.sample, "unbreakable" * 20)
    page = tabs.open(**LOOKS["phone"])
    paths = [
        "/", "/jobs?limit=20", "/duplicates", "/duplicates?by=submitter", "/duplicates?by=identity", "/dead", "/tasks",
        "/workers", "/audit", "/palette", *(f"/jobs/{quote(job_id, safe='')}" for job_id in long.jobs.values()),
        f"/edit/{quote(long.jobs['failed'], safe='')}", f"/jobs?task={long.name}&submitter={long.name}",
    ]  # fmt: skip
    for path in paths:
        page.goto(served.url(path))
        expect(page.locator("main")).to_contain_text("unbreakable")
        check_fit(page)
    page.goto(served.url("/dead"))
    page.locator("[data-row]", has_text=long.name).get_by_role("button", name="Drop").click()
    expect(page.locator(".big")).to_contain_text("1 job will be deleted")
    check_fit(page)


@pytest.mark.deep
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("prefix", ["", pytest.param(PREFIX, id="prefix")])
def test_every_page_opens_on_every_store(
    tabs: Tabs, fresh_address: StoreAddress, tmp_path: Path, expected: list[str], look: str, prefix: str
) -> None:
    """Every page opens on every store without a message of the browser."""
    expected.append(NOT_FOUND)
    page = tabs.open(**LOOKS[look])
    with sample_on(fresh_address) as sample, ExitStack() as stack:
        mounted = mount(sample, tmp_path, stack)
        for name in PATHS:
            open_named(page, mounted(name, prefix), name)
            check_fit(page)
        tabs.close()


@pytest.mark.parametrize("name", CASES)
def test_every_page_is_accessible(tabs: Tabs, mounted: Mounted, expected: list[str], name: str) -> None:
    """axe-core finds nothing on any page, light or dark."""
    if name == UNKNOWN:
        expected.append(NOT_FOUND)
    page = tabs.open()
    open_named(page, mounted(name, PREFIX), name)
    check_accessibility(page)
    page.emulate_media(color_scheme="dark")
    check_accessibility(page, "color-contrast")


@pytest.mark.parametrize("name", ["commands", "keyboard"])
def test_every_dialog_is_accessible(tabs: Tabs, mounted: Mounted, name: str) -> None:
    """axe-core finds nothing in an open dialog."""
    page = tabs.open(mounted("jobs", PREFIX).url("/jobs"))
    page.keyboard.press("Control+k" if name == "commands" else "?")
    page.get_by_role("dialog").wait_for()
    check_accessibility(page)
