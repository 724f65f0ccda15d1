"""The OpenAPI document says what every route answers, who may call it, and how long its arrays are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onejob.api.app import WITHOUT_KEYS
from onejob.api.checked_request import PARAMETER_LIMIT, VALUE_LIMIT
from tests.api.conftest import Shop

WHOLE = {"schedules", "queues", "tasks", "slots", "sentences", "job_ids", "tags", "lines"}
"""The arrays that are whole: they are as long as what an app has, or a job, or a type of a task's argument."""


def arrays(value: Any, *path: str) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield the array types in a document, and where they are."""
    if isinstance(value, dict):
        if value.get("type") == "array":
            yield path, value
        for name, each in value.items():
            yield from arrays(each, *path, str(name))
    elif isinstance(value, list):
        for each in value:
            yield from arrays(each, *path)


def test_refusals_are_declared(keyed: Shop, shop: Shop) -> None:
    """Each route declares 429, 500 and 503, and one with a key 401 with its challenge, and the scheme of keys."""
    document = keyed.named("read").get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert operation["responses"].keys() >= {"429", "500", "503"}
            assert "Retry-After" in operation["responses"]["429"]["headers"]
            has_key = path not in {"/healthz", "/readyz"}
            assert ("401" in operation["responses"]) == has_key, path
            assert ("security" in operation) == has_key, path
    assert "WWW-Authenticate" in document["paths"]["/jobs"]["get"]["responses"]["401"]["headers"]
    assert [scheme["scheme"] for scheme in document["components"]["securitySchemes"].values()] == ["bearer"]
    keyless = shop.get("/openapi.json").json()
    assert keyless["security"] == []
    assert WITHOUT_KEYS in keyless["info"]["description"]
    assert "401" not in keyless["paths"]["/jobs"]["get"]["responses"]


def test_arrays_are_bounded(shop: Shop) -> None:
    """Each array has a declared maximum, which requests keep, except for lists that are whole."""
    document = shop.get("/openapi.json").json()
    unbounded = [path for path, array in arrays(document) if "maxItems" not in array]
    assert [path for path in unbounded if WHOLE.isdisjoint({part.strip("/") for part in path})] == []
    assert shop.post("/jobs/x/edit", {"args": [1] * (VALUE_LIMIT - 10)}).status_code == 404
    states = {"operation": "cancel", "filter": {"state": ["queued"] * (PARAMETER_LIMIT + 1)}}
    assert shop.post("/jobs/bulk", states).status_code == 422
