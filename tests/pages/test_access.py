"""Who may see the dashboard and act on it, where a hook or this machine decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from starlette.responses import RedirectResponse

import onejob
from onejob.api.api_keys import Role
from onejob.errors import ConfigurationError
from onejob.pages import User
from tests.cases import for_each
from tests.http.conftest import problem
from tests.pages.browser import Browser, browser_of, mounted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from starlette.requests import Request

    from onejob.api.api_keys import KeyFile
    from tests.pages.sample import Sample

PAGES = ("/", "/jobs", "/duplicates", "/dead", "/tasks", "/workers", "/palette", "/audit")


class Decider:
    """A hook that is an object with an async call."""

    async def __call__(self, _request: Request) -> User:
        return User("object", Role.EDIT)


async def decide_async(_request: Request) -> tuple[str, str]:
    return "async", "edit"


def fail(_request: Request) -> None:
    raise RuntimeError("password=hunter2")


@for_each("authorize, name", [
    (lambda _request: User("sync", Role.EDIT), "sync"), (lambda _request: ("pair", "edit"), "pair"),
    (decide_async, "async"), (Decider(), "object"),
])  # fmt: skip
def test_a_hook_names_the_user(browse: Callable[..., Browser], authorize: Any, name: str) -> None:
    """A hook, sync or async, returns a user or a name and a role, and pages show the name."""
    assert name in browse(authorize=authorize).page("/jobs").text


@for_each("decision, actor", [(None, ""), (("eve", None), "eve")])
def test_a_hook_refuses(sample: Sample, decision: Any, actor: str) -> None:
    """A hook that returns None, or a name without a role, refuses the request, which is recorded with the name."""
    browser = browser_of(sample, authorize=lambda _request: decision)
    for path in (*PAGES, f"/jobs/{sample.named['failed']}", "/live"):
        assert browser.get(path).status_code == 403
    problem(browser.get("/jobs", format="json"), 403, "forbidden")
    assert sample.audited("actor", "outcome", "source") == [(actor, "forbidden", "dashboard")]


def test_the_response_of_a_hook_is_sent(browse: Callable[..., Browser]) -> None:
    """A response that a hook returns is sent as it is, with the security headers."""
    response = browse(authorize=lambda _request: RedirectResponse("/sign-in")).get("/jobs")
    assert (response.status_code, response.headers["location"]) == (307, "/sign-in")
    assert "frame-ancestors 'none'" in response.headers["content-security-policy"]


@for_each("authorize", [fail, *(
    lambda _request, decision=decision: decision
    for decision in ("ann", True, ("ann", "owner"), ("ann",), ("a\nb", "read"), ("", "read"), object())
)])  # fmt: skip
def test_any_other_answer_of_a_hook_lets_nobody_in(browse: Callable[..., Browser], authorize: Any) -> None:
    """A hook that raises, or returns anything else, lets nobody in, and its message is not shown."""
    response = browse(authorize=authorize).get("/jobs", format="json")
    assert response.status_code == 500 if authorize is fail else response.status_code in {422, 500}
    assert "jobs" not in response.json()
    assert "hunter2" not in response.text


ACTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "operate": ("/operate/{}", {"operation": "redrive"}),
    "bulk preview": ("/bulk/preview", {"operation": "delete", "scope": "matching", "filter": "state=failed"}),
    "bulk": ("/bulk/run", {"operation": "delete", "scope": "matching", "filter": "state=failed"}),
    "edit": ("/edit/{}", {"args": "[]", "kwargs": '{"project": "another"}'}),
}


@for_each("action, role", [(action, role) for role in Role for action in ACTIONS])
def test_roles_decide_about_actions(sample: Sample, action: str, role: Role) -> None:
    """Reading needs `read`, operations need `operate`, other arguments need `edit`; a refusal changes nothing."""
    path, fields = ACTIONS[action]
    dead = sample.dead_letter(project=f"{action} of {role}")
    before = sample.jobs()
    response = browser_of(sample, role).post(path.format(dead.id), **fields)
    if role.includes(Role.EDIT if action == "edit" else Role.OPERATE):
        assert response.status_code in {200, 303}, response.text
        return
    assert response.status_code == 403
    assert sample.jobs() == before
    assert sample.audited("actor", "action", "outcome") == [("ann", action, "forbidden")]


def test_an_edit_is_recorded_without_values(browser: Browser, sample: Sample) -> None:
    """A refused edit has its own outcome in the audit log, and no entry has an argument's value."""
    path = f"/edit/{sample.named['failed']}"
    for kwargs, entry in {
        '{"nope": 4111}': ("invalid-arguments", "POST"), '{"order_id": 4111}': ("done", "POST args kwargs")
    }.items():  # fmt: skip
        browser.post(path, args="[]", kwargs=kwargs)
        assert sample.audited("outcome", "detail") == [entry]
    browser.post(f"/edit/{sample.named['queued']}", args="[]", kwargs="{}")
    assert sample.audited("outcome") == [("not-a-dead-letter",)]


def test_a_reader_sees_no_buttons(browse: Callable[..., Browser], sample: Sample) -> None:
    """A page shows a reader no form that it may not send, and neither the audit log nor its link."""
    browser, failed = browse("read"), sample.named["failed"]
    for path in ("/jobs", "/dead", f"/jobs/{failed}"):
        page = browser.page(path)
        assert [form for form in page.forms if form.method == "post" and "/operate/" in form.action] == []
        assert "/ops/audit" not in page.links
    assert browser.get("/audit").status_code == browser.get(f"/edit/{failed}").status_code == 403


@for_each("where, status", [
    ({}, 200),
    ({"base_url": "http://localhost:9000"}, 200),
    ({"base_url": "http://[::1]", "client": ("::1", 1)}, 200),
    ({"base_url": "http://evil.example"}, 403),
    ({"base_url": "http://127.0.0.1.evil.example"}, 403),
    ({"client": ("203.0.113.9", 1)}, 403),
    ({"headers": {"x-forwarded-for": "203.0.113.9"}}, 403),
    ({"client": ("203.0.113.9", 1), "base_url": "http://localhost"}, 403),
])  # fmt: skip
def test_without_users_only_this_machine_gets_in(sample: Sample, where: dict[str, Any], status: int) -> None:
    """Without a hook and keys only requests of this machine to a local name are answered, static files included."""
    browser = Browser(mounted(sample.app), **where)
    for path in (*PAGES, "/static/any/style.css", "/nowhere", *(["/live"] if status == 403 else [])):
        assert (browser.get(path).status_code == 403) is (status == 403)


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
