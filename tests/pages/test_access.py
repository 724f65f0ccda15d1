"""Who may see the dashboard, and who may act on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from starlette.responses import RedirectResponse

from onejob.api.api_keys import KeyFile, Role
from onejob.errors import ConfigurationError, InvalidArgumentsError
from onejob.pages import User, dashboard
from tests.cases import for_each
from tests.http.conftest import problem
from tests.pages.browser import Browser, mounted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from starlette.requests import Request

    from tests.pages.sample import Sample

PAGES = ("/", "/jobs", "/duplicates", "/dead", "/tasks", "/workers", "/palette")


class Decider:
    """A hook that is an object with an async call."""

    async def __call__(self, _request: Request) -> User:
        return User("object", Role.EDIT)


async def decide_async(_request: Request) -> tuple[str, str]:
    return "async", "edit"


@for_each("authorize, name", [
    (lambda _request: User("sync", Role.EDIT), "sync"),
    (lambda _request: ("pair", "edit"), "pair"),
    (decide_async, "async"),
    (Decider(), "object"),
])  # fmt: skip
def test_a_hook_names_the_user(browse: Callable[..., Browser], authorize: Any, name: str) -> None:
    """A hook, sync or async, returns a user or a name and a role, and every page shows the name."""
    browser = browse(authorize=authorize)
    for path in (*PAGES, "/audit"):
        assert name in browser.page(path).text


def test_a_hook_refuses_with_none(browse: Callable[..., Browser], sample: Sample) -> None:
    """A hook that returns None refuses the request as 403, and the refusal is recorded."""
    browser = browse(authorize=lambda _request: None)
    for path in (*PAGES, "/audit", f"/jobs/{sample.named['failed']}", "/live"):
        assert browser.get(path).status_code == 403
    assert [(each.outcome, each.source) for each in sample.ledger.audit(limit=5)] == [("forbidden", "dashboard")]


def test_the_response_of_a_hook_is_sent(browse: Callable[..., Browser]) -> None:
    """A response that a hook returns is sent as it is, with the security headers."""
    response = browse(authorize=lambda _request: RedirectResponse("/sign-in")).get("/jobs")
    assert (response.status_code, response.headers["location"]) == (307, "/sign-in")
    assert "frame-ancestors 'none'" in response.headers["content-security-policy"]


@for_each("decision", ["ann", True, ("ann", "owner"), ("ann",), ("a\nb", "read"), ("", "read"), object()])
def test_any_other_decision_refuses(browse: Callable[..., Browser], decision: Any) -> None:
    """A hook that returns anything else, or an unknown role, lets nobody in, and the page reveals no detail."""
    response = browse(authorize=lambda _request: decision).get("/jobs", format="json")
    assert response.status_code in {422, 500}
    assert "jobs" not in response.json()


def test_a_hook_that_fails_refuses(browse: Callable[..., Browser]) -> None:
    """A hook that raises lets nobody in, and its message is not shown."""

    def fail(_request: Request) -> None:
        raise RuntimeError("password=hunter2")

    response = browse(authorize=fail).get("/jobs")
    assert response.status_code == 500
    assert "hunter2" not in response.text


def test_the_name_of_a_user_is_printable() -> None:
    """A user has a printable name, which the audit log can have, and a role that exists."""
    with pytest.raises(InvalidArgumentsError):
        User("a\nb")
    with pytest.raises(ValueError, match="owner"):
        User("ann", "owner")  # type: ignore[arg-type] # the point


ACTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "operate": ("/operate/{failed}", {"operation": "redrive"}),
    "bulk preview": ("/bulk/preview", {"operation": "delete", "scope": "matching", "filter": "state=failed"}),
    "bulk": ("/bulk/run", {"operation": "delete", "scope": "matching", "filter": "state=failed"}),
    "edit": ("/edit/{failed}", {"args": "[]", "kwargs": '{"order_id": 1}'}),
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("role", ["read", "submit", "operate", "edit"])
def test_roles_decide_about_actions(browse: Callable[..., Browser], sample: Sample, action: str, role: str) -> None:
    """Reading needs `read`, operations need `operate`, other arguments need `edit`; a refusal changes nothing."""
    browser, (path, fields) = browse(authorize=lambda _request: ("ann", role)), ACTIONS[action]
    before = sample.ledger.count_states(limit=1000)
    response = browser.post(path.format(**sample.named), **fields)
    if Role(role).includes(Role.EDIT if action == "edit" else Role.OPERATE):
        assert response.status_code in {200, 303}, response.text
        return
    assert response.status_code == 403
    assert sample.ledger.count_states(limit=1000) == before
    entry = sample.ledger.audit(limit=1)[0]
    assert (entry.actor, entry.action, entry.outcome) == ("ann", action, "forbidden")


def test_a_reader_sees_no_buttons(browse: Callable[..., Browser], sample: Sample) -> None:
    """A page shows a reader no form that it may not send, and neither the audit log nor its link."""
    browser = browse(authorize=lambda _request: ("ann", "read"))
    for path in ("/jobs", "/dead", f"/jobs/{sample.named['failed']}"):
        assert [form for form in browser.page(path).forms if form.method == "post" and "/operate/" in form.action] == []
        assert "/ops/audit" not in browser.page(path).links
    assert browser.get("/audit").status_code == 403
    assert browser.get(f"/edit/{sample.named['failed']}").status_code == 403


@for_each("where, status", [
    ({}, 200),
    ({"base_url": "http://localhost:9000"}, 200),
    ({"base_url": "http://[::1]", "client": ("::1", 1)}, 200),
    ({"base_url": "http://evil.example"}, 403),
    ({"base_url": "http://127.0.0.1.evil.example"}, 403),
    ({"client": ("203.0.113.9", 1)}, 403),
    ({"client": ("203.0.113.9", 1), "base_url": "http://localhost"}, 403),
])  # fmt: skip
def test_without_users_only_this_machine_gets_in(sample: Sample, where: dict[str, Any], status: int) -> None:
    """Without a hook and keys only requests of this machine to a local name are answered, static files included."""
    browser = Browser(mounted(sample.app), **where)
    for path in (*PAGES, "/live", "/static/any/style.css", "/nowhere"):
        if path != "/live" or status == 403:
            assert (browser.get(path).status_code == 403) is (status == 403)


def test_a_local_user_operates(sample: Sample) -> None:
    """Without a hook and keys everybody on this machine may operate, and nobody may edit."""
    browser = Browser(mounted(sample.app))
    assert browser.get(f"/edit/{sample.named['failed']}").status_code == 403
    assert browser.post(f"/operate/{sample.named['failed']}", operation="redrive").status_code == 303
    assert sample.ledger.audit(limit=1)[0].actor == "local"


def test_a_hook_and_keys_exclude_each_other(sample: Sample, tmp_path: Path) -> None:
    """A dashboard with both a hook and keys, or with an invalid key file, is a configuration error."""
    file = KeyFile(tmp_path / "keys.json")
    file.add("ann", Role.READ)
    with pytest.raises(ConfigurationError, match="authorize= or keys="):
        dashboard(sample.app, authorize=lambda _request: None, keys=file.path)
    with pytest.raises(ConfigurationError):
        dashboard(sample.app, keys=tmp_path / "none.json")


def test_errors_of_access_are_problems_in_json(browse: Callable[..., Browser]) -> None:
    """A refusal is a problem document for those who ask for JSON."""
    response = browse(authorize=lambda _request: None).get("/jobs", format="json")
    problem(response, 403, "forbidden")
