"""Pauses and strikes over HTTP."""

from __future__ import annotations

from tests.api.conftest import Shop, problem
from tests.cases import for_each


@for_each("path, kind, ended", [("/pauses", "pause", "resume"), ("/strikes", "strike", "lift")])
def test_a_block_is_made_listed_and_ended(keyed: Shop, path: str, kind: str, ended: str) -> None:
    """An operator makes and ends a block, readers list it, and the audit log has who did; others are refused."""
    operator, reader = keyed.named("operate"), keyed.named("read")
    body = {"task": "shop.invoice", "where": {"order_id": "7"}, "until": "2099-01-01T00:00:00Z", "note": "asked"}
    problem(reader.request("POST", path, json=body), 403, "forbidden")
    made = operator.request("POST", path, json=body)
    assert made.status_code == 201, made.text
    assert made.json().items() >= {**body, "kind": kind, "queue": "", "created_by": "over HTTP by operate"}.items()
    assert reader.get(path).json() == [made.json()]
    block_id = made.json()["id"]
    assert operator.request("DELETE", f"{path}/{block_id}").status_code == 204
    assert reader.get(path).json() == []
    problem(operator.request("DELETE", f"{path}/{block_id}"), 404, "block-not-found")
    last, first = [each for each in operator.ledger.audit(limit=9) if each.outcome == "done"][:2]
    assert [(each.actor, each.target) for each in (first, last)] == [("operate", ""), ("operate", block_id)]
    assert "task=shop.invoice" in first.detail
    assert "=7" not in first.detail


@for_each("body, status, kind", [
    ({}, 422, "invalid-arguments"), ({"task": "shop.nothing"}, 422, "invalid-arguments"),
    ({"queue": "q", "until": "2001-01-01T00:00:00Z"}, 422, "invalid-arguments"),
    ({"queue": "q", "until": "2099-01-01T00:00:00"}, 422, "invalid-request"),
    ({"queue": 7}, 422, "invalid-request"), ({"queue": "q", "color": "red"}, 422, "invalid-request"),
])  # fmt: skip
def test_a_pause_that_cannot_work_is_refused(shop: Shop, body: dict[str, object], status: int, kind: str) -> None:
    """A body that selects nothing or what does not exist, and one that does not fit the schema, writes nothing."""
    problem(shop.request("POST", "/pauses", json=body), status, kind)
    assert shop.get("/pauses").json() == []
