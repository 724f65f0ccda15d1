"""People at the dashboard: what they do with scripts, by keys, without scripts, and what others cannot do for them."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Page, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from onejob.jobs.lifecycle import State
from tests.api.serving import serving
from tests.browser.support import PREFIX, Dashboard, Tabs, check_without_scripts, serving_dashboard, serving_login
from tests.pages.sample import Sample
from tests.tiers import deep

BIG = ".big"
PAGES = {"d": "/duplicates", "l": "/dead", "t": "/tasks", "w": "/workers", "s": "/schedules", "j": "/jobs", "o": "/"}
"""The pages by their keys."""
DARK, LIGHT = "rgb(18, 21, 26)", "rgb(247, 247, 245)"


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=re.compile(f"^{name}")).first.click()


def states(sample: Sample, job_ids: list[str]) -> set[State]:
    return {sample.ledger.get(job_id).state for job_id in job_ids}


def queue(sample: Sample, jobs: int) -> list[str]:
    numbers = range(1000, 1000 + jobs)
    return [sample.submit("shop.index_document", "batch", document=number, text="").job.id for number in numbers]


@deep
def test_all_that_match_are_canceled(tabs: Tabs, served: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that match are canceled after a preview, portion by portion, which a script continues."""
    monkeypatch.setattr("onejob.pages.actions.PORTION", 10)
    waiting = queue(served.sample, 23)
    page = tabs.open(served.url("/jobs?task=shop.index_document&submitter=batch&limit=20"))
    expect(page.locator("[data-row]")).to_have_count(20)
    page.get_by_label("Apply to").select_option("all that match")
    press(page, "Cancel…")
    expect(page.locator(BIG)).to_contain_text("23 jobs will be canceled.")
    press(page, "Cancel 23")
    expect(page.locator(BIG)).to_have_text("23 canceled.")
    assert states(served.sample, waiting) == {State.CANCELED}
    assert states(served.sample, [served.sample.named["queued"]]) == {State.QUEUED}


# --- keys -------------------------------------------------------------------------------------------------------------


def current(page: Page) -> int:
    """Return the number of the current row, -1 without one."""
    number: int = page.evaluate(
        "[...document.querySelectorAll('[data-row]')].findIndex(each => each.matches('.current:focus'))"
    )
    return number


def test_rows_are_walked_selected_and_opened(tabs: Tabs, served: Dashboard) -> None:
    """The keys j and k move among the rows, x selects one for the buttons, and Enter opens it."""
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
    job_id = str(rows.nth(1).get_attribute("id")).removeprefix("row-")
    page.keyboard.press("Enter")
    expect(page).to_have_url(served.url(f"/jobs/{job_id}"))
    page.goto(served.url("/jobs?state=failed"))
    page.keyboard.press("j")
    page.keyboard.press("x")
    press(page, "Delete…")
    expect(page.locator(BIG)).to_contain_text("1 job will be deleted.")


@deep
def test_keys_open_pages_and_the_search(tabs: Tabs, served: Dashboard) -> None:
    """The key g and an initial open a page, ? lists the keys, / leads to the search, and Escape leaves each."""
    page = tabs.open(served.url())
    for key, path in PAGES.items():
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page).to_have_url(served.url(path))
        page.wait_for_load_state()  # which its scripts precede: before, a key does nothing
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard")
    expect(dialog).to_contain_text("next and previous row")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.keyboard.press("/")
    expect(page.locator("#find")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#find")).not_to_be_focused()
    page.evaluate("""document.querySelector("#keys dl").dispatchEvent(
        new KeyboardEvent("keydown", {key: "/", bubbles: true})
    )""")  # the focus leaves a closed dialog with the next picture only: a key until then is one of the page
    expect(page.locator("#find")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("project=crashed")
    page.keyboard.press("Enter")
    expect(page.get_by_role("textbox", name="Argument")).to_have_value("project=crashed")
    page.locator("[data-row] a.id").click()
    expect(page).to_have_url(served.job_url("crashed"))


@deep
def test_the_palette_is_used_by_keys(tabs: Tabs, served: Dashboard) -> None:
    """Ctrl-K opens the commands, typing filters them, the arrows choose one, Enter goes there, Escape closes them."""
    page = tabs.open(served.url("/jobs"))
    page.keyboard.press("Control+k")
    palette = page.get_by_role("dialog", name="Commands")
    expect(palette).to_be_visible()
    page.keyboard.press("Escape")
    expect(palette).to_be_hidden()
    page.keyboard.press("j")
    assert current(page) == 0
    page.keyboard.press("Control+k")
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
    page.route("**/palette*", lambda _route: None)  # the names of the tasks do not arrive
    page.keyboard.press("Control+k")
    page.keyboard.type("dead letters")
    page.keyboard.press("Enter")
    expect(page).to_have_url(served.url("/dead"))


# --- the browser ------------------------------------------------------------------------------------------------------


@deep
def test_the_theme_and_the_zone_are_those_of_the_reader(tabs: Tabs, served: Dashboard) -> None:
    """The theme is the system's until it is switched, and remembered then; a time is an age, and exact in the zone."""
    page = tabs.open(served.url(), color_scheme="dark", timezone_id="America/St_Johns")
    for background in (DARK, LIGHT, DARK):
        expect(page.locator("body")).to_have_css("background-color", background)
        page.goto(served.url("/workers"))
        expect(page.locator("body")).to_have_css("background-color", background)
        page.get_by_role("button", name="Switch between light and dark").click()
    page.context.clear_cookies()
    page.evaluate("localStorage.clear()")
    page.emulate_media(color_scheme="light")
    page.reload()
    expect(page.locator("body")).to_have_css("background-color", LIGHT)
    job = served.sample.ledger.get(served.sample.named["completed"])
    at = datetime.fromtimestamp(job.created_at, ZoneInfo("America/St_Johns"))
    exact = f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} {at:%Z}"
    page.context.clear_cookies()
    page.goto(served.url("/jobs?argument=order_id=4711&state=completed"))
    expect(page.locator("[data-row] time")).to_have_attribute("title", exact)
    expect(page.locator("[data-row] time")).to_have_text(re.compile(r"^\d+ min ago$"))
    page.goto(served.job_url("completed"))
    expect(page.get_by_role("region", name="What happened")).to_contain_text(f"{at:%Y-%m-%d %H:%M:%S %Z}")


@deep
def test_code_is_copied_where_the_browser_can(tabs: Tabs, served: Dashboard) -> None:
    """A button copies the call of a job as Python; a browser without a clipboard, as over HTTP, shows no button."""
    page = tabs.open(served.job_url("completed"), permissions=["clipboard-read", "clipboard-write"])
    press(page, "Copy as Python")
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == page.locator("#as-python").text_content()
    page.add_init_script("delete Navigator.prototype.clipboard")
    page.reload()
    expect(page.get_by_role("button", name="Switch between light and dark")).to_be_visible()
    expect(page.get_by_role("button", name="Copy as Python")).to_be_hidden()


@deep
def test_a_person_works_without_scripts(
    tabs: Tabs, served: Dashboard, tmp_path: Path, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without scripts people read pages, log in, filter and page by forms and links, continue portions, and log out."""
    expected.append("401")
    monkeypatch.setattr("onejob.pages.actions.PORTION", 2)
    jobs = queue(served.sample, 5)
    with serving_login(served.sample, tmp_path) as (login, key):
        page = tabs.open(login.url("/jobs"), java_script_enabled=False)
        for text, shown in (("wrong", "[role=alert]"), (key, "p[role=status]")):
            page.get_by_label("API key").fill(text)
            press(page, "Log in")
            expect(page.locator(shown)).to_be_visible()
        expect(page.locator(".notice")).to_have_text("You are logged in as kim.")
        check_without_scripts(page)
        page.goto(login.url("/jobs?limit=20"))
        check_without_scripts(page)
        first = page.locator("[data-row] a.id").first.get_attribute("href")
        page.get_by_role("link", name="Older jobs").click()
        expect(page.locator("[data-row] a.id").first).not_to_have_attribute("href", str(first))
        page.get_by_role("link", name="Newest").click()
        page.get_by_role("combobox", name="Task", exact=True).fill("shop.index_document")
        press(page, "Filter")
        page.get_by_role("navigation", name="States").get_by_role("link", name="queued").click()
        expect(page.locator("[data-row]")).to_have_count(6)
        page.goto(login.url("/jobs?submitter=batch"))
        page.get_by_label("Apply to").select_option("all that match")
        press(page, "Cancel…")
        press(page, "Cancel 5")
        for sofar in (2, 4):
            expect(page.locator(BIG)).to_have_text(f"{sofar} canceled so far.")
            press(page, "Continue")
        expect(page.locator(BIG)).to_have_text("5 canceled.")
        assert states(served.sample, jobs) == {State.CANCELED}
        press(page, "Log out")
        expect(page.get_by_label("API key")).to_be_visible()


# --- other sites ------------------------------------------------------------------------------------------------------

FIELDS = {"operation": "cancel", "scope": "matching", "filter": "", "csrf_token": "z"}


def trap(target: str) -> Starlette:
    """Return a page that plants cookies of the dashboard, and at once sends a form to `target`."""
    inputs = "".join(f'<input name="{name}" value="{value}">' for name, value in FIELDS.items())
    form = f'<form method="post" action="{target}">{inputs}</form><script>document.forms[0].submit()</script>'

    def page(_request: Request) -> HTMLResponse:
        response = HTMLResponse(form)
        for name, value in {"onejob_csrf": "z", "onejob_zone": "Nowhere"}.items():
            response.set_cookie(name, value, path=PREFIX)
        return response

    return Starlette(routes=[Route("/", page)])


def posts_of(page: Page) -> list[str]:
    """Return a list to which the URLs of the forms are added that a page sends from now on."""
    posts: list[str] = []
    page.on("request", lambda request: posts.append(request.url) if request.method == "POST" else None)
    return posts


def test_a_form_is_sent_once_and_by_this_site(served: Dashboard, tabs: Tabs, expected: list[str]) -> None:
    """A form that a page of another port sends is refused, and no script sends a form again, whatever answers it."""
    expected += ["403"]
    page = tabs.open(timezone_id="Asia/Tokyo")
    posts = posts_of(page)
    with serving(trap(served.url("/bulk/run"))) as other:
        page.goto(other.url)
        expect(page.get_by_role("alert")).to_be_visible()
        page.wait_for_load_state("networkidle")
    assert states(served.sample, [served.sample.named["queued"]]) == {State.QUEUED}
    assert page.locator("script").count() == 0
    assert posts == [served.url("/bulk/run")]
    page.goto(served.job_url("failed"))
    page.context.clear_cookies(name="onejob_zone")
    press(page, "Delete")
    expect(page.locator("main h1")).to_have_text("Delete?")
    page.wait_for_load_state("networkidle")
    assert posts[1:] == [served.url("/bulk/preview")]
    page.goto(served.job_url("running"))
    assert "JST" in str(page.locator("time").first.get_attribute("title"))


def test_no_path_leads_to_another_site(sample: Sample, tabs: Tabs, expected: list[str]) -> None:
    """A page whose path looks like another host stays here, also when it is loaded again in the reader's zone."""
    expected.append("404")
    with serving_dashboard(sample) as served:
        page = tabs.open(timezone_id="Asia/Tokyo")
        page.goto(served.url("//example.org/"))
        page.wait_for_load_state("networkidle")
        assert page.url == served.url("//example.org/")
        assert [each["value"] for each in page.context.cookies() if each["name"] == "onejob_zone"] == ["Asia%2FTokyo"]
