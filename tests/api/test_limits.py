"""Limits over HTTP."""

from __future__ import annotations

from tests.api.conftest import Shop, problem
from tests.cases import for_each
from tests.limited import CUSTOMER, crowd, define

UNTIL = "2099-01-01T00:00:00Z"


def test_an_exception_is_set_listed_and_cleared(keyed: Shop) -> None:
    """An operator sets and clears an exception, readers see it, and the audit log has who did; others are refused."""
    operator, reader = keyed.named("operate"), keyed.named("read")
    first, second, third = crowd(operator.ledger)
    body = {"value": "3", "until": UNTIL}
    problem(reader.request("PUT", f"/limits/{CUSTOMER}", json=body), 403, "forbidden")
    changed = operator.request("PUT", f"/limits/{CUSTOMER}", json=body)
    assert changed.status_code == 200, changed.text
    expected = {"key": CUSTOMER, "value": "3", "default": "2", "is_exception": True, "until": UNTIL, "waiting": 0}
    assert changed.json().items() >= expected.items()
    assert changed.json()["holders"] == [first, second, third]
    assert reader.get(f"/limits/{CUSTOMER}").json() == changed.json()
    assert [each["key"] for each in reader.get("/limits").json()] == ["customer", CUSTOMER, "model"]
    problem(reader.request("DELETE", f"/limits/{CUSTOMER}"), 403, "forbidden")
    assert operator.request("DELETE", f"/limits/{CUSTOMER}").status_code == 204
    assert not reader.get(f"/limits/{CUSTOMER}").json()["is_exception"]
    last, begun = [each for each in operator.ledger.audit(limit=9) if each.outcome == "done"]
    assert [(each.actor, each.target) for each in (begun, last)] == [("operate", CUSTOMER)] * 2
    assert begun.detail == f"PUT value=3 until={UNTIL}"


def test_a_key_may_have_any_characters_of_a_value(shop: Shop) -> None:
    """A key with slashes, spaces and question marks is one path, whose characters a client escapes."""
    define(shop.ledger)
    path = "/limits/customer=https%3A%2F%2Fa.example%2F%3Fq%3D5%20x"
    made = shop.request("PUT", path, json={"value": "1"})
    assert made.json()["key"] == "customer=https://a.example/?q=5 x"
    assert shop.get(path).json() == made.json()
    assert shop.request("DELETE", path).status_code == 204


@for_each("key, body, status, kind", [
    ("customer", {}, 422, "invalid-request"), ("customer", {"value": 5}, 422, "invalid-request"),
    ("customer", {"value": "5", "color": "red"}, 422, "invalid-request"),
    ("customer", {"value": "5", "until": "2099-01-01T00:00:00"}, 422, "invalid-request"),
    ("customer", {"value": "5", "until": "2001-01-01T00:00:00Z"}, 422, "invalid-arguments"),
    ("customer", {"value": "many"}, 422, "invalid-arguments"),
    ("customer", {"value": "9/day"}, 422, "invalid-arguments"), ("other", {"value": "5"}, 422, "invalid-arguments"),
])  # fmt: skip
def test_an_exception_that_cannot_be_is_refused(
    shop: Shop, key: str, body: dict[str, object], status: int, kind: str
) -> None:
    """A body without a valid value, and one that does not fit the schema or the limit, writes nothing."""
    define(shop.ledger)
    problem(shop.request("PUT", f"/limits/{key}", json=body), status, kind)
    assert all(each.is_default for each in shop.ledger.store.limit_values())


def test_an_unknown_limit_is_not_found(shop: Shop) -> None:
    """A limit that no task defines is not found, read or deleted."""
    problem(shop.get("/limits/other=1"), 404, "limit-not-found")
    problem(shop.request("DELETE", "/limits/other=1"), 404, "limit-not-found")


def test_tenants_see_no_keys_of_others(keyed: Shop) -> None:
    """A caller that is limited to some jobs gets neither limits nor holders, and sets none: they are of all jobs."""
    crowd(keyed.ledger)
    for name in ("one", "limited"):
        tenant = keyed.named(name)
        for method, path in (("GET", "/limits"), ("GET", f"/limits/{CUSTOMER}"), ("DELETE", f"/limits/{CUSTOMER}")):
            problem(tenant.request(method, path), 403, "forbidden")
        problem(tenant.request("PUT", f"/limits/{CUSTOMER}", json={"value": "9"}), 403, "forbidden")
    assert all(each.is_default for each in keyed.ledger.store.limit_values())
