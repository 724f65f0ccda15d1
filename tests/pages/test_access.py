"""Who may see the dashboard and act on it: by a hook, on this machine, or with an API key and a session."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import RedirectResponse

import onejob
from onejob.api.api_keys import KeyFile, Role
from onejob.api.problems import Problem
from onejob.errors import ConfigurationError
from onejob.pages import User, dashboard, sessions
from tests.api.conftest import problem
from tests.api.serving import asgi_status
from tests.cases import for_each
from tests.pages.browser import BASE, Browser, browser_of, mounted, session_of
from tests.pages.sample import Sample, open_sample
from tests.stores.support import StoreAddress

PAGES = ("/", "/jobs", "/duplicates", "/dead", "/tasks", "/workers", "/schedules", "/limits", "/palette", "/audit")


class Decider:
    """A hook that is an object with an async call."""

    async def __call__(self, _request: Request) -> User:
        return User("object", Role.EDIT)


async def decide_async(_request: Request) -> tuple[str, str]:
    return "async", "edit"


@for_each("authorize, name", [
    (lambda _request: User("sync", Role.EDIT), "sync"), (lambda _request: ("pair", "edit"), "pair"),
    (decide_async, "async"), (Decider(), "object"),
])  # fmt: skip
def test_a_hook_names_the_user(sample: Sample, authorize: Any, name: str) -> None:
    """A hook, sync or async, returns a user or a name and a role, and pages show the name; a response is sent as is."""
    assert name in browser_of(sample, authorize=authorize).page("/jobs").text
    response = browser_of(sample, authorize=lambda _request: RedirectResponse("/sign-in")).get("/jobs")
    assert (response.status_code, response.headers["location"]) == (307, "/sign-in")
    assert "frame-ancestors 'none'" in response.headers["content-security-policy"]


def fail(_request: Request) -> None:
    raise RuntimeError("password=hunter2")


DECISIONS = (None, ("eve", None), "ann", True, ("ann", "owner"), ("ann",), ("a\nb", "read"), ("", "read"), object())


@for_each("authorize", [fail, *(lambda _request, decision=decision: decision for decision in DECISIONS)])
def test_any_other_answer_of_a_hook_lets_nobody_in(sample: Sample, authorize: Any) -> None:
    """A hook that refuses, raises, or returns anything else, lets nobody in; a name that it gives is recorded."""
    browser, decision = browser_of(sample, authorize=authorize), None if authorize is fail else authorize(None)
    refuses = authorize is not fail and decision in DECISIONS[:2]
    for path in (*PAGES, f"/jobs/{sample.named['failed']}", "/live"):
        assert browser.get(path).status_code in ({403} if refuses else {422, 500}), path
    response = browser.get("/jobs", format="json")
    assert "jobs" not in response.json()
    assert "hunter2" not in response.text
    assert not refuses or sample.audited("actor", "outcome", "source") == [
        (decision[0] if decision else "", "forbidden", "dashboard")
    ]


ACTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "operate": ("/operate/{}", {"operation": "redrive"}),
    "bulk preview": ("/bulk/preview", {"operation": "delete", "scope": "matching", "filter": "state=failed"}),
    "bulk": ("/bulk/run", {"operation": "delete", "scope": "matching", "filter": "state=failed"}),
    "edit": ("/edit/{}", {"args": "[]", "kwargs": '{"project": "another"}'}),
    "schedule": ("/schedules/nightly", {"operation": "pause"}),
}


@for_each("action, role", [(action, role) for role in Role for action in ACTIONS])
def test_roles_decide_about_actions(sample: Sample, action: str, role: Role) -> None:
    """Reading needs `read`, operations `operate`, other arguments `edit`; without the role there is no form, either."""
    path, fields = ACTIONS[action]
    sample.app.conf.beat_schedule = {"nightly": {"task": "shop.daily_report", "schedule": 60}}
    dead, browser = sample.dead_letter(project=f"{action} of {role}"), browser_of(sample, role)
    before = sample.jobs()
    response = browser.post(path.format(dead.id), **fields)
    if role.includes(Role.EDIT if action == "edit" else Role.OPERATE):
        assert response.status_code in {200, 303}, response.text
        return
    assert response.status_code == 403
    assert sample.jobs() == before
    assert sample.audited("actor", "action", "outcome") == [("ann", action, "forbidden")]
    for path in () if role.includes(Role.OPERATE) else ("/jobs", "/dead", f"/jobs/{dead.id}", "/schedules"):
        page = browser.page(path)
        assert [form for form in page.forms if re.search("/(operate|schedules)/", form.action)] == []
        assert "/ops/audit" not in page.links
        assert browser.get("/audit").status_code == browser.get(f"/edit/{dead.id}").status_code == 403


def test_an_edit_is_recorded_without_values(browser: Browser, sample: Sample) -> None:
    """A refused edit has its own outcome in the audit log, and no entry has an argument's value."""
    for name, kwargs, entry in (
        ("failed", '{"nope": 4111}', ("invalid-arguments", "POST")),
        ("failed", '{"order_id": 4111}', ("done", "POST args kwargs")),
        ("queued", "{}", ("not-a-dead-letter", "POST args kwargs")),
    ):  # fmt: skip
        browser.post(f"/edit/{sample.named[name]}", args="[]", kwargs=kwargs)
        assert sample.audited("outcome", "detail") == [entry]


def test_a_local_user_operates(sample: Sample) -> None:
    """Without a hook and keys everybody on this machine may operate, and nobody may edit."""
    browser, failed = Browser(mounted(sample.app)), sample.named["failed"]
    assert browser.get(f"/edit/{failed}").status_code == 403
    assert "Redrive with other arguments takes the role" in browser.page(f"/jobs/{failed}").text
    assert browser.post(f"/operate/{failed}", operation="redrive").status_code == 303
    assert sample.audited("actor") == [("local",)]


@for_each("make", [onejob.dashboard, onejob.wsgi_dashboard])
def test_a_hook_and_keys_exclude_each_other(
    sample: Sample, keys: KeyFile, tmp_path: Path, make: Callable[..., Any]
) -> None:
    """A dashboard with both a hook and keys, or with an invalid key file, is a configuration error."""
    with pytest.raises(ConfigurationError, match="authorize= or keys="):
        make(sample.app, authorize=lambda _request: None, keys=keys.path)
    with pytest.raises(ConfigurationError):
        make(sample.app, keys=tmp_path / "none.json")


SESSION = "onejob_session"
WRONG = "wrong"


@dataclass
class Login:
    """A dashboard with API keys."""

    sample: Sample
    file: KeyFile

    def browser(self, **where: Any) -> Browser:
        return Browser(mounted(self.sample.app, keys=self.file.path), **where)

    def session_of(self, text: str) -> str:
        return session_of(self.sample, self.file, text)

    def logged_in(self, role: Role, name: str = "ann") -> Browser:
        browser = self.browser()
        assert browser.post("/login", key=self.file.add(name, role)).status_code == 303
        return browser


@pytest.fixture
def login(sample: Sample, keys: KeyFile) -> Login:
    return Login(sample, keys)


def test_a_key_opens_a_session(login: Login) -> None:
    """Without a session pages lead to the login, whose key names the user; its form and that of logout are checked."""
    browser = login.browser()
    for path in ("/", "/jobs", "/audit", "/live"):
        response = browser.get(path)
        assert (response.status_code, response.headers["location"]) == (303, f"{BASE}/login")
    problem(browser.get("/jobs", format="json"), 401, "unauthorized")
    text = login.file.add("ann", Role.READ)
    for sent in ({"csrf_token": WRONG}, {"headers": {"sec-fetch-site": "cross-site"}}):
        assert browser.post("/login", key=text, **sent).status_code == 403
    assert SESSION not in browser.client.cookies
    assert browser.client.head(f"{BASE}/login").status_code == 200
    response = browser.post("/login", key=f" {text} ")
    assert (response.status_code, response.headers["location"]) == (303, f"{BASE}/")
    assert "You are logged in as ann." in browser.page("/").text
    assert "You are logged in as ann." not in browser.page("/").text
    path, fields = f"/operate/{login.sample.named['failed']}", {"operation": "redrive"}
    assert browser.post(path, **fields).status_code == browser.get("/audit").status_code == 403
    assert login.logged_in(Role.OPERATE, "operator").post(path, **fields).status_code == 303
    actions = [each for each in login.sample.audited("actor", "outcome", "action", limit=9) if each[2] == "operate"]
    assert [each[:2] for each in actions] == [("operator", "done"), ("ann", "forbidden")]
    for _ in range(3):
        assert browser.submit(browser.page("/login"), "/login", key=text).status_code == 303
    logins = [each for each in login.sample.audited("actor", "action", "outcome", "kind", limit=9) if each[0] == "ann"]
    assert logins[1:] == [("ann", "login", "done", "access")], "repeated ones are only counted"
    assert browser.post("/logout", csrf_token=WRONG).status_code == 403
    assert browser.submit(browser.page("/"), "/logout").headers["location"] == f"{BASE}/login"
    assert browser.get("/").headers["location"] == f"{BASE}/login"
    hooked = browser_of(login.sample)
    assert hooked.get("/login").status_code == hooked.post("/logout").status_code == 404
    assert "/ops/logout" not in [form.action for form in hooked.page("/").forms]


@for_each("where, is_secure", [({}, False), ({"base_url": "https://jobs.example.org"}, True)])
def test_cookies_stay_in_the_browser(login: Login, where: dict[str, Any], is_secure: bool) -> None:
    """No script, other site or path gets a cookie, and over HTTPS, also to a proxy, no plain connection does."""
    browser = login.browser(**where)
    cookies = login.browser(**where).get("/login").headers.get_list("set-cookie")
    response = browser.post("/login", key=login.file.add(secrets.token_hex(4), Role.READ))
    cookies += [*browser.get("/login").headers.get_list("set-cookie"), *response.headers.get_list("set-cookie")]
    assert {cookie.partition("=")[0] for cookie in cookies} == {SESSION, "onejob_csrf", "onejob_notice"}
    for cookie in cookies:
        flags = {flag.strip().lower() for flag in cookie.split(";")[1:]}
        assert {"httponly", "samesite=strict", f"path={BASE}"} <= flags or "max-age=0" in flags
        assert ("secure" in flags) is is_secure or "max-age=0" in flags
    for name, value, expected in (
        ("x-forwarded-proto", "HTTPS, http", True), ("x-forwarded-proto", "http", False),
        ("forwarded", 'for=192.0.2.7;proto="https";host=jobs', True),
    ):  # fmt: skip
        assert ("; Secure" in login.browser().get("/login", {name: value}).headers["set-cookie"]) is expected
    assert "Path=/;" in Browser(dashboard(login.sample.app), base="").get("/").headers["set-cookie"]


def test_a_session_is_no_key(login: Login) -> None:
    """The cookie of a session is no key, the key itself no session, and two cookies of sessions are none."""
    text = login.file.add("ann", Role.EDIT)
    browser, other = login.browser(), login.browser()
    browser.post("/login", key=text)
    session = browser.client.cookies[SESSION]
    assert browser.get("/audit").status_code == 200
    assert text not in session
    assert login.file.find(session) is None
    assert other.post("/login", key=session).status_code == 401
    other.client.cookies.set(SESSION, text, path=BASE)
    assert other.get("/jobs").headers["location"] == f"{BASE}/login"
    mine, others = (login.session_of(login.file.add(name, Role.EDIT)) for name in ("bob", "mallory"))
    headers = {"cookie": f"{SESSION}={mine}; {SESSION}={others}"}
    for format_ in ("html", "json"):
        response = login.browser().get("/jobs", headers, format=format_)
        assert response.status_code == 400
        assert "several cookies onejob_session" in response.text


ONE_TASK = frozenset({"shop.send_invoice"})
REFUSED: list[tuple[str | dict[str, Any], int, str]] = [
    *((text, 401, "there is no such API key") for text in (
        "", "no-such-key", "onejob_", "ключ", "a\r\nset-cookie: b=c"
    )),
    ({"role": Role.EDIT, "expires_at": 1.0}, 401, "expired at"),
    *((limits, 403, "is limited to some jobs") for limits in (
        {"role": Role.EDIT, "own_jobs": True}, {"role": Role.OPERATE, "tasks": ONE_TASK},
        {"role": Role.READ, "own_jobs": True, "tasks": ONE_TASK}, {"role": Role.SUBMIT, "own_jobs": True},
    )),
]  # fmt: skip
"""Texts that are no keys, and keys that open no session."""


@for_each("key, status, said", REFUSED)
def test_another_key_does_not_get_in(login: Login, key: str | dict[str, Any], status: int, said: str) -> None:
    """A wrong, expired or limited key shows the form with the reason, and is recorded; its cookie is refused, too."""
    browser, text = login.browser(), key if isinstance(key, str) else login.file.add(secrets.token_hex(4), **key)
    response = browser.post("/login", key=text)
    assert response.status_code == status
    assert said in response.text
    assert SESSION not in browser.client.cookies
    assert login.sample.audited("action", "outcome") == [("login", "unauthorized" if status == 401 else "forbidden")]
    browser.client.cookies.set(SESSION, login.session_of(text), path=BASE)
    for path in ("/", "/jobs", f"/jobs/{login.sample.named['failed']}", "/live"):
        assert browser.get(path).status_code == (303 if status == 401 else 403)
    problem(browser.get("/jobs", format="json"), status, "unauthorized" if status == 401 else "forbidden")
    assert browser.post("/bulk/run", scope="matching", operation="delete").status_code == browser.get("/").status_code


def test_revocation_ends_the_session(login: Login) -> None:
    """After its key was revoked, a session is refused and its cookie deleted; without a readable file all are."""
    browser, other = login.logged_in(Role.EDIT), login.logged_in(Role.EDIT, "ben")
    assert browser.get("/jobs").status_code == 200
    token, before = browser.token(), login.sample.jobs()
    login.file.revoke("ann")
    response = browser.post(f"/operate/{login.sample.named['failed']}", operation="redrive", csrf_token=token)
    assert (response.status_code, response.headers["location"]) == (303, f"{BASE}/login")
    assert 'onejob_session=""' in response.headers["set-cookie"]
    assert login.sample.jobs() == before
    assert SESSION not in browser.client.cookies
    Path(login.file.path).write_text("{")
    assert other.get("/jobs").status_code == 503


def test_logout_ends_the_session_everywhere(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a logout a copy of the cookie opens nothing, in any process; another session of the key lasts."""
    monkeypatch.setattr(sessions, "ENDED_SECONDS", 0.0)
    text = login.file.add("ann", Role.EDIT)
    browser, other, process = login.browser(), login.browser(), login.browser()
    for each in (browser, other):
        assert each.post("/login", key=text).status_code == 303
    copied = browser.client.cookies[SESSION]
    for each in (process, copy := login.browser()):
        each.client.cookies.set(SESSION, copied, path=BASE)
        assert each.get("/jobs").status_code == 200
    assert browser.submit(browser.page("/"), "/logout").status_code == 303
    for each in (process, copy):
        assert each.get("/jobs").headers["location"] == f"{BASE}/login"
    assert other.get("/jobs").status_code == 200


def test_a_session_lasts_twelve_hours(login: Login) -> None:
    """The server refuses a session after 12 hours, one of the future, and one whose time or name was changed."""
    now = 1_800_000_000.0
    held = sessions.Sessions(login.file, lambda: login.sample.ledger, clock=lambda: now)
    _, session = held.begin(login.file.add("ann", Role.READ))
    assert held.key_of(session).name == "ann"
    prefix, issued, name, mac = session.split(".")
    others = [
        (prefix, str(int(issued) + 9), name, mac),
        (prefix, issued, "name", mac),
        (prefix, issued, name, "0" * 64),
    ]
    for forged in (*map(".".join, others), "", session[:-1], session + ".x", f"{prefix}.\u0661.{name}.{mac}"):
        with pytest.raises(Problem, match="log in again"):
            held.key_of(forged)
    now += sessions.SESSION_SECONDS - 1
    assert held.key_of(session).name == "ann"
    for moved in (2, -sessions.SESSION_SECONDS - 60):
        now += moved
        with pytest.raises(Problem, match="log in again"):
            held.key_of(session)


def test_a_key_can_end_its_sessions(login: Login) -> None:
    """`end-sessions` and a rotation end all sessions that a key has opened, and it can open others; so do its heirs."""
    text = login.file.add("ann", Role.READ)
    for end in (lambda: login.file.end_sessions("ann"), lambda: login.file.rotate("ann", 3600.0)):
        browser, unconcerned = login.browser(), login.logged_in(Role.READ, secrets.token_hex(4))
        assert browser.post("/login", key=text).status_code == 303
        assert browser.get("/jobs").status_code == 200
        end()
        assert browser.get("/jobs").headers["location"] == f"{BASE}/login"
        assert browser.post("/login", key=text).status_code == 303
        assert unconcerned.get("/jobs").status_code == 200
    with pytest.raises(ConfigurationError, match="no key named 'nobody'"):
        login.file.end_sessions("nobody")


def test_a_new_secret_ends_all_sessions(login: Login) -> None:
    """Without the secret that has signed them in the ledger, no session is accepted by a new process."""
    browser = login.logged_in(Role.READ)
    session = browser.client.cookies[SESSION]
    login.sample.ledger.keep_event(sessions.SECRET_ID, None, keep_for=0.0)
    assert sessions.Sessions(login.file, lambda: login.sample.ledger).key_of(session).name == "ann"
    other = open_sample(StoreAddress(f"sqlite:///{login.file.path.with_name('other.db')}", "unused"))
    with pytest.raises(Problem, match="log in again"):
        sessions.Sessions(login.file, lambda: other.ledger).key_of(session)
    other.close()


def test_a_page_of_another_origin_gets_no_page(login: Login, browser: Browser) -> None:
    """A page of another origin gets no page, whoever is logged in, by a hook or a key; it may lead people to one."""
    keyed, failed = login.logged_in(Role.READ), login.sample.named["failed"]
    for each in (browser, keyed):
        for path in (*PAGES, f"/jobs/{failed}", "/live", "/duplicates?task=shop.send_invoice&arguments=1"):
            for site in ("cross-site", "same-site"):
                refused = each.get(path, {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"})
                assert refused.status_code == 403, path
                assert "a page of another origin" in refused.text, path
        led = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
        assert each.get("/jobs", led).status_code == 200
        assert each.get("/jobs", {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}).status_code == 200


def test_an_aborted_login_is_an_answer(login: Login) -> None:
    """A browser that leaves before its form has arrived causes no error of the server."""
    headers = {"content-type": "application/x-www-form-urlencoded", "content-length": "1000"}
    assert asgi_status(login.browser().client.app, f"{BASE}/login", "127.0.0.1", headers, "http.disconnect") == 400
