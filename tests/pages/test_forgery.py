"""Requests that another site makes a browser send, and forms that are not as a page sends them, change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.api.json_body import BODY_LIMIT
from onejob.jobs.records import Query
from onejob.pages.form import FIELD_LIMIT
from tests.cases import for_each
from tests.pages.html_page import HtmlPage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.pages.browser import Browser
    from tests.pages.sample import Sample

FORM = "application/x-www-form-urlencoded"
ORIGIN = {"origin": "http://127.0.0.1"}
ALL = Query(limit=10_000)


@pytest.fixture(autouse=True)
def nothing_changed(request: pytest.FixtureRequest, sample: Sample) -> Iterator[None]:
    """Assert that the tests named `refused` leave every job as it was."""
    before = sample.ledger.find(ALL)
    yield
    if "refused" in request.node.name:
        assert sample.ledger.find(ALL) == before


@for_each("headers", [
    {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"sec-fetch-site": "none"},
    {"sec-fetch-site": "cross-site"} | ORIGIN, {"sec-fetch-site": ""},
    {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1:81"}, {"origin": ""},
    {"origin": "http://127.0.0.1.evil.example"}, {"origin": "http://["}, {"referer": "http://127.0.0.1/ops/jobs"}, {},
])  # fmt: skip
def test_a_form_of_another_site_is_refused(browser: Browser, sample: Sample, headers: dict[str, str]) -> None:
    """A form is refused unless the browser says that a page of this origin has sent it."""
    for path, fields in forms_of(sample):
        assert browser.post(path, headers=headers, **fields).status_code == 403


@for_each("token", ["", "x", "\N{SNOWMAN}"])
def test_a_form_without_the_token_is_refused(browser: Browser, sample: Sample, token: str) -> None:
    """A form is refused without the token of the browser's cookie."""
    for path, fields in forms_of(sample):
        assert browser.post(path, csrf_token=token, **fields).status_code == 403


def test_the_token_of_another_browser_is_refused(browse: Callable[..., Browser], sample: Sample) -> None:
    """The token of one browser is no good in another one, nor in one without a cookie."""
    one, other = browse(), browse()
    assert one.token() != other.token()
    for path, fields in forms_of(sample):
        assert one.post(path, csrf_token=other.token(), **fields).status_code == 403
        fresh = browse()
        pairs = [("csrf_token", one.token()), *fields.items()]
        assert fresh.post_pairs(path, pairs).status_code == 403
        fresh.client.cookies.set("onejob_csrf", "", path="/ops")
        assert fresh.post_pairs(path, [("csrf_token", ""), *fields.items()]).status_code == 403


def test_an_empty_token_is_replaced(browser: Browser, sample: Sample) -> None:
    """A browser whose token is empty gets a new one with the next page, and can act again."""
    browser.client.cookies.set("onejob_csrf", "", path="/ops")
    page = browser.page(f"/jobs/{sample.named['failed']}")
    assert browser.submit(page, f"/operate/{sample.named['failed']}", operation="redrive").status_code == 303


@for_each("content_type, status", [
    ("application/json", 415), ("text/plain", 415), ("multipart/form-data; boundary=x", 415), ("", 415),
    (f"{FORM}-x", 415),
])  # fmt: skip
def test_another_content_type_is_refused(browser: Browser, sample: Sample, content_type: str, status: int) -> None:
    """A body that is no form is refused, whatever it has in it."""
    headers = {"sec-fetch-site": "same-origin", "content-type": content_type}
    for path, fields in forms_of(sample):
        body = "&".join(f"{name}={value}" for name, value in {"csrf_token": browser.token(), **fields}.items())
        assert browser.client.post(f"/ops{path}", content=body, headers=headers).status_code == status


def test_a_body_over_the_limit_is_refused(browser: Browser, sample: Sample) -> None:
    """A form over the limit of bytes is refused, with and without a declared length."""
    path, fields = forms_of(sample)[0]
    big = "x" * BODY_LIMIT
    assert browser.post(path, note=big, **fields).status_code == 413
    body = f"csrf_token={browser.token()}&operation=redrive&note={big}".encode()
    headers = {"sec-fetch-site": "same-origin", "content-type": FORM}
    assert browser.client.post(f"/ops{path}", content=iter([body]), headers=headers).status_code == 413


@for_each("body, status", [
    ("&".join(["a=1"] * (FIELD_LIMIT + 1)), 422), ("note=%ff", 422), ("note=\u00e4", 422), ("note=a%00b", 422),
])  # fmt: skip
def test_a_form_that_no_page_sends_is_refused(browser: Browser, sample: Sample, body: str, status: int) -> None:
    """A form with too many fields, with bytes that are no UTF-8, or with a NUL character is refused."""
    for path, fields in forms_of(sample):
        sent = "&".join(
            [f"{name}={value}" for name, value in {"csrf_token": browser.token(), **fields}.items()] + [body]
        )
        headers = {"sec-fetch-site": "same-origin", "content-type": FORM}
        response = browser.client.post(f"/ops{path}", content=sent.encode(), headers=headers)
        assert response.status_code == status, response.text


@for_each("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_another_method_is_refused(browser: Browser, sample: Sample, method: str) -> None:
    """Only POST changes something, however the method is overridden."""
    for path, fields in forms_of(sample):
        pairs = {"csrf_token": browser.token(), **fields}
        headers = {"sec-fetch-site": "same-origin", "x-http-method-override": "POST"}
        response = browser.client.request(method, f"/ops{path}", params=pairs | {"_method": "POST"}, headers=headers)
        assert response.status_code in {200, 405}


@for_each("headers", [{"sec-fetch-site": "same-origin"}, ORIGIN, {"sec-fetch-site": "same-origin", "origin": "null"}])
def test_a_form_of_this_browser_is_done(browser: Browser, sample: Sample, headers: dict[str, str]) -> None:
    """A form of a page of this origin, with the token of this browser, is done."""
    job = sample.submit("shop.study_plan", project=f"{headers}").job
    response = browser.post(f"/operate/{job.id}", headers=headers, operation="cancel")
    assert response.status_code == 303
    assert sample.ledger.get(job.id).state == "canceled"


BACKS = {
    "/jobs?state=failed": "/ops/jobs?state=failed",
    "//evil.example": "/ops/jobs", "https://evil.example": "/ops/jobs", "/\\evil.example": "/ops/jobs",
    "javascript:alert(1)": "/ops/jobs", "/\t/evil.example": "/ops/jobs", "\\\\evil.example": "/ops/jobs",
    "": "/ops/jobs", "jobs": "/ops/jobs", "/\n//evil.example": "/ops/jobs",
}  # fmt: skip


@for_each("back", BACKS)
def test_the_way_back_stays_on_the_site(browser: Browser, back: str) -> None:
    """The link back from a bulk operation is a path of this dashboard, whatever the form says."""
    response = browser.post("/bulk/preview", scope="matching", operation="delete", filter="state=failed", back=back)
    assert response.status_code == 200
    links = HtmlPage(response.text).links
    assert BACKS[back] in links
    assert [link for link in links if "evil" in link or not link.startswith(("/ops/", "#"))] == []


def forms_of(sample: Sample) -> list[tuple[str, dict[str, str]]]:
    """Return the forms that change something."""
    failed = sample.named["failed"]
    return [
        (f"/operate/{failed}", {"operation": "redrive"}),
        (f"/edit/{failed}", {"args": "[]", "kwargs": '{"order_id": 5}'}),
        ("/bulk/run", {"operation": "delete", "scope": "matching", "filter": "state=failed"}),
    ]
