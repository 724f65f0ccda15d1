"""The dashboard is used with a keyboard alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.dashboards import Dashboard
    from tests.browser.tabs import Tabs


def current(page: Page) -> int:
    """Return the number of the current row, -1 without one."""
    number: int = page.evaluate(
        "[...document.querySelectorAll('[data-row]')].findIndex(each => each.matches('.current:focus'))"
    )
    return number


def test_slash_focuses_the_search(tabs: Tabs, served: Dashboard) -> None:
    """A slash moves the focus to the search, which finds a job by its id; Escape leaves the search."""
    page = tabs.open(served.url("/tasks"))
    page.keyboard.press("/")
    expect(page.locator("#find")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#find")).not_to_be_focused()
    page.keyboard.press("/")
    page.keyboard.type(served.sample.named["crashed"])
    page.keyboard.press("Enter")
    expect(page).to_have_url(served.job_url("crashed"))


def test_the_search_finds_arguments(tabs: Tabs, served: Dashboard) -> None:
    """What is no id is searched for among the arguments."""
    page = tabs.open(served.url("/tasks"))
    page.keyboard.press("/")
    page.keyboard.type("project=crashed")
    page.keyboard.press("Enter")
    expect(page.locator("[data-row]")).to_have_count(1)
    expect(page.get_by_role("textbox", name="Argument")).to_have_value("project=crashed")


def test_rows_are_walked_selected_and_opened(tabs: Tabs, served: Dashboard) -> None:
    """The keys j and k move among the rows, x selects one, and Enter opens it."""
    page = tabs.open(served.url("/jobs"))
    rows, seen = page.locator("[data-row]"), []
    for key in "jjjkx":
        page.keyboard.press(key)
        seen.append(current(page))
    assert seen == [0, 1, 2, 1, 1]
    expect(rows.nth(1).get_by_role("checkbox")).to_be_checked()
    expect(page.get_by_text("1 selected")).to_be_visible()
    page.keyboard.press("x")
    expect(rows.nth(1).get_by_role("checkbox")).not_to_be_checked()
    job = str(rows.nth(1).get_attribute("id")).removeprefix("row-")
    page.keyboard.press("Enter")
    expect(page).to_have_url(served.url(f"/jobs/{job}"))


def test_question_mark_lists_the_keys(tabs: Tabs, served: Dashboard) -> None:
    """A question mark opens the list of keys, and Escape closes it."""
    page = tabs.open(served.url())
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard")
    expect(dialog).to_contain_text("next and previous row")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_two_keys_open_a_page(tabs: Tabs, served: Dashboard) -> None:
    """The key g and the initial of a page open it."""
    page = tabs.open(served.url())
    for key, path in (("d", "/duplicates"), ("l", "/dead"), ("t", "/tasks"), ("w", "/workers"), ("j", "/jobs")):
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page).to_have_url(served.url(path))
    page.keyboard.press("g")
    page.keyboard.press("o")
    expect(page).to_have_url(served.url("/"))


def test_the_palette_goes_to_a_page(tabs: Tabs, served: Dashboard) -> None:
    """Ctrl-K opens the commands, typing filters them, the arrows choose one, and Enter goes there."""
    page = tabs.open(served.url())
    page.keyboard.press("Control+k")
    palette = page.get_by_role("dialog", name="Commands")
    expect(palette.get_by_role("combobox")).to_be_focused()
    page.keyboard.type("invoice")
    options = palette.get_by_role("option")
    expect(options).to_have_text(
        ["Jobs of shop.send_invoice", "Dead letters of shop.send_invoice", re.compile("Find .invoice. in")]
    )
    expect(options.first).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowDown")
    expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    expect(palette.get_by_role("combobox")).to_have_attribute("aria-activedescendant", "command-1")
    page.keyboard.press("Enter")
    expect(page).to_have_url(served.url("/dead?task=shop.send_invoice"))


def test_escape_closes_the_palette(tabs: Tabs, served: Dashboard) -> None:
    """Escape closes the commands, and the keys of the page work again."""
    page = tabs.open(served.url("/jobs"))
    page.keyboard.press("Control+k")
    palette = page.get_by_role("dialog", name="Commands")
    expect(palette).to_be_visible()
    page.keyboard.press("Escape")
    expect(palette).to_be_hidden()
    page.keyboard.press("j")
    assert current(page) == 0
