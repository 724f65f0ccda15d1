"""Every page of the dashboard in a real browser: quiet, accessible, and with hostile texts in it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from onejob.api.api_keys import Role
from onejob.jobs.limits import KEY_LENGTH
from onejob.pages.access import User
from tests.browser.hostile import PARTS, WHOLE, attack
from tests.browser.support import (
    LOGIN,
    PATHS,
    PREFIX,
    check_accessibility,
    check_without_scripts,
    open_named,
    serving_dashboard,
    serving_login,
)
from tests.limited import crowd
from tests.tiers import deep

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from playwright.sync_api import Page, ViewportSize

    from tests.browser.hostile import Attack
    from tests.browser.support import Dashboard, Tabs
    from tests.pages.sample import Sample

    Mounted = Callable[[str], Dashboard]

PHONE: ViewportSize = {"width": 390, "height": 844}
WINDOW: ViewportSize = {"width": 1280, "height": 720}
WITNESSES = ("jobs", "failed job", "duplicates with a check", LOGIN)
"""The pages that the quick test looks at; the others are as good, and take as long."""
FIGURES = """panel => [...document.querySelector(panel).parentElement.querySelectorAll(".figure")].map(
  each => Object.values(each.querySelector("dd").getBoundingClientRect().toJSON()).slice(0, 2).map(Math.round))"""
"""Where the values of the figures of a panel are: their left and their top."""
LONG = "unbreakable" * 20
NOT_FOUND = r"status of 404|/jobs/unknown 404"


@pytest.fixture
def mounted(sample: Sample, tmp_path: Path, tabs: Tabs, expected: list[str]) -> Iterator[Mounted]:
    """Return where the pages of a sample are, in which there are names of any length."""
    expected.append(NOT_FOUND)
    attack(sample, LONG)
    sample.named["limited"] = crowd(sample.ledger, f"customer={LONG}"[:KEY_LENGTH])[-1]
    with serving_dashboard(sample, PREFIX) as pages, serving_login(sample, tmp_path, PREFIX) as (login, _):
        yield lambda name: login if name == LOGIN else pages
        tabs.close()


def check_fit(page: Page) -> None:
    width = page.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1], page.url


@deep
def test_figures_stand_in_rows(tabs: Tabs, mounted: Mounted) -> None:
    """The figures of a row begin at the same height, also where only some of them have a note below."""
    page = tabs.open()
    page.set_viewport_size(WINDOW)
    open_named(page, mounted("overview"), "overview")
    for panel in ("#submitted", "#ran"):
        places = page.evaluate(FIGURES, panel)
        columns, tops = len({left for left, _ in places}), {top for _, top in places}
        assert (len(places), len(tops)) == (4, -(-4 // columns)), places


@deep
def test_a_long_name_leaves_room_for_the_other_columns(tabs: Tabs, mounted: Mounted) -> None:
    """The name of a task takes at most a third of a window in a table, however long it is; a day stands in one line."""
    page = tabs.open()
    page.set_viewport_size(WINDOW)
    for name in ("jobs", "tasks"):
        open_named(page, mounted(name), name)
        widths = page.locator("td.task").evaluate_all("cells => cells.map(cell => cell.offsetWidth)")
        assert 0 < max(widths) <= WINDOW["width"] / 3, name
    page.set_viewport_size(PHONE)
    open_named(page, mounted("duplicates by identity"), "duplicates by identity")
    check_fit(page)
    heights = page.locator("#days ~ * td").evaluate_all("cells => cells.map(cell => cell.offsetHeight)")
    assert len(set(heights)) == 1
    assert max(heights) < 40


@pytest.mark.parametrize(
    "names", [WITNESSES, pytest.param([*PATHS], marks=[deep, pytest.mark.timeout(600)])], ids=["witnesses", "all"]
)
def test_every_page_is_quiet_and_accessible(tabs: Tabs, mounted: Mounted, names: Collection[str]) -> None:
    """Each page and dialog opens without a message, fits a phone, has exact times, and axe-core finds nothing in it."""
    page = tabs.open(timezone_id="Asia/Tokyo")
    for name in names:
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(WINDOW)
        open_named(page, mounted(name), name)
        expect(page.locator("time:not([title$=' JST'])")).to_have_count(0)
        check_fit(page)
        check_accessibility(page)
        page.emulate_media(color_scheme="dark")
        check_accessibility(page, "color-contrast")
        page.set_viewport_size(PHONE)
        check_fit(page)
    page.set_viewport_size(WINDOW)
    open_named(page, mounted("tasks"), "tasks")
    for keys in ("Control+k", "?"):
        page.keyboard.press(keys)
        page.get_by_role("dialog").wait_for()
        check_accessibility(page, within="dialog[open]")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)  # while it is open, it takes every key


@deep
def test_every_page_reads_without_scripts(tabs: Tabs, mounted: Mounted) -> None:
    """Without scripts every page is readable, and shows nothing that would need one."""
    page = tabs.open(java_script_enabled=False)
    for name in PATHS:
        open_named(page, mounted(name), name)
        check_without_scripts(page)


# --- hostile texts ----------------------------------------------------------------------------------------------------

WATCH = "window.alerts = 0; window.alert = () => { alerts += 1; };"
INJECTED = """() => alerts + document.querySelectorAll(`script:not([src]), img, iframe, b, i, u, [onerror], [onload],
  [onfocus], [onmouseover], p[hx-get], p[data-opens], a[href^="javascript:" i], a[href*="//%2e" i]`).length"""
"""How often a script has run, and how many elements there are that only the texts name."""


def check_shown(page: Page, *texts: str) -> None:
    """Check that a page has these texts, as texts, and that nothing was injected."""
    content = str(page.locator("body").text_content())
    assert [text for text in texts if text not in content] == []
    assert page.evaluate(INJECTED) == 0


def check_jobs(page: Page, shown: Dashboard, attacked: Attack) -> None:
    """Check the pages of jobs: ids, values, errors, and the names of who submitted and ran them."""
    own = {
        "completed": [attacked.quoted], "running": [attacked.quoted, attacked.value],
        "failed": [attacked.value, attacked.quoted], "canceled": [attacked.value],
    }  # fmt: skip
    for state, job_id in attacked.jobs.items():
        page.goto(shown.url(f"/jobs/{quote(job_id, safe='')}"))
        check_shown(page, job_id, attacked.name, *own[state])
        expect(page.locator(".headline > .badge")).to_contain_text(state)


def check_what_is_typed(page: Page, shown: Dashboard, attacked: Attack) -> None:
    """Check the search, the check of duplicates and the palette, which show what is typed, as it is typed."""
    page.goto(shown.url())
    page.get_by_role("searchbox").fill(attacked.name)
    page.keyboard.press("Enter")
    expect(page.get_by_role("textbox", name="Argument")).to_have_value(attacked.name)
    assert page.evaluate(INJECTED) == 0
    page.goto(shown.url("/duplicates"))
    page.get_by_label("Task", exact=True).fill(attacked.name)
    page.get_by_label("Arguments (JSON").fill(attacked.name)
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("alert")).to_contain_text("not valid JSON")
    expect(page.get_by_label("Arguments (JSON")).to_have_value(attacked.name)
    assert page.evaluate(INJECTED) == 0
    page.keyboard.press("Control+k")
    page.keyboard.insert_text(attacked.name)
    options = page.get_by_role("dialog", name="Commands").get_by_role("option")
    expect(options).to_have_count(3)
    assert options.first.text_content() == f"Jobs of {attacked.name}"
    assert attacked.name in str(options.last.text_content())
    assert page.evaluate(INJECTED) == 0
    page.keyboard.press("Enter")
    expect(page.get_by_label("Task", exact=True)).to_have_value(attacked.name)


def check_what_arrives(page: Page, shown: Dashboard, attacked: Attack) -> None:
    """Check an error, the notice of an action, and what an update brings into an open page."""
    page.goto(shown.url(f"/jobs/{quote('no ' + attacked.name, safe='')}"))
    check_shown(page, attacked.name)
    page.context.add_cookies([{"name": "onejob_notice", "value": quote(attacked.name), "url": shown.origin}])
    page.goto(shown.url("/jobs"))
    expect(page.locator(".notice")).to_be_visible()
    check_shown(page, attacked.name)
    job = shown.sample.submit(attacked.name, attacked.name, text=f"new {attacked.value}").job
    expect(page.locator(f'[id="row-{job.id}"]')).to_be_visible()
    check_shown(page, attacked.name)


"""The checks of a page with values, and of all that a script writes: the templates of the other pages escape alike."""


@pytest.mark.parametrize("text", [
    pytest.param(WHOLE, id="whole"),
    *(pytest.param(text, id=part, marks=deep) for part, text in PARTS.items()),
])  # fmt: skip
def test_a_hostile_text_is_text(tabs: Tabs, sample: Sample, expected: list[str], text: str) -> None:
    """A text that is written wherever one can be is shown as it is, executed by no page, and sent back unchanged."""
    expected.append("404|422")
    attacked = attack(sample, text)
    with serving_dashboard(sample, authorize=lambda _request: User(attacked.name, Role.EDIT)) as shown:
        page = tabs.open()
        page.add_init_script(WATCH)
        for check in (check_jobs, check_what_is_typed, check_what_arrives):
            check(page, shown, attacked)
        tabs.close()
