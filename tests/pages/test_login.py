"""The login with an API key: its session, and its end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onejob.api.api_keys import KeyFile, Role
from tests.cases import for_each
from tests.http.conftest import problem
from tests.pages.browser import BASE, Browser, mounted

if TYPE_CHECKING:
    from tests.pages.sample import Sample

SESSION = "onejob_session"
WRONG = "wrong"


@dataclass
class Login:
    """A dashboard with API keys."""

    sample: Sample
    file: KeyFile

    def browser(self, **where: Any) -> Browser:
        """Return a browser without a session."""
        return Browser(mounted(self.sample.app, keys=self.file.path), **where)

    def logged_in(self, role: Role, name: str = "ann") -> Browser:
        """Return a browser with the session of a new key."""
        browser = self.browser()
        assert browser.post("/login", key=self.file.add(name, role)).status_code == 303
        return browser


@pytest.fixture
def login(sample: Sample, tmp_path: Path) -> Login:
    """Return a dashboard with an empty key file."""
    file = KeyFile(tmp_path / "keys.json")
    file.add("other", Role.READ)
    return Login(sample, file)


def test_a_key_opens_a_session(login: Login) -> None:
    """Without a session every page leads to the login; a valid key leads to the pages, as the user that it names."""
    browser = login.browser()
    for path in ("/", "/jobs", "/audit", "/live"):
        response = browser.get(path)
        assert (response.status_code, response.headers["location"]) == (303, f"{BASE}/login")
    response = browser.post("/login", key=f" {login.file.add('ann', Role.READ)} ")
    assert (response.status_code, response.headers["location"]) == (303, f"{BASE}/")
    assert "You are logged in as ann." in browser.page("/").text
    assert "You are logged in as ann." not in browser.page("/").text
    assert browser.get("/audit").status_code == 403


@for_each("where, is_secure", [({}, False), ({"base_url": "https://jobs.example.org"}, True)])
def test_cookies_stay_in_the_browser(login: Login, where: dict[str, Any], is_secure: bool) -> None:
    """No script, other site or other path gets a cookie of the dashboard, and over HTTPS no plain connection does."""
    browser, name = login.browser(**where), f"ann {is_secure}"
    response = browser.post("/login", key=login.file.add(name, Role.READ))
    cookies = [*browser.get("/login").headers.get_list("set-cookie"), *response.headers.get_list("set-cookie")]
    fresh = login.browser(**where).get("/login").headers.get_list("set-cookie")
    assert {cookie.partition("=")[0] for cookie in [*cookies, *fresh]} == {SESSION, "onejob_csrf", "onejob_notice"}
    for cookie in [*cookies, *fresh]:
        flags = {flag.strip().lower() for flag in cookie.split(";")[1:]}
        assert {"httponly", "samesite=strict", f"path={BASE}"} <= flags or "max-age=0" in flags
        assert ("secure" in flags) is is_secure or "max-age=0" in flags


def test_the_path_of_cookies_is_the_root_where_nothing_is_mounted(sample: Sample) -> None:
    """A dashboard that is an app of its own has cookies for all paths."""
    from onejob.pages import dashboard

    response = Browser(dashboard(sample.app), base="").get("/")
    assert "Path=/;" in response.headers["set-cookie"]


KEYS: dict[str, dict[str, Any]] = {
    "own jobs": {"own_jobs": True},
    "some tasks": {"tasks": frozenset({"shop.send_invoice"})},
    "both": {"own_jobs": True, "tasks": frozenset({"shop.send_invoice"})},
}


@for_each("kind, role", [(kind, role) for kind in KEYS for role in Role])
def test_a_limited_key_does_not_get_in(login: Login, kind: str, role: Role) -> None:
    """A key that is limited to its own jobs or to some tasks is refused with any role, also as a cookie."""
    text = login.file.add(f"{kind} {role}", role, **KEYS[kind])
    browser = login.browser()
    response = browser.post("/login", key=text)
    assert response.status_code == 403
    assert SESSION not in browser.client.cookies
    browser.client.cookies.set(SESSION, text, path=BASE)
    for path in ("/", "/jobs", f"/jobs/{login.sample.named['failed']}", "/live"):
        assert browser.get(path).status_code == 403
    assert browser.post("/bulk/run", scope="matching", operation="delete").status_code == 403


@for_each("text", ["", "no-such-key", "onejob_", "ключ", "a\r\nset-cookie: b=c"])
def test_a_wrong_key_does_not_get_in(login: Login, text: str) -> None:
    """A wrong key shows the form again with the reason, sets no session, and is recorded without the key."""
    browser = login.browser()
    response = browser.post("/login", key=text)
    assert response.status_code == 401
    assert "there is no such API key" in response.text
    assert SESSION not in browser.client.cookies
    assert [(each.action, each.outcome) for each in login.sample.ledger.audit(limit=1)] == [("login", "unauthorized")]


def test_an_expired_key_does_not_get_in(login: Login) -> None:
    """An expired key is refused with the time of its expiry."""
    text = login.file.add("ann", Role.EDIT, expires_at=time.time() - 60.0)
    response = login.browser().post("/login", key=text)
    assert response.status_code == 401
    assert "expired at" in response.text


def test_a_login_needs_the_form_of_this_browser(login: Login) -> None:
    """Another site cannot log a browser in as somebody else."""
    browser, text = login.browser(), login.file.add("mallory", Role.EDIT)
    for fields, headers in (
        ({"csrf_token": "x"}, {"sec-fetch-site": "same-origin"}),
        ({}, {"sec-fetch-site": "cross-site"}),
    ):
        assert browser.post("/login", key=text, headers=headers, **fields).status_code == 403
    assert SESSION not in browser.client.cookies


def test_revocation_ends_the_session(login: Login) -> None:
    """After its key was revoked, the next request of a session is refused, and its cookie is deleted."""
    browser = login.logged_in(Role.EDIT)
    assert browser.get("/jobs").status_code == 200
    login.file.revoke("ann")
    before = login.sample.ledger.count_states(limit=1000)
    response = browser.post(f"/operate/{login.sample.named['failed']}", operation="redrive")
    assert (response.status_code, response.headers["location"]) == (303, f"{BASE}/login")
    assert 'onejob_session=""' in response.headers["set-cookie"]
    assert login.sample.ledger.count_states(limit=1000) == before
    assert SESSION not in browser.client.cookies


def test_the_role_is_that_of_the_key(login: Login) -> None:
    """A session may do what the role of its key includes, and its name is in the audit log."""
    reader, operator = login.logged_in(Role.READ, "reader"), login.logged_in(Role.OPERATE, "operator")
    path = f"/operate/{login.sample.named['failed']}"
    assert reader.post(path, operation="redrive").status_code == 403
    assert operator.post(path, operation="redrive").status_code == 303
    entries = login.sample.ledger.audit(limit=2)
    assert [(each.actor, each.outcome) for each in entries] == [("operator", "done"), ("reader", "forbidden")]


def test_logging_out_ends_the_session(login: Login) -> None:
    """The form in the header of each page ends the session; a form of another site does not."""
    browser = login.logged_in(Role.READ)
    assert browser.post("/logout", csrf_token=WRONG).status_code == 403
    page = browser.page("/")
    assert browser.submit(page, "/logout").headers["location"] == f"{BASE}/login"
    assert browser.get("/").headers["location"] == f"{BASE}/login"


def test_json_without_a_session_is_a_problem(login: Login) -> None:
    """Who asks for JSON without a session, or with one that has ended, gets a problem and no login page."""
    browser = login.browser()
    problem(browser.get("/jobs", format="json"), 401, "unauthorized")
    browser.client.cookies.set(SESSION, "no-such-key", path=BASE)
    problem(browser.get("/jobs", format="json"), 401, "unauthorized")


def test_an_unreadable_key_file_lets_nobody_in(login: Login) -> None:
    """While the key file cannot be read, every session is refused as 503."""
    browser = login.logged_in(Role.EDIT)
    Path(login.file.path).write_text("{")
    assert browser.get("/jobs").status_code == 503


def test_there_is_no_login_without_keys(sample: Sample) -> None:
    """A dashboard that a hook guards has neither a login nor a logout."""
    browser = Browser(mounted(sample.app, authorize=lambda _request: ("ann", "edit")))
    assert browser.get("/login").status_code == browser.post("/logout").status_code == 404
    assert "/ops/logout" not in [form.action for form in browser.page("/").forms]
