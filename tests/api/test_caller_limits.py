"""What one caller may take of a process: large bodies in its turn, and a quota of checks."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from onejob.api.caller_limits import CheckQuota
from onejob.api.checked_request import INLINE_BYTES
from onejob.api.problems import Problem
from onejob.api.routes import submit
from onejob.jobs.submitter import NAME_LIMIT
from onejob.uniqueness import canonical_json, identity
from tests.api.conftest import Shop, problem
from tests.services import eventually

LARGE = "x" * INLINE_BYTES


def check(shop: Shop, order_id: Any = 7, note: str = "") -> Any:
    return shop.post("/duplicates/check", {"task": "shop.invoice", "kwargs": {"order_id": order_id, "note": note}})


def test_large_requests_of_one_caller_leave_room(keyed: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """While many large checks of one caller run, one does at a time; large and small requests of others go on."""
    answer, gate, lock = submit._check_duplicate, threading.Event(), threading.Lock()
    running, most = Counter[str](), Counter[str]()

    def blocked(app: Any, body: Any, permissions: Any) -> Any:
        name = permissions.caller.name
        with lock:
            running[name] += 1
            most[name] = max(most[name], running[name])
        if name == "read":
            assert gate.wait(20.0)
        with lock:
            running[name] -= 1
        return answer(app, body, permissions)

    monkeypatch.setattr(submit, "_check_duplicate", blocked)
    reader, other = keyed.named("read"), keyed.named("operate")
    with ThreadPoolExecutor(5) as pool:
        checks = [pool.submit(check, reader, number, LARGE) for number in range(5)]
        eventually(lambda: running["read"] == 1)
        assert check(other, note=LARGE).status_code == 200
        assert other.submit(7, kwargs={"order_id": 7, "note": LARGE}).status_code == 202
        assert other.submit(8).status_code == 202
        gate.set()
        assert {each.result().status_code for each in checks} == {200}
    assert most["read"] == 1


def test_checks_have_a_quota(open_shop: Callable[..., Shop]) -> None:
    """Checks, and submissions that are only validated, count against a quota of their caller; submissions do not."""
    shop = open_shop({"checks_per_minute": 3}, has_keys=True)
    one, other = shop.named("operate"), shop.named("submit")
    assert [check(one).status_code, one.submit(validate_only=True).status_code, check(one).status_code] == [200] * 3
    for refused in (check(one), one.submit(validate_only=True)):
        found = problem(refused, 429, "quota-exceeded")
        assert (found["quota"], found["limit"]) == ("checks", "3/minute")
        assert 0 < int(refused.headers["retry-after"]) <= 60
        assert "submit without a check" in found["detail"]
    assert [one.submit().status_code, check(other).status_code] == [202, 200]


def test_the_quota_is_of_a_minute_and_of_sizes() -> None:
    """A check with a large body uses more of the quota, which is whole again after a minute."""
    now = 100.0
    quota = CheckQuota(20, clock=lambda: now)
    quota.charge("a", 16)
    quota.charge("a", 16)
    quota.charge("b", 1)
    now = 159.0
    with pytest.raises(Problem, match="retry in 1 s"):
        quota.charge("a", 1)
    now = 160.0
    quota.charge("a", 1)


@pytest.mark.parametrize("name", ["read", "one"])
def test_a_check_writes_its_arguments_once(keyed: Shop, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The canonical text of one value is written once in a check, also for a caller with own jobs."""
    written = list[Any]()
    canonical = canonical_json.canonical

    def noted(value: Any, *arguments: Any, **options: Any) -> str:
        written.append(value)
        return canonical(value, *arguments, **options)

    monkeypatch.setattr(identity, "canonical", noted)
    body = {"task": "shop.anything", "kwargs": {"value": [1] * NAME_LIMIT}}
    found = keyed.named(name).post("/duplicates/check", body).json()
    assert [value for value in written if value != name] == [{"value": [1] * NAME_LIMIT, "json": False}]
    assert canonical_json.digest(found["hashed_text"]) == found["identity"]
