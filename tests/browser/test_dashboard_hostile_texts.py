"""Whatever callers, workers and errors write is only ever text on the pages."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import expect

from onejob.api.api_keys import Role
from onejob.pages.access import User
from tests.browser.dashboards import serving_dashboard
from tests.browser.hostile import FORMULA, PARTS, WHOLE, attack
from tests.tiers import deep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from tests.browser.dashboards import Dashboard
    from tests.browser.hostile import Attack
    from tests.browser.tabs import Tabs
    from tests.pages.sample import Sample

WATCH = "window.alerts = 0; window.alert = () => { alerts += 1; };"
INJECTED = """() => alerts + document.querySelectorAll(`script:not([src]), img, iframe, b, i, u, [onerror], [onload],
  [onfocus], [onmouseover], p[hx-get], p[data-opens], a[href^="javascript:" i], a[href*="//%2e" i]`).length"""
"""How often a script has run, and how many elements there are that only the texts name."""
TEXTS = [pytest.param(WHOLE, id="whole"), *(pytest.param(text, id=part, marks=deep) for part, text in PARTS.items())]
FORMULAS = ("=", "+", "-", "@", "\t", "\r")


@pytest.fixture(params=TEXTS)
def attacked(request: pytest.FixtureRequest, sample: Sample) -> Attack:
    """Return what was written into the sample."""
    return attack(sample, request.param)


@pytest.fixture
def shown(tabs: Tabs, sample: Sample, attacked: Attack) -> Iterator[Dashboard]:
    """Return the dashboard, to a user with such a name."""
    user = User(attacked.name, Role.EDIT)
    with serving_dashboard(sample, authorize=lambda _request: user) as served:
        yield served
        tabs.close()


@pytest.fixture
def page(tabs: Tabs) -> Page:
    """Return a page that counts alerts."""
    page = tabs.open()
    page.add_init_script(WATCH)
    return page


def check_shown(page: Page, *texts: str) -> None:
    """Check that a page has these texts, as texts, and that nothing was injected."""
    content = str(page.locator("body").text_content())
    assert [text for text in texts if text not in content] == []
    assert page.evaluate(INJECTED) == 0


def test_lists_show_texts(page: Page, shown: Dashboard, attacked: Attack) -> None:
    """No list executes what it shows."""
    paths = [
        "/", "/jobs?limit=20", f"/jobs?{urlencode({'task': attacked.name, 'worker': attacked.name})}",
        "/duplicates", "/duplicates?by=submitter", "/duplicates?by=identity", "/dead", "/tasks", "/workers", "/audit",
        "/palette", f"/dead?{urlencode({'task': attacked.name})}",
    ]  # fmt: skip
    for path in paths:
        page.goto(shown.url(path))
        check_shown(page, attacked.name)


def test_jobs_show_texts(page: Page, shown: Dashboard, attacked: Attack) -> None:
    """No page of a job executes its id, its values, its error, or the names of who submitted and ran it."""
    own = {
        "completed": [attacked.quoted], "running": [attacked.quoted, attacked.value],
        "failed": [attacked.value, attacked.quoted], "canceled": [attacked.value],
    }  # fmt: skip
    for state, job_id in attacked.jobs.items():
        page.goto(shown.url(f"/jobs/{quote(job_id, safe='')}"))
        check_shown(page, job_id, attacked.name, *own[state])
        expect(page.locator(".headline > .badge")).to_contain_text(state)


def test_forms_show_texts(page: Page, shown: Dashboard, attacked: Attack, expected: list[str]) -> None:
    """A form has hostile values in its fields, and sends them back unchanged."""
    expected.append("422")
    page.goto(shown.url(f"/jobs/{quote(attacked.jobs['failed'], safe='')}"))
    page.get_by_role("link", name="Redrive with other arguments").click()
    assert attacked.quoted in page.get_by_label("Keyword arguments").input_value()
    page.get_by_label("Keyword arguments").fill(attacked.name)
    page.get_by_role("button", name="Submit with these arguments").click()
    expect(page.get_by_role("alert")).to_contain_text("kwargs is not valid JSON")
    assert page.get_by_label("Keyword arguments").input_value() == attacked.name
    check_shown(page, attacked.jobs["failed"][-8:])
    page.goto(shown.url("/dead"))
    page.locator("[data-row]", has_text=attacked.name).get_by_role("button", name="Redrive").first.click()
    expect(page.locator(".big")).to_contain_text("1 job will be redriven")
    check_shown(page, attacked.name)


def test_what_a_person_types_is_text(page: Page, shown: Dashboard, attacked: Attack) -> None:
    """The search, the filters and the check of duplicates show what was typed, as it was typed."""
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


def test_the_palette_shows_texts(page: Page, shown: Dashboard, attacked: Attack) -> None:
    """A command with a hostile name is text, and leads to the jobs of the task."""
    page.goto(shown.url())
    page.keyboard.press("Control+k")
    page.keyboard.insert_text(attacked.name)
    options = page.get_by_role("dialog", name="Commands").get_by_role("option")
    expect(options).to_have_count(3)
    assert options.first.text_content() == f"Jobs of {attacked.name}"
    assert attacked.name in str(options.last.text_content())
    assert page.evaluate(INJECTED) == 0
    page.keyboard.press("Enter")
    expect(page.get_by_label("Task", exact=True)).to_have_value(attacked.name)


def test_errors_and_notices_show_texts(page: Page, shown: Dashboard, attacked: Attack, expected: list[str]) -> None:
    """An error and the notice of an action are texts."""
    expected.append("404")
    page.goto(shown.url(f"/jobs/{quote('no ' + attacked.name, safe='')}"))
    check_shown(page, attacked.name)
    page.context.add_cookies([{"name": "onejob_notice", "value": quote(attacked.name), "url": shown.origin}])
    page.goto(shown.url("/tasks"))
    expect(page.locator(".notice")).to_be_visible()
    check_shown(page, attacked.name)


def test_updates_show_texts(page: Page, shown: Dashboard, attacked: Attack) -> None:
    """What an update brings into an open page is text."""
    page.goto(shown.url("/jobs"))
    job = shown.sample.submit(attacked.name, attacked.name, text=f"new {attacked.value}").job
    expect(page.locator(f'[id="row-{job.id}"]')).to_be_visible()
    check_shown(page, attacked.name)


@pytest.mark.parametrize(
    "path",
    [
        "/jobs",
        *(
            pytest.param(path, marks=pytest.mark.deep)
            for path in ("/duplicates", "/duplicates?by=submitter", "/dead", "/tasks", "/workers", "/audit")
        ),
    ],
)
def test_no_cell_is_a_formula(tabs: Tabs, served: Dashboard, path: str) -> None:
    """No cell of a downloaded list is executed by a spreadsheet, and its text can be read."""
    attacked = attack(served.sample, FORMULA)
    page = tabs.open(served.url(path))
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    text = download.value.path().read_text(encoding="utf-8")
    cells = [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]
    assert [cell for cell in cells if cell.startswith(FORMULAS)] == []
    assert f"'{attacked.name}" in {cell[: len(FORMULA) + 1] for cell in cells}
