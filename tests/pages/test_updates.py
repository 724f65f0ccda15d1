"""Many open pages that update at once cost one read, and none of them is stale after an action."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import TYPE_CHECKING, Any

import pytest

from onejob.pages import endpoints
from onejob.pages.page_cache import KeyedCache
from tests.pages.browser import Browser, mounted

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.pages.sample import Sample

UPDATE = {"hx-request": "true"}


@pytest.fixture
def reads(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the reads of the list of jobs, as they happen."""
    find_page, seen = sample.ledger.find_page, []

    def counted(*args: Any, **options: Any) -> Any:
        seen.append("find_page")
        return find_page(*args, **options)

    monkeypatch.setattr(sample.ledger, "find_page", counted)
    return seen


def test_updates_at_once_read_once(sample: Sample, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """However many open pages with one URL update at once, the ledger is read once, and all show the same."""
    monkeypatch.setattr(endpoints, "FRESH_SECONDS", 60.0)
    app, count = mounted(sample.app, authorize=lambda _request: ("ann", "read")), 12
    barrier = Barrier(count)

    def update(_number: int) -> str:
        browser = Browser(app)
        barrier.wait()
        return browser.get("/jobs", UPDATE).text.partition("<table")[2].partition("</table>")[0]

    with ThreadPoolExecutor(count) as threads:
        shown = set(threads.map(update, range(count)))
    assert len(shown) == 1
    assert sample.named["queued"] in shown.pop()
    assert reads == ["find_page"]


def test_a_visit_is_never_cached(browse: Callable[..., Browser], sample: Sample, reads: list[str]) -> None:
    """A page that a person opens is read from the ledger, however fresh the one for updates is."""
    browser = browse()
    for _ in range(3):
        browser.get("/jobs", UPDATE)
    job = sample.submit("shop.study_plan", project="just now").job
    assert job.id in browser.page("/jobs").source
    assert len(reads) >= 2


def test_an_update_after_an_own_action_is_not_stale(
    browse: Callable[..., Browser], sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an action the next update shows its effect, however long pages are kept for updates."""
    monkeypatch.setattr(endpoints, "FRESH_SECONDS", 60.0)
    browser, path = browse(), f"/jobs/{sample.named['failed']}"
    assert 'class="badge queued"' not in browser.get(path, UPDATE).text.partition("Timeline")[0]
    sample.ledger.redrive(sample.named["failed"])
    assert 'class="badge queued"' not in browser.get(path, UPDATE).text.partition("Timeline")[0]
    browser.post(f"/operate/{sample.named['failed']}", operation="cancel")
    assert 'class="badge canceled"' in browser.get(path, UPDATE).text.partition("Timeline")[0]


def test_a_page_that_was_being_built_during_an_action_is_not_kept() -> None:
    """A page whose building began before an action is not shown to those who update after it."""
    began, may_end = Event(), Event()
    cache: KeyedCache[str] = KeyedCache(60.0, cost_factor=0.0)

    def build_slowly() -> str:
        began.set()
        assert may_end.wait(20.0)
        return "before"

    def build() -> str:
        return "after"

    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(cache.get, "/jobs", build_slowly)
        assert began.wait(20.0)
        cache.clear()
        second = cache.get("/jobs", build)
        may_end.set()
        shown = [first.result(), second, cache.get("/jobs", build)]
    assert shown == ["before", "after", "after"]


def test_updates_differ_by_query_and_zone(browse: Callable[..., Browser], monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages with other parameters, and viewers in another time zone, get their own page."""
    monkeypatch.setattr(endpoints, "FRESH_SECONDS", 60.0)
    browser = browse()
    assert "shop.send_invoice" in browser.get("/jobs?state=failed", UPDATE).text
    assert browser.get("/jobs?state=running", UPDATE).text != browser.get("/jobs?state=failed", UPDATE).text
    in_utc = browser.get("/duplicates", UPDATE, format="json").json()["hours"]
    browser.client.cookies.set("onejob_zone", "Asia/Tokyo")
    assert browser.get("/duplicates", UPDATE, format="json").json()["hours"] != in_utc


def test_updates_are_for_those_who_may_see_them(sample: Sample) -> None:
    """A page in the cache is shown only to those whom the dashboard lets in."""
    role: list[Any] = [("ann", "edit")]
    browser = Browser(mounted(sample.app, authorize=lambda _request: role[0]))
    assert browser.get("/audit", UPDATE).status_code == 200
    for role[0], status in ((("ben", "read"), 403), (None, 403)):
        assert browser.get("/audit", UPDATE).status_code == status
