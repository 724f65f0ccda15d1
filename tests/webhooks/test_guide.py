"""The receiver in the guide accepts each signed event once."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from onejob.webhooks.job import build_headers
from tests.cases import for_each
from tests.stores.support import not_none
from tests.webhooks.receiver import OLDER, SECRET

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "webhooks.md"
BODY = '{"id":"one","type":"onejob.job.completed"}'


@pytest.fixture
def guide(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the names that the guide's receiver defines."""
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    section = GUIDE.read_text().partition("## A receiver")[2]
    code = not_none(re.search(r"```python\n(.*?)```", section, re.DOTALL))
    names: dict[str, Any] = {}
    exec(compile(code[1], "guide", "exec"), names)  # noqa: S102 - the project's own guide
    return names


def send(guide: dict[str, Any], body: str = BODY, *, age: float = 0.0, secret: str = SECRET, **other: str) -> int:
    """Send an event signed `age` seconds ago, with headers overridden; return the status."""
    at = datetime.now(UTC) - timedelta(seconds=age)
    signed = {str(name): str(value) for name, value in build_headers("one", BODY, [secret], at=at)}
    headers = signed | {name.replace("_", "-"): value for name, value in other.items()}
    status: int = TestClient(guide["web"]).post("/jobs-done", content=body, headers=headers).status_code
    return status


def test_a_signed_event_is_accepted_once(guide: dict[str, Any]) -> None:
    """A signed event is accepted and processed; a repeated one is accepted and not processed again."""
    assert send(guide) == 204
    assert guide["done"] == {"one": "onejob.job.completed"}
    guide["done"]["one"] = "done"
    assert send(guide) == 204
    assert guide["done"] == {"one": "done"}


@for_each("forged", [
    {"body": BODY.replace("completed", "failed")}, {"webhook_id": "two"}, {"webhook_timestamp": "1795289717"},
    {"webhook_signature": "v1,AAAA"}, {"webhook_signature": "v1"}, {"webhook_signature": "v1,A"},
    {"webhook_signature": ""}, {"secret": OLDER}, {"age": 301.0}, {"age": -302.0},
])  # fmt: skip
def test_a_forgery_is_refused(guide: dict[str, Any], forged: dict[str, Any]) -> None:
    """An event with an invalid signature or an old timestamp is refused and not processed."""
    assert send(guide, **forged) == 401
    assert guide["done"] == {}
