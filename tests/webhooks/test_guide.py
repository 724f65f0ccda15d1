"""The receiver that the guide shows: it believes what is signed, once."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from onejob.webhooks.cloudevent import headers_of
from tests.webhooks.receiver import OLDER, SECRET

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "webhooks.md"
BODY = '{"id":"one","type":"onejob.job.completed"}'


@pytest.fixture
def guide(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what the receiver of the guide defines."""
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    section = GUIDE.read_text().partition("## A receiver")[2]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(compile(code[1], "guide", "exec"), names)  # noqa: S102 - our own guide
    return names


def sent(guide: dict[str, Any], body: str = BODY, *, age: float = 0.0, secret: str = SECRET, **other: str) -> int:
    """Send an event as we do, `age` seconds ago, with other headers; return the status."""
    at = datetime.now(UTC) - timedelta(seconds=age)
    signed = {str(name): str(value) for name, value in headers_of("one", BODY, [secret], at=at)}
    headers = signed | {name.replace("_", "-"): value for name, value in other.items()}
    status: int = TestClient(guide["web"]).post("/jobs-done", content=body, headers=headers).status_code
    return status


def test_it_takes_what_is_signed(guide: dict[str, Any]) -> None:
    """What we send is taken."""
    assert sent(guide) == 204
    assert guide["done"] == {"one": "onejob.job.completed"}


def test_what_comes_again_is_done_once(guide: dict[str, Any]) -> None:
    """What comes again, by us or by somebody who has seen it, is answered and changes nothing."""
    assert sent(guide) == 204
    guide["done"]["one"] = "done"
    assert sent(guide) == 204
    assert guide["done"] == {"one": "done"}


@pytest.mark.parametrize(
    "forged",
    [
        {"body": BODY.replace("completed", "failed")},
        {"webhook_id": "two"},
        {"webhook_timestamp": "1795289717"},
        {"webhook_signature": "v1,AAAA"},
        {"webhook_signature": "v1"},
        {"webhook_signature": "v1,A"},
        {"webhook_signature": ""},
        {"secret": OLDER},
        {"age": 301.0},
        {"age": -302.0},
    ],
)
def test_a_forgery_is_refused(guide: dict[str, Any], forged: dict[str, Any]) -> None:
    """What was not signed with the secret, or is not of now, is refused and changes nothing."""
    assert sent(guide, **forged) == 401
    assert guide["done"] == {}
