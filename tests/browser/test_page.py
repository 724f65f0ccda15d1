"""The laws of the page, in a real browser over the job API with real workers."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, TypeAlias

import pytest
from playwright.sync_api import expect

from tests.browser.support import PATIENCE, check_accessibility, marked
from tests.services import eventually
from tests.tiers import deep

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Locator, Page, Route

    from tests.browser.support import Demo

    Visit: TypeAlias = Callable[..., Page]

HOSTILE = "<img src=x onerror=alert(1)>"
INSERT = "() => { try { document.body.innerHTML = '<b>x</b>'; return '' } catch (error) { return error.name } }"
SOME_CALLS = re.compile(r"^[1-9]\d* of 12$")
FAILED_LOAD = r"^(error: Failed to load resource: |refused: |failed: ).*"


def generate(page: Page) -> Locator:
    return page.get_by_role("button", name="Generate study plan")


def cancel(page: Page) -> Locator:
    return page.get_by_role("button", name="Cancel")


def begun(page: Page) -> str:
    """Request a plan, wait until its job runs, and return the job's id."""
    generate(page).click()
    expect(page.locator("#state")).to_have_text("running")
    return str(page.locator("#job-id").get_attribute("title"))


def test_two_clicks_are_one_job_that_is_followed_to_its_cards(visit: Visit, demo: Demo, project: str) -> None:
    """Two clicks create one job; a stream moves the bar, the stages and the bill, also after a reload, to its cards."""
    demo.provider.hold()
    page = visit(project)
    with page.expect_request("**/events") as stream:
        generate(page).dblclick()
    note = page.locator("#duplicate")
    expect(note).to_contain_text("already being written: you joined job")
    expect(note).to_contain_text("2 requests, one job")
    expect(page.locator("#duplicates")).to_have_text("1")
    [job] = demo.jobs(project)
    assert job["duplicate_count"] == 1
    assert stream.value.resource_type == "eventsource"
    assert job["id"] in stream.value.url
    expect(page.locator("#calls")).to_have_text("0 of 12")
    expect(page.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "0")
    expect(page.locator("[aria-current=step]")).to_have_text("Embed")
    page.reload()
    expect(page.locator("#state")).to_have_text("running")
    expect(page.locator("#job-id")).to_have_attribute("title", job["id"])
    expect(cancel(page)).to_be_visible()
    same = marked(page)
    demo.provider.let_through(1)
    expect(page.locator("#calls")).to_have_text(SOME_CALLS)
    expect(page.get_by_role("progressbar")).not_to_have_attribute("aria-valuenow", "0")
    demo.provider.release()
    expect(page.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "100")
    expect(page.locator("#stages .done")).to_have_count(6)
    expect(page.locator("#paid")).not_to_have_text("0")
    check_cards(page, demo.jobs(project)[0]["result"]["cards"])
    meter = demo.api.get("meter")
    saved = meter["provider_calls_without"] - meter["provider_calls"]
    expect(page.locator("#saved")).to_have_text(f"{meter['requests']} requests, {saved} calls saved.")
    assert same()


def check_cards(page: Page, given: list[dict[str, str]]) -> None:
    """Check that the cards of a result are shown, and that a click shows the answer of one."""
    cards = page.locator("#cards .card")
    expect(cards).to_have_count(24)
    expect(page.locator("#count")).to_have_text("24 cards")
    first, answer = cards.first, given[0]["answer"]
    expect(first).to_contain_text(given[0]["source"])
    expect(first.locator(".blank").first).to_have_text("____")
    first.click()
    expect(first).to_have_attribute("aria-expanded", "true")
    expect(first.locator(".blank").first).to_have_text(answer)
    expect(page.locator("#live")).to_have_text(f"Answer: {answer}")


@deep
def test_keys_alone_request_and_cancel(visit: Visit, demo: Demo, project: str) -> None:
    """A plan is requested and canceled by keys alone, which is shown until its run has stopped; the next is another."""
    demo.provider.hold()
    page = visit(project)
    page.keyboard.press("Tab")
    expect(generate(page)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#state")).to_have_text("running")
    first = str(page.locator("#job-id").get_attribute("title"))
    page.keyboard.press("Tab")
    expect(cancel(page)).to_be_focused()
    page.keyboard.press("Space")
    expect(page.locator("#reason")).to_contain_text("Asked to stop")
    expect(page.get_by_role("button", name="Canceling…")).to_be_visible()
    assert demo.api.job(first)["cancel_requested"] is True
    demo.provider.release()
    expect(page.locator("#state")).to_have_text("canceled")
    expect(page.locator("#reason")).to_contain_text("Canceled on request. ")
    expect(cancel(page)).to_be_hidden()
    expect(generate(page)).to_be_focused()
    demo.provider.hold()
    assert begun(page) != first
    cancel(page).click()
    expect(page.locator("#reason")).to_contain_text("Asked to stop")
    page.reload()
    expect(page.get_by_role("button", name="Canceling…")).to_be_visible()


@deep
def test_the_page_says_what_copies_wait_for(visit: Visit, demo: Demo, project: str) -> None:
    """Of three copies for one customer two wait for its limit, and the page says so until they have been printed."""
    demo.provider.hold()
    jobs = [demo.api.print_copy(project, number)["job"]["id"] for number in (1, 2, 3)]
    page = visit(project)
    waiting = page.locator("#waiting")
    expect(waiting).to_have_text(f"To print: 2. Each waits for customer={project}.")
    demo.provider.release()
    eventually(lambda: all(demo.api.job(job)["state"] == "completed" for job in jobs), PATIENCE)
    page.reload()
    expect(page.locator("#saved")).to_be_visible()
    expect(waiting).to_be_hidden()


@deep
def test_a_waiting_job_is_canceled_once(visit: Visit, demo: Demo, project: str, expected: list[str]) -> None:
    """A waiting job is canceled at once; if somebody else was quicker, the page shows the message of the API."""
    expected.append(FAILED_LOAD + "409")
    demo.provider.hold()
    demo.occupy(project)
    page = visit(project)

    def be_quicker(route: Route) -> None:
        demo.api.post(f"jobs/{demo.jobs(project)[0]['id']}/cancel", {})
        route.continue_()

    generate(page).click()
    expect(page.locator("#state")).to_have_text("queued")
    cancel(page).click()
    expect(page.locator("#state")).to_have_text("canceled")
    expect(page.locator("#reason")).to_contain_text("No worker had begun, nothing was paid.")
    page.route("**/cancel", be_quicker)
    generate(page).click()
    cancel(page).click()
    expect(page.get_by_role("alert")).to_have_text(re.compile("^Job already ended: job .* is canceled"))
    expect(page.locator("#state")).to_have_text("canceled")


@pytest.mark.timeout(180)
@pytest.mark.deep
def test_the_page_follows_the_job_when_the_worker_is_killed(visit: Visit, demo: Demo, project: str) -> None:
    """The page shows that a worker was killed, and follows the job to its end on the other worker."""
    demo.provider.hold()
    page = visit(project)
    job_id, same = begun(page), marked(page)
    demo.provider.let_through(2)
    expect(page.locator("#calls")).to_have_text(SOME_CALLS)
    worker = demo.api.worker(job_id)
    demo.stack.kill(worker)
    try:
        expect(page.locator("#crash")).to_contain_text("Worker lost")
        expect(page.locator("#attempt")).not_to_have_text("1")
        expect(page.locator("#calls")).to_have_text(SOME_CALLS)
        demo.provider.release()
        expect(page.locator("#state")).to_have_text("completed")
        expect(page.locator("#crash")).to_have_text(re.compile(r"^Worker lost.*, resumed: \d+ paid calls? kept\.$"))
        expect(page.locator("#cards .card")).to_have_count(24)
        assert same()
    finally:
        demo.stack.start_worker(worker)


@pytest.mark.timeout(180)
@pytest.mark.deep
def test_the_page_reports_a_server_that_is_down(visit: Visit, demo: Demo, project: str, expected: list[str]) -> None:
    """While the server hangs or is down the page shows since when; then the stream continues after the last event."""
    expected.append(FAILED_LOAD + "net::ERR_")
    demo.provider.hold()
    page = visit(project)
    begun(page)
    same, server = marked(page), demo.stack.processes["server"]
    server.send_signal(signal.SIGSTOP)
    try:
        expect(page.locator("#lost")).to_contain_text("The server does not answer.")
    finally:
        server.send_signal(signal.SIGCONT)
    expect(page.locator("#lost")).to_be_hidden()
    demo.stack.kill("server")
    try:
        expect(page.locator("#lost")).to_contain_text("The server does not answer. Below is what it said at")
        expect(page.locator("#state")).to_have_text("running")
        # An answered request: of one that cannot connect, the browser does not report all headers.
        with page.expect_response("**/events", timeout=PATIENCE * 1000) as stream:
            demo.stack.start_server()
        assert re.fullmatch("[0-9a-f]{32}", stream.value.request.all_headers()["last-event-id"])
    finally:
        if "server" not in demo.stack.processes:
            demo.stack.start_server()
    expect(page.locator("#lost")).to_be_hidden()
    demo.provider.release()
    expect(page.locator("#state")).to_have_text("completed")
    expect(page.locator("#cards .card")).to_have_count(24)
    assert same()


def test_hostile_names_and_problems_are_text(visit: Visit, demo: Demo, project: str, expected: list[str]) -> None:
    """A project name and a problem with markup are shown as text, and markup that a script inserts is refused."""
    expected += [FAILED_LOAD + "4(00|22)", "TrustedHTML", "require-trusted-types-for"]
    page = visit(HOSTILE)
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE.capitalize())
    expect(page.get_by_role("alert")).to_contain_text("Validation failed: project: String should match pattern")
    generate(page).click()
    expect(page.get_by_role("alert")).to_contain_text("project: String should match")
    expect(page.locator("img")).to_have_count(0)
    page = visit(project)
    body = {"title": HOSTILE, "detail": f"no{HOSTILE}", "status": 400}
    page.route("**/jobs", lambda route: route.fulfill(status=400, json=body, content_type="application/problem+json"))
    generate(page).click()
    expect(page.get_by_role("alert")).to_have_text(f"{HOSTILE}: no{HOSTILE}.")
    expect(page.locator("img")).to_have_count(0)
    with page.expect_console_message(lambda message: "TrustedHTML" in message.text):
        assert page.evaluate(INSERT) == "TypeError"


@deep
def test_a_phone_shows_all_of_it_readably(visit: Visit, demo: Demo, project: str) -> None:
    """On a phone nothing overflows, buttons can be touched, and light or dark, axe-core finds nothing."""
    shades: list[str] = []
    for width, scheme in ((320, "dark"), (390, "light")):
        options = {"viewport": {"width": width, "height": 700}, "is_mobile": True, "has_touch": True}
        page = visit(f"{project}{scheme}".ljust(64, "W"), color_scheme=scheme, **options)
        generate(page).tap()
        generate(page).tap()
        expect(page.locator("#cards .card")).to_have_count(24)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        heights = [button.bounding_box() for button in page.get_by_role("button").all()]
        assert min(box["height"] for box in heights if box) >= 44
        check_accessibility(page)
        shades.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(set(shades)) == 2
