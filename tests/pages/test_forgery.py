"""Forms that this dashboard has not sent, to this user in this browser, change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onejob.api.checked_request import BODY_LIMIT
from onejob.pages.security import FIELD_LIMIT
from tests.cases import for_each
from tests.pages.browser import SAME_ORIGIN, browser_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.pages.browser import Browser
    from tests.pages.sample import Sample

FORM = "application/x-www-form-urlencoded"
ORIGIN = {"origin": "http://127.0.0.1"}


@pytest.fixture
def unchanged(sample: Sample) -> Iterator[Sample]:
    """Return the sample; assert that the test leaves every job as it was."""
    before = sample.jobs()
    yield sample
    assert sample.jobs() == before


def forms_of(sample: Sample) -> list[tuple[str, dict[str, str]]]:
    """Return the forms that change something."""
    failed = sample.named["failed"]
    return [
        (f"/operate/{failed}", {"operation": "redrive"}),
        (f"/edit/{failed}", {"args": "[]", "kwargs": '{"order_id": 5}'}),
        ("/bulk/run", {"operation": "delete", "scope": "matching", "filter": "state=failed"}),
    ]


@for_each("sent", [
    *({"headers": headers} for headers in (
        {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"sec-fetch-site": "none"},
        {"sec-fetch-site": "cross-site"} | ORIGIN, {"sec-fetch-site": ""},
        {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1:81"}, {"origin": ""},
        {"origin": "http://127.0.0.1.evil.example"}, {"origin": "http://["},
        {"referer": "http://127.0.0.1/ops/jobs"}, {},
    )),
    *({"csrf_token": token} for token in ("", "x", "\N{SNOWMAN}")),
])  # fmt: skip
def test_a_form_of_another_site_is_refused(browser: Browser, unchanged: Sample, sent: Any) -> None:
    """A form is refused unless the browser says that a page of this origin sent it, and it has the browser's token."""
    for path, fields in forms_of(unchanged):
        assert browser.post(path, **sent, **fields).status_code == 403


def test_the_token_of_another_browser_is_refused(browse: Callable[..., Browser], unchanged: Sample) -> None:
    """The token of one browser is no good in another one, nor without a cookie or with one that was planted."""
    one, other, mallory, victim = browse(), browse(), browse(authorize=lambda _: ("mallory", "edit")), browse()
    for each in (mallory, victim):  # another port of the host can set this
        each.client.cookies.set("onejob_csrf", "z", path="/ops")
    for path, fields in forms_of(unchanged):
        assert one.post(path, csrf_token=other.token(), **fields).status_code == 403
        for token in ("z", mallory.token()):
            assert victim.post(path, csrf_token=token, **fields).status_code == 403
        fresh = browse()
        assert fresh.post_pairs(path, [("csrf_token", one.token()), *fields.items()]).status_code == 403
        fresh.client.cookies.set("onejob_csrf", "", path="/ops")
        assert fresh.post_pairs(path, [("csrf_token", ""), *fields.items()]).status_code == 403


BIG = f"note={'x' * BODY_LIMIT}"


@for_each("body, content_type, status", [
    *(("", content_type, 415) for content_type in (
        "application/json", "text/plain", "multipart/form-data; boundary=x", "", f"{FORM}-x"
    )),
    *((body, FORM, 422) for body in ("&".join(["a=1"] * (FIELD_LIMIT + 1)), "note=%ff", "note=\u00e4", "note=a%00b")),
    (BIG, FORM, 413), (iter([BIG.encode()]), FORM, 413),
])  # fmt: skip
def test_a_body_that_no_page_sends_is_refused(
    browser: Browser, unchanged: Sample, body: Any, content_type: str, status: int
) -> None:
    """A body of another type, of too many bytes or fields, or with what no form has in it, is refused."""
    for path, fields in forms_of(unchanged):
        own = "&".join(f"{name}={value}" for name, value in {"csrf_token": browser.token(), **fields}.items())
        content = f"{own}&{body}".encode() if isinstance(body, str) else iter([own.encode(), b"&", BIG.encode()])
        headers = SAME_ORIGIN | {"content-type": content_type}
        response = browser.client.post(f"/ops{path}", content=content, headers=headers)
        assert response.status_code == status, response.text


@for_each("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_another_method_changes_nothing(browser: Browser, unchanged: Sample, method: str) -> None:
    """Only POST changes something, however the method is overridden."""
    for path, fields in forms_of(unchanged):
        pairs = {"csrf_token": browser.token(), **fields, "_method": "POST"}
        headers = SAME_ORIGIN | {"x-http-method-override": "POST"}
        response = browser.client.request(method, f"/ops{path}", params=pairs, headers=headers)
        assert response.status_code in {200, 405}


@for_each("headers", [SAME_ORIGIN, ORIGIN, SAME_ORIGIN | {"origin": "null"}])
def test_a_form_of_this_browser_is_done(browser: Browser, sample: Sample, headers: dict[str, str]) -> None:
    """A form of a page of this origin, with the token of this browser, is done."""
    job = sample.submit("shop.study_plan", project=f"{headers}").job
    assert browser.post(f"/operate/{job.id}", headers=headers, operation="cancel").status_code == 303
    assert sample.ledger.get(job.id).state == "canceled"


def test_the_token_of_one_process_is_good_in_another(sample: Sample) -> None:
    """The processes of a server accept each other's forms, and replace an empty token with the next page."""
    first, second, failed = browser_of(sample), browser_of(sample), sample.named["failed"]
    token = first.token()
    second.client.cookies = first.client.cookies
    assert second.post(f"/operate/{sample.named['queued']}", csrf_token=token, operation="cancel").status_code == 303
    first.client.cookies.set("onejob_csrf", "", path="/ops")
    assert first.submit(first.page(f"/jobs/{failed}"), f"/operate/{failed}", operation="redrive").status_code == 303


@for_each("back", [
    "//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/\t/evil.example",
    "\\\\evil.example", "", "jobs", "/\n//evil.example", "/jobs?state=failed",
])  # fmt: skip
def test_the_way_back_stays_on_the_site(browser: Browser, back: str) -> None:
    """The link back from a bulk operation is a path of this dashboard, whatever the form says."""
    page = browser.posted("/bulk/preview", scope="matching", operation="delete", filter="state=failed", back=back)
    assert ("/ops/jobs?state=failed" if "?" in back else "/ops/jobs") in page.links
    assert [link for link in page.links if "evil" in link or not link.startswith(("/ops/", "#"))] == []
