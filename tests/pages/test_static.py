"""Static files, and the headers of every response."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onejob.pages import endpoints
from onejob.pages.static_files import static_version
from tests.cases import for_each

if TYPE_CHECKING:
    import pytest

    from tests.pages.browser import Browser
    from tests.pages.sample import Sample

ROOT = Path(__file__).parents[2]
HTMX_SHA256 = "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130"
NAMES = {
    "dashboard.js": "text/javascript; charset=utf-8", "theme.js": "text/javascript; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "style.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml",
}  # fmt: skip


def test_the_vendored_script_is_the_published_one(browser: Browser) -> None:
    """The script that is not ours is the published file of its version, and the documentation names both."""
    served = browser.get(f"/static/{static_version()}/htmx.min.js").content
    assert hashlib.sha256(served).hexdigest() == HTMX_SHA256
    documented = (ROOT / "SECURITY.md").read_text()
    assert "htmx 4.0.1" in documented
    assert "0BSD" in documented
    assert HTMX_SHA256 in documented


def test_static_files_are_cached_for_ever(browser: Browser) -> None:
    """Each file of a page has a URL with the version of all files, and may be cached for ever under it."""
    links = re.findall(r'(?:src|href)="(/ops/static/[^"]+)"', browser.page("/").source)
    assert {link.rpartition("/")[2] for link in links} == NAMES.keys()
    for link in links:
        response = browser.client.get(link)
        assert response.status_code == 200
        assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert response.headers["content-type"] == NAMES[link.rpartition("/")[2]]


def test_every_static_file_is_known() -> None:
    """The package has the files above and no others."""
    assert {each.name for each in (files("onejob.pages") / "static").iterdir()} == NAMES.keys()


def test_a_file_of_another_version_is_not_cached(browser: Browser) -> None:
    """While two versions are deployed, a file that one serves for the other is not cached under the other's URL."""
    response = browser.get("/static/another/style.css")
    assert (response.status_code, response.headers["cache-control"]) == (200, "no-store")


@for_each("name", [
    "none.js", "..", "%2e%2e", "../app.py", "..%2fapp.py", "..%2f..%2fapp.py", "%2fetc%2fpasswd", "style.css%00", "",
    "....//app.py", "STYLE.CSS", "style.css%2f..%2f..%2fapp.py",
])  # fmt: skip
def test_no_other_file_is_served(browser: Browser, name: str) -> None:
    """No name and no path leads to another file."""
    response = browser.client.get(f"/ops/static/{static_version()}/{name}", follow_redirects=True)
    assert response.status_code == 404 or "<main" in response.text
    assert "def " not in response.text


ERRORS = {"/jobs/unknown": 404, "/nowhere": 404, "/jobs?limit=1": 422, "/static/x/none.js": 404, "/operate/x": 405}
FORMATS = ("/jobs?format=json", "/jobs?format=csv", "/jobs/unknown?format=json")


def test_every_response_is_guarded(browser: Browser, sample: Sample) -> None:
    """Pages, formats, files, errors and redirects forbid inline scripts, framing, sniffing, embedding and caching."""
    responses = {path: browser.client.get(f"/ops{path}") for path in ("/", *FORMATS, *ERRORS, "/find?q=x")}
    assert {path: responses[path].status_code for path in ERRORS} == ERRORS
    responses["redirect"] = browser.post(f"/operate/{sample.named['failed']}", operation="redrive")
    responses["refused"] = browser.post("/bulk/run", csrf_token="")
    responses["preview"] = browser.post("/bulk/preview", operation="delete", scope="matching")
    responses["file"] = browser.get(f"/static/{static_version()}/style.css")
    for path, response in responses.items():
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy, path
        assert "frame-ancestors 'none'" in policy, path
        assert "unsafe" not in policy, path
        assert len(response.headers.get_list("content-security-policy")) == 1, path
        assert len(response.headers.get_list("referrer-policy")) == 1, path
        assert response.headers["x-content-type-options"] == "nosniff", path
        assert response.headers["cross-origin-resource-policy"] == "same-origin", path
        assert (response.headers["cache-control"] == "no-store") is (path != "file"), path


def test_pages_need_nothing_inline_and_nothing_from_elsewhere(browser: Browser, sample: Sample) -> None:
    """No page has an inline script, style or handler, or loads anything from another site, as the policy demands."""
    for path in (
        "/",
        "/jobs",
        "/duplicates",
        "/dead",
        "/tasks",
        "/workers",
        "/audit",
        f"/jobs/{sample.named['crashed']}",
    ):
        source = browser.page(path).source
        assert re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=|javascript:", source) is None
        assert [
            url for url in re.findall(r'\b(?:src|href|action)="([^"]*)"', source) if not url.startswith(("/ops/", "#"))
        ] == []


def test_an_error_that_nobody_expects_is_guarded(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """When even the page of an error cannot be made, the response reveals nothing and has the headers."""

    def fail(*_args: Any, **_options: Any) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(endpoints, "render_html", fail)
    response = browser.get("/jobs")
    assert response.status_code == 500
    assert "hunter2" not in response.text
    assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
